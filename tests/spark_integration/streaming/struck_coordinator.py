"""The real `penstock coordinator --query`, which kills itself at the point that it finds ordered in a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.cli import main
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPrepared
from penstock.schemas.codec import decode
from penstock.schemas.events import TriggerCheckpoint
from penstock.transport import kafka
from penstock.transport.kafka_log import KafkaFencedLog
from penstock.transport.kafka_writer import KafkaWriter
from penstock.transport.ports import OnOutcome, Partition
from tests.failure_matrix.zygote import die_with

from . import numbered_job, struck

ARMED_VARIABLE = "PENSTOCK_TEST_ARMED"


def strike(point: str) -> None:
    armed = Path(os.environ[ARMED_VARIABLE])
    if armed.exists() and armed.read_text() == point:
        armed.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class StruckLog(KafkaFencedLog):
    def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        kinds = {type(decode(value)) for _, value in records if value is not None}
        if CheckpointCompleted in kinds:
            strike(struck.NOT_COMPLETED)
        super().commit(records)
        if CheckpointCompleted in kinds:
            strike(struck.COMPLETED)
        if CheckpointPrepared in kinds:
            strike(struck.PREPARED)


class StruckWriter(KafkaWriter):
    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        if isinstance(decode(value), TriggerCheckpoint):
            strike(struck.CUT)
        super().append(partition, value, key, on_outcome)


if __name__ == "__main__":
    die_with(os.getppid())
    name, broker = sys.argv[1:]
    kafka.KafkaFencedLog = StruckLog  # type: ignore[attr-defined]
    kafka.KafkaWriter = StruckWriter  # type: ignore[attr-defined]
    raise SystemExit(main(["coordinator", numbered_job.__file__, "--query", "--name", name, "--broker", broker]))
