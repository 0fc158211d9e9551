"""Who may do what over the controller's API: a token has a role, a route needs one."""

import hmac
from collections.abc import Mapping
from enum import StrEnum

from rhinoctl.errors import UsageError
from rhinoctl.wire.secret import Secret, read_token


class Role(StrEnum):
    """In ascending order: each may also do what those before it may."""

    VIEWER = "viewer"
    """Looks, and changes nothing."""
    DRIVER = "driver"
    """A Spark driver: registers its job, takes its session and drives its batches."""
    OPERATOR = "operator"
    """Everything."""

    def may(self, needed: "Role") -> bool:
        """Whether this role may do what needs that one."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(needed)


def read_tokens(files: Mapping[Role, str]) -> dict[Role, Secret]:
    """The tokens in the files. Raises UsageError if there is no operator's among them, or if two
    roles have one token, and Unauthenticated for a file that cannot be read."""
    tokens = {role: read_token(path) for role, path in files.items()}
    if files and Role.OPERATOR not in tokens:
        raise UsageError(
            "no token of an operator is among the controller's `tokens`",
            remedy="name the file of one: somebody has to be able to change the cluster",
        )
    if len(set(tokens.values())) < len(tokens):
        raise UsageError(
            "two roles have the same token", remedy="give each role a token of its own"
        )
    return tokens


def role_of(authorization: str, tokens: Mapping[Role, Secret]) -> Role | None:
    """The role of whoever sends such a header; None for a stranger. Every token is compared, so
    that the time it takes tells nothing."""
    found = [
        role
        for role, token in tokens.items()
        if hmac.compare_digest(authorization.encode(), f"Bearer {token.reveal()}".encode())
    ]
    return found[0] if found else None
