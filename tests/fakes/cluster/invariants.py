"""How the model says that something does not hold."""


class Broken(AssertionError):
    """An invariant of the design, section 10, does not hold."""

    def __init__(self, invariant: int, detail: str) -> None:
        super().__init__(f"invariant {invariant}: {detail}")
        self.invariant = invariant


def require(held: bool, invariant: int, detail: str) -> None:
    """Raise `Broken` unless the invariant holds."""
    if not held:
        raise Broken(invariant, detail)
