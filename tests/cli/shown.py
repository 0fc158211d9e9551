"""Output that is no command's, for the golden files."""

from collections.abc import Callable
from typing import Any


class Shown:
    """Output in the place of a command's, for the golden files."""

    def __init__(self, text: str) -> None:
        self.text = text

    def transcript(self) -> str:
        return "\n".join(line.rstrip() for line in self.text.splitlines()) + "\n"


Golden = Callable[[str, Any], None]
