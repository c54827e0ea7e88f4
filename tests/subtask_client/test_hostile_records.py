"""Whatever somebody writes into the partitions of a live subtask: it goes on, starts over, or leaves with a cause."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.acks import CheckpointAck
from penstock.schemas.codec import encode
from penstock.schemas.data import DataRecord
from penstock.schemas.events import EventsRecord
from penstock.subtask_client.protocol.phases import Phase
from tests.harmless import measured
from tests.hostile import Known, hostile
from tests.machines import check
from tests.rounds import rounds

from .conftest import ATTEMPT, CoreDriver, Upstream, Wire

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

OF_COORDINATOR: Sequence[type] = typing.get_args(EventsRecord)
OF_SENDERS: Sequence[type] = typing.get_args(DataRecord)


class Attacked:
    """A running subtask with two senders, one receiver, and a checkpoint now and then."""

    def __init__(self) -> None:
        self.driver = CoreDriver("up/0 up/1", "down/0").started()
        self.senders = [Upstream("up/0"), Upstream("up/1")]
        self.sent = self.checkpoint = self.generation = 0

    def honest(self, draw: st.DrawFn) -> None:
        d = self.driver
        if d.core.phase is Phase.WAITING:
            self._start()
            return
        match draw(st.integers(0, 5)):
            case 0:
                d.append(Wire.frame(self.sent, b"event", epoch=self._epoch, attempt=d.core.attempt))
                self.sent += 1
            case 1 | 2:
                self.checkpoint += 1
                d.append(Wire.marker(self.checkpoint, self.sent, epoch=self._epoch))
                d.receive("up", *(sender.barrier(self.checkpoint) for sender in self.senders))
            case 3:
                d.receive("up", draw(st.sampled_from(self.senders)).frame(b"record"))
            case 4:
                d.append(Wire.completed(self.checkpoint, epoch=self._epoch))
            case _ if d.core.phase is Phase.RUNNING:
                d.turn()

    def _start(self) -> None:
        """The coordinator answers the newest Hello, as after a failover."""
        d, epoch = self.driver, max(self.driver.core.epoch_seen, 1)
        self.sent = 0
        self.generation += 1
        self.senders = [Upstream(str(s), epoch=epoch, generation=self.generation) for s in d.core.config.senders]
        begin = len(d.data["up"])
        positions = tuple(Wire.at(sender.channel, begin) for sender in self.senders)
        d.append(
            Wire.start(
                ATTEMPT + 10 * (d.hellos - 1), f"nonce-{d.hellos}", epoch=epoch, expected_epoch=epoch,
                generation=self.generation, event_position=len(d.log), data_positions=positions,
                next_checkpoint_id=self.checkpoint + 1,
            )
        )  # fmt: skip

    def hostile(self, draw: st.DrawFn) -> None:
        d, core = self.driver, self.driver.core
        numbers = [len(d.log), self.sent, self.checkpoint, core.attempt]
        if draw(st.booleans()):
            record = draw(hostile(self._known(d.log, numbers), OF_COORDINATOR))
            encode(record)  # it can stand in a topic
            measured(record, d.append, record)
        else:
            record = draw(hostile(self._known(d.data["up"], numbers), OF_SENDERS))
            encode(record)
            measured(record, d.receive, "up", record)

    @property
    def _epoch(self) -> int:
        running = self.driver.core.running
        return 1 if running is None else running.start.epoch

    def _known(self, records: list[Any], numbers: list[int]) -> Known:
        senders = [sender.sender for sender in self.senders]
        return Known(records, senders, numbers, ["up/0", "up/1", f"nonce-{self.driver.hellos}"])


def test_records_in_the_partitions_of_a_live_subtask_raise_nothing(round_: int) -> None:
    acks = starts = 0

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal acks, starts
        attacked = Attacked()
        for step in range(data.draw(st.integers(4, 24))):
            if attacked.driver.core.phase is Phase.LEFT:
                break
            (attacked.hostile if step % 2 else attacked.honest)(data.draw)

        acks += len(attacked.driver.written(CheckpointAck))
        starts += attacked.generation

    check(holds, round_, examples=80)
    assert acks >= 10 and starts >= 10, "a subtask in which nothing goes on shows nothing"
