"""The generator's options as Spark hands them over: any case, values as text."""

import pytest

from rhinoctl.errors import UsageError
from rhinoctl.spark.nexmark import NexmarkSpec
from rhinoctl.spark.skew import Skew
from rhinoctl.spark.source import GeneratorOptions


def parsed(**options: object) -> GeneratorOptions:
    return GeneratorOptions.parse({"generator": "nexmark", **options})


def test_nothing_given_is_the_spec_s_own_default() -> None:
    assert parsed().spec == NexmarkSpec()


def test_a_skew_is_taken_with_its_numbers() -> None:
    spec = parsed(SKEW="Zipf", zipf_exponent="150").spec
    assert (spec.skew, spec.zipf_exponent) == (Skew.ZIPF, 150)
    spec = parsed(skew="hot", hot_percent=80, HOT_KEYS=" 3 ").spec
    assert (spec.skew, spec.hot_percent, spec.hot_keys) == (Skew.HOT, 80, 3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("skew", {"skew": "cold"}),
        ("zipf_exponent", {"skew": "zipf", "zipf_exponent": "1.5"}),
        ("zipf_exponent", {"zipf_exponent": 0}),
        ("hot_percent", {"skew": "hot", "hot_percent": 101}),
        ("hot_keys", {"skew": "hot", "keys": 3, "hot_keys": 3}),
    ],
)
def test_a_wrong_skew_is_refused_by_the_option_s_name(
    name: str, options: dict[str, object]
) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(**options)
    assert name in refused.value.message
    assert refused.value.remedy
