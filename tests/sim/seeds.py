"""Seeds that have found something: every run of the tests repeats them."""

FOUND: tuple[int, ...] = ()
