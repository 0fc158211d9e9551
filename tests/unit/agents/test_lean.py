"""An instance does not load pandas, which pyarrow looks for by itself."""

import subprocess
import sys

CODE = """
import sys
from rhino_agent.lean import without_pandas
without_pandas()
import numpy, pyarrow
assert pyarrow.array(numpy.arange(3)).to_pylist() == [0, 1, 2]
assert pyarrow.table({"k": [1, 1]}).group_by("k").aggregate([("k", "sum")]).num_rows == 1
assert "pandas" not in sys.modules
"""


def test_pyarrow_works_and_pandas_stays_out() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
