"""Seeds that every run of the tests repeats."""

USUAL = (10, 12, 13, 16, 22, 23, 24, 29, 31)
"""Few, in which every kind of fault strikes. When what a seed draws is changed others have to."""

FOUND: tuple[int, ...] = ()
"""Those that have found something since what a seed draws was changed last. What was found before
is told in tests/scenarios and tests/unit: a worker lost while the heirs of another recover, a
record read after a restart that was not durable."""
