"""The driver of a NEXMark job on a Spark standalone cluster, as a process (`test_deployed.py`).

It says in JSON lines how many rows were counted so far, and at the end whether the result is that
of Spark's own batch query over the same input. RHINO_CONTROLLER names the access that it has.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

from rhinoctl.operators import RunningAggregate
from rhinoctl.spark import Result, Rhino
from rhinoctl.spark.source import nexmark_batch, nexmark_stream

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "60s",
    # An executor that says nothing is lost after that, and its tasks are run elsewhere.
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "5s",
    "spark.task.maxFailures": "50",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


def session(master: str, address: str, partitions: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("clicks")
    builder = builder.config("spark.driver.host", address)
    builder = builder.config("spark.driver.bindAddress", address)
    builder = builder.config("spark.cores.max", partitions)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(argv: list[str]) -> None:
    master, address, checkpoint, events, rate = argv
    spark = session(master, address, "3")
    options = {
        "stream": "bid",
        "rate": int(rate),
        "events": int(events),
        "keys": 2000,
        "base_ms": int(1000 * time.time()),
        "partitions": 3,
    }
    total = nexmark_batch(spark, **options).count()
    tell(event="total", rows=total)
    rows: dict[int, int] = {}

    def take(result: Result, batch: int) -> None:
        rows.update({row["auction"]: row["n"] for row in result.arrow.to_pylist()})
        tell(event="batch", batch=batch, rows=sum(rows.values()))

    count = RunningAggregate(keys=["auction"], aggregates={"n": "count"})
    with Rhino(spark, "clicks", instances=3, vnodes=32, replication=1) as rhino:
        stream = rhino.mark(nexmark_stream(spark, **options))
        query = (
            stream.writeStream.foreachBatch(rhino.sink(count, then=take))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        while sum(rows.values()) < total and query.exception() is None:
            time.sleep(0.2)
        if query.exception() is not None:
            tell(event="failed", why=str(rhino.fault or query.exception()))
            sys.exit(1)
        query.stop()
    own = nexmark_batch(spark, **options).groupBy("auction").count().collect()
    tell(event="verdict", equal=rows == {row[0]: row[1] for row in own}, rows=sum(rows.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
