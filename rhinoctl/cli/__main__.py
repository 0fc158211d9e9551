"""`python -m rhinoctl.cli`, for where the console script is not on the path."""

import sys

from rhinoctl.cli import main

sys.exit(main())
