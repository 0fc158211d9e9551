"""What of Spark is refused at the start, by names of classes that Spark gives."""

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rhinoctl.errors import UnsupportedOperator, UnsupportedSpark
from rhinoctl.spark import query
from rhinoctl.spark.query import check_collations, check_execution, check_session


class TestSession:
    def test_spark_connect_is_refused(self) -> None:
        class ConnectSession:
            pass

        ConnectSession.__module__ = "pyspark.sql.connect.session"
        with pytest.raises(UnsupportedSpark) as caught:
            check_session(ConnectSession())
        assert caught.value.remedy

    @pytest.mark.parametrize("version", ["3.5.9", "4.0.0", "4.1.4"])
    def test_versions_before_4_2_are_refused(
        self, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(query.pyspark, "__version__", version)
        with pytest.raises(UnsupportedSpark):
            check_session(object())

    @pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "5.0.0"])
    def test_later_versions_are_taken(self, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(query.pyspark, "__version__", version)
        check_session(object())


@pytest.mark.parametrize(
    ("execution", "trigger"),
    [
        ("ContinuousExecution", "ContinuousTrigger"),
        ("MicroBatchExecution", "RealTimeTrigger"),
        ("AsyncProgressTrackingMicroBatchExecution", "ProcessingTimeTrigger"),
    ],
)
def test_triggers_without_decidable_batches_are_refused(execution: str, trigger: str) -> None:
    with pytest.raises(UnsupportedSpark):
        check_execution(execution, trigger)


@pytest.mark.parametrize("trigger", ["ProcessingTimeTrigger", "AvailableNowTrigger$"])
def test_micro_batches_are_taken(trigger: str) -> None:
    check_execution("MicroBatchExecution", trigger)


def test_a_collated_key_is_refused_by_its_name_and_others_are_not() -> None:
    schema = StructType(
        [
            StructField("plain", StringType()),
            StructField("folded", StringType("UNICODE_CI")),
        ]
    )
    check_collations(schema, ["plain"])
    with pytest.raises(UnsupportedOperator, match="folded"):
        check_collations(schema, ["plain", "folded"])
