"""A job on a local Spark and a secured broker; it fails in a subtask and stops. Prints what Spark knows of its setting.

The client settings come as JSON on standard input.
"""

from __future__ import annotations

import json
import sys
import threading

import penstock
from penstock.client.job_client import JobClient
from penstock.spark_integration import local_session, run
from penstock.transport.kafka import KafkaTransport

PATIENCE_S = 60.0


class Sender(penstock.OperatorCoordinator):
    """Sends one event as soon as there is a subtask."""

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        gateway.send_event(b"%d" % attempt)


class FailsOnce(penstock.Subtask):
    """Raises at the first event of all."""

    failed = False

    def handle_operator_event(self, event: bytes) -> None:
        if not FailsOnce.failed:
            FailsOnce.failed = True
            raise RuntimeError("told to fail")


def main() -> None:
    told = json.load(sys.stdin)
    job = penstock.Job(told["job"], checkpoint=penstock.CheckpointSettings(interval=0.2))
    job.operator("op", coordinator=Sender, subtask=FailsOnce, parallelism=1)
    spark = local_session(2)
    spark.sparkContext.setLogLevel("INFO")
    try:
        with run(spark, job, broker=told["broker"], client_settings=told["client_settings"]) as handle:
            _await(lambda: (status := handle.status()) is not None and status.checkpoints_completed >= 2)
            print(repr(handle), handle.status())
            print(json.dumps(spark.sparkContext.getConf().getAll()))
            client = JobClient(KafkaTransport(told["broker"], told["client_settings"]), job.name)
            client.stop(timeout_s=PATIENCE_S)
            print("ended:", handle.wait(PATIENCE_S))
    finally:
        spark.stop()


def _await(condition: object) -> None:
    assert callable(condition)
    for _ in range(int(PATIENCE_S / 0.1)):
        if condition():
            return
        threading.Event().wait(0.1)
    raise TimeoutError("no checkpoint completed")


if __name__ == "__main__":
    main()
