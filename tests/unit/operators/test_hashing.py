"""T16: our hash gives the numbers that Spark wrote into the golden table."""

import json
import os
import subprocess
import sys
from random import Random

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from rhinoctl.operators.hashing import key_group_of, key_groups, xxhash64
from tests.unit.operators.golden import Case, columns_of, load


@pytest.mark.parametrize("case", load(), ids=lambda case: f"{case['types']}{case['values']}"[:60])
def test_golden(case: Case) -> None:
    columns = columns_of(case)
    assert xxhash64(columns).tolist() == [int(case["hash"])]
    assert key_groups(columns).tolist() == [case["key_group"]]


def test_many_rows_are_hashed_as_one_by_one() -> None:
    cases = [case for case in load() if case["types"] == ["string"]]
    column = pa.chunked_array([columns_of(case)[0] for case in cases])
    assert len(cases) > 5
    assert key_groups([column]).tolist() == [case["key_group"] for case in cases]


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_python_s_hash_seed_does_not_matter(seed: str) -> None:
    program = (
        "import json; from rhinoctl.operators.hashing import key_groups;"
        "from tests.unit.operators.golden import columns_of, load;"
        "print(json.dumps([int(key_groups(columns_of(case))[0]) for case in load()]))"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == [case["key_group"] for case in load()]


def test_bytes_of_all_lengths_against_the_reference() -> None:
    random = Random(16)
    texts = [random.randbytes(length) for length in range(200)]
    random.shuffle(texts)
    ours = xxhash64([pa.array([b"before", *texts]).slice(1)]).view(np.uint64).tolist()
    assert ours == [xxhash.xxh64_intdigest(text, seed=42) for text in texts]


def test_one_key() -> None:
    case = next(case for case in load() if case["types"] == ["string", "int64"])
    types = [pa.string(), pa.int64()]
    assert key_group_of(case["values"], types) == case["key_group"]


def test_what_cannot_be_a_key_has_no_hash() -> None:
    with pytest.raises(ValueError, match="list"):
        xxhash64([pa.array([[1]])])
