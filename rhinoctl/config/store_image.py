"""``python -m rhinoctl.config.store_image image|put STORE``: what is run on the host of a deployed
controller, by the account that the store belongs to, to read its image and to put one in its place.

An image goes out by stdout and comes in by stdin. The last line of stderr has the error that it
ends with, as of any process of ours.
"""

import sys
from pathlib import Path

from rhinoctl.config.backup import image_of, put_image
from rhinoctl.errors import RhinoError
from rhinoctl.protocol import codec
from rhinoctl.protocol.views import problem_of


def main(argv: list[str]) -> int:
    verb, store = argv
    try:
        if verb == "put":
            put_image(Path(store), sys.stdin.buffer.read())
        else:
            sys.stdout.buffer.write(image_of(Path(store)))
    except RhinoError as fault:
        sys.stderr.write(f"{verb} refused problem={codec.dumps(problem_of(fault)).decode()}\n")
        return int(fault.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
