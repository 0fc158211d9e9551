"""What an instance does without.

pyarrow imports pandas, if there is one, at its first conversion of an array: half a second of a
core and 40 MB, in the first batch of a fresh instance, for something that no instance uses.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Without:
    """Stands first among the finders and says of some packages that they are not there."""

    def __init__(self, *packages: str) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._packages:
            raise ModuleNotFoundError(f"no {name} in this process", name=name)
        return None


def without_pandas() -> None:
    """From now on this process has no pandas, whether it is installed or not."""
    sys.meta_path.insert(0, _Without("pandas"))
