"""Seeds that every run of the tests repeats."""

USUAL = tuple(range(8))
"""Together with `FOUND` they let every kind of fault strike."""

FOUND = (26, 142)
"""Those that have found something."""
