"""Runs a small query and ends its JVM, which was told to write an archive of the classes that it has loaded."""

from __future__ import annotations

import tempfile

from pyspark import SparkContext

from penstock.spark_integration import local_session


def main() -> None:
    spark = local_session(2)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
        query = rows.writeStream.foreachBatch(lambda frame, _: frame.write.parquet(f"{folder}/out"))
        query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
