"""One Spark session for all integration tests: starting a JVM costs more than most of them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session ``local[2]`` whose Python processes, also those of the driver, find rhinoctl."""
    here = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(here / "local"),
        "spark.sql.warehouse.dir": str(here / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # The JVM lives for a minute: compiling for a day's run would take the tests' own cores.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # A loaded machine needs longer than 15 s to start a Python process now and then.
        "spark.python.authenticate.socketTimeout": "60s",
    }
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), str(ROOT / "agents"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local[2]").appName("rhinoctl-tests")
        session = builder.config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
