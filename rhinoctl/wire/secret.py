"""A secret that cannot be printed by accident."""

import hmac
import os
from pathlib import Path

from rhinoctl.errors import Unauthenticated


class Secret:
    """A token: shown as ``***`` wherever it is printed, compared in constant time.

    It can be pickled, since it travels to Spark tasks with their closure.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself, for the one place that sends it."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"


def read_token(token_file: str | os.PathLike[str]) -> Secret:
    """The cluster's token. Raises Unauthenticated, naming the file, without one."""
    try:
        token = Path(token_file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        token, reason = "", str(fault)
    else:
        reason = f"{token_file} is empty"
    if not token:
        raise Unauthenticated(
            f"the cluster's token cannot be read: {reason}",
            remedy="run as the user who started the cluster, or name the file in RHINO_TOKEN_FILE",
        )
    return Secret(token)
