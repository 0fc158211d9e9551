"""Seeds that tests repeat: a few in every run, those that have found something in `make e2e`."""

USUAL = (142, 105, 10, 52, 86, 1, 11, 6)
"""Few, in which every kind of fault strikes. When what a seed draws is changed others have to."""

FOUND: tuple[int, ...] = (
    3018138,
    3018186,
    3018263,
    600000016,
    76350004,
    265625240,
    89608730,
    710000170,
    710000627,
    710001024,
    710001119,
    710001856,
    124111676,
    810000817,
    820000968,
    820002445,
    840000902,
    900000132,
    910002476,
    921000964,
    921002040,
    921004143,
    930004935,
    931004898,
    101117329,
    266116096,
)
"""Those that have found something since what a seed draws was changed last. What was found before
is told in tests/scenarios and tests/unit: a worker lost while the heirs of another recover, a
record read after a restart that was not durable, half of a checkpoint that was removed."""
