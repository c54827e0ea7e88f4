"""Which frames count, against a model that looks at the whole partition anew after each record (protocol, section 5).

The machine writes the events partition as coordinators of several epochs would, frozen ones and careless ones among
them, and answers each Hello with a Start from some snapshot. The model knows nothing of positions or turns: it lists
what counts, from the first record to the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.schemas.acks import CheckpointAck, Failed
from penstock.schemas.events import EventFrame, FailoverPolicy, TriggerCheckpoint
from penstock.schemas.frames import Packed, unpack
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.state import Segment
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol.phases import Phase
from tests.machines import explore
from tests.rounds import rounds

from .conftest import CoreDriver, Wire

GARBAGE = ValueError("no record")
STRANGER = 30
"""An attempt of another instance, older than any of ours."""


@dataclass
class Counted:
    """What a Start makes of a partition."""

    handled: list[bytes] = field(default_factory=list)
    acks: list[tuple[int, int, int]] = field(default_factory=list)
    """(checkpoint, event position, handled through)."""
    gap: bool = False


def count(log: list[Any], start_at: int) -> Counted:
    """From the definitions: ranges first, then the open part; each numbering from what Start expects, others from 0."""
    start = log[start_at]
    by_attempt = start.policy is FailoverPolicy.RESET
    ranges = [s for s in start.event_ranges if s.begin < s.end]
    wanted = [(offset, s.epoch, s.attempt) for s in ranges for offset in range(s.begin, s.end)]
    behind = max([start.event_position, *(s.end for s in ranges)])
    opened = range(start_at + 1 if by_attempt else behind, len(log))
    wanted += [(offset, start.epoch, start.attempt) for offset in opened]
    first = ranges[0].attempt if by_attempt and ranges else start.attempt

    def numbering(epoch: int, attempt: int) -> tuple[int, int]:
        return epoch, attempt if by_attempt else 0

    due = {} if by_attempt and not ranges else {numbering(start.expected_epoch, first): start.expected_sequence}
    own, begun, out = numbering(start.epoch, start.attempt), start.next_checkpoint_id - 1, Counted()
    highest = start.epoch
    for offset, epoch, attempt in wanted:
        record = log[offset]
        live = offset > start_at
        if record is GARBAGE or (live and record.epoch < highest):
            continue
        highest = record.epoch if live else highest
        if isinstance(record, EventFrame) and record.epoch == epoch and (not by_attempt or record.attempt == attempt):
            if len(record.lengths) != 4 * record.count:
                continue  # damaged: what comes next shows that it is missing
            key = numbering(epoch, attempt)
            if record.sequence < due.get(key, 0) and record.sequence + record.count <= due.get(key, 0):
                continue  # its writer, or somebody, has written it again
            if record.sequence != due.get(key, 0):
                out.gap = True
                return out
            out.handled += unpack(record.count, record.lengths, record.payload)
            due[key] = record.sequence + record.count
        if live and isinstance(record, TriggerCheckpoint) and record.epoch == start.epoch:
            if record.checkpoint_id <= begun:
                continue
            if record.sequence < due.get(own, 0):
                continue
            if record.sequence != due.get(own, 0):
                out.gap = True
                return out
            begun = record.checkpoint_id
            out.acks.append((begun, offset + 1, record.sequence))
    return out


class ReadingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = CoreDriver()
        self.log = self.driver.log
        self.policy = FailoverPolicy.REPLAY
        self.epoch, self.generation, self.next_checkpoint = 1, 0, 1
        self.epoch_begins_at = 0
        self.due: dict[tuple[int, int], int] = {}
        self.start_at: int | None = None
        self.failures = self.starts = 0
        self.told = NO_CHECKPOINT
        self.acks: list[CheckpointAck] = []
        """Of this epoch: what a Start may name."""
        self.sent = 0

    @initialize(policy=st.sampled_from([FailoverPolicy.REPLAY, FailoverPolicy.RESET]))
    def an_instance_says_hello(self, policy: FailoverPolicy) -> None:
        self.policy = policy
        self.driver.hello()

    @property
    def own(self) -> int:
        """The attempt that its last Hello made it."""
        assert self.driver.core.attempt is not None
        return self.driver.core.attempt

    def _numbering(self, epoch: int, attempt: int) -> tuple[int, int]:
        return epoch, attempt if self.policy is FailoverPolicy.RESET else 0

    def _append(self, *records: Any) -> None:
        """Writes, lets the instance read, and asks the model how that went."""
        known = len(self.driver.written(CheckpointAck))
        self.driver.append(*records)
        self.acks += self.driver.written(CheckpointAck)[known:]
        if self.start_at is None:
            return
        counted = count(self.log, self.start_at)
        assert self.driver.handled == counted.handled
        start = self.log[self.start_at]
        acks = [a for a in self.driver.written(CheckpointAck) if a.sender.full_generation == start.full_generation]
        assert [(a.checkpoint_id, a.event_position, a.handled_through) for a in acks] == counted.acks
        assert not any(a.event_ranges for a in acks)
        if counted.gap:
            self.failures += 1
            self.generation += 1
            self._over()

    def _over(self) -> None:
        """The attempt has ended, and the instance has said Hello again in place."""
        self.start_at = None
        self.driver.append()  # what it looks through before its Hello

    # ---- coordinators

    @rule(events=st.lists(st.binary(max_size=3), max_size=3), older=st.booleans(), stranger=st.integers(0, 3))
    def a_frame(self, events: list[bytes], older: bool, stranger: int) -> None:
        """Of the present epoch, or of a frozen coordinator; to this attempt, or another one."""
        epoch = self.epoch - 1 if older and self.epoch > 1 else self.epoch
        attempt = STRANGER if stranger == 0 else self.own
        self._write(epoch, attempt, events)

    @rule(
        data=st.data(), ranges=st.sampled_from([0, 1, 2, 2]), steps=st.lists(st.integers(0, 3), min_size=1, max_size=6)
    )
    def work_goes_on(self, data: st.DataObject, ranges: int, steps: list[int]) -> None:
        """Frames, and a marker here and there; whoever waits for a Start gets one."""
        if self.start_at is None:
            self._start(data, ranges)
        for size in steps:
            if size:
                self._write(self.epoch, self.own, [b"x"] * size)
            else:
                self._mark(self.next_checkpoint)
                self.next_checkpoint += 1

    def _mark(self, n: int, epoch: int | None = None, slip: int = 0) -> None:
        sequence = self.due.get(self._numbering(self.epoch, self.own), 0)
        self._append(Wire.marker(n, sequence + slip, epoch=self.epoch if epoch is None else epoch))

    def _write(self, epoch: int, attempt: int, payloads: list[bytes], slip: int = 0) -> None:
        key = self._numbering(epoch, attempt)
        sequence = self.due.get(key, 0)
        events = [b"%d" % (self.sent + i) + payload for i, payload in enumerate(payloads)]
        self.sent += len(events)
        self.due[key] = sequence + len(events)
        self._append(Wire.frame(sequence + slip, *events, epoch=epoch, attempt=attempt))

    @rule(older=st.booleans(), back=st.integers(0, 2))
    def a_marker_that_is_dead_or_of_a_frozen_coordinator(self, older: bool, back: int) -> None:
        self._mark(max(1, self.next_checkpoint - back), self.epoch - 1 if older else None)
        self.next_checkpoint += 1

    @precondition(lambda self: self.start_at is not None)
    @rule(what=st.sampled_from(["reset", "older reset", "older start", "stop", "own start again", "garbage"]))
    def a_record_that_is_for_others_or_stale(self, what: str) -> None:
        """The instance goes on as if it had not been there."""
        assert self.start_at is not None
        start = self.log[self.start_at]
        records = {
            "reset": Wire.reset(start.epoch, start.generation),
            "older reset": Wire.reset(start.epoch - 1, 99),
            "older start": Wire.start(STRANGER, "stranger", epoch=self.epoch, generation=99),
            "stop": Wire.stop(STRANGER, "stranger", epoch=self.epoch),
            "own start again": start,
            "garbage": GARBAGE,
        }
        self._append(records[what])

    @rule(
        what=st.sampled_from(
            ["another epoch", "another epoch", "failover", "frame skips", "frame repeats", "frame is lost",
             "frame is damaged", "marker skips"]
        )
    )  # fmt: skip
    def trouble(self, what: str) -> None:
        """One rule for all of it, or next to nothing would be handled."""
        match what:
            case "another epoch":  # its Reset ends what runs; an instance that waits only notes the epoch
                self.epoch, self.generation = self.epoch + 1, 0
                self.epoch_begins_at, self.acks = len(self.log), []
                self._reset()
            case "failover":
                self.generation += 1
                self._reset()
            case "frame skips" | "frame repeats":
                nothing_yet = self.due.get(self._numbering(self.epoch, self.own), 0) == 0
                self._write(self.epoch, self.own, [b"x"], slip=1 if what == "frame skips" or nothing_yet else -1)
            case "marker skips":
                self._mark(self.next_checkpoint, slip=1)
                self.next_checkpoint += 1
            case _:
                key = self._numbering(self.epoch, self.own)
                sequence = self.due.get(key, 0)
                self.due[key] = sequence + 1
                if what == "frame is damaged":
                    self._append(EventFrame(self.epoch, self.own, sequence, *Packed(1, b"", b"x")))

    def _reset(self) -> None:
        was_running, self.start_at = self.start_at is not None, None
        self._append(Wire.reset(self.epoch, self.generation))
        if was_running:
            self._over()

    @precondition(lambda self: self.start_at is None)
    @rule(data=st.data(), ranges=st.integers(0, 2))
    def a_start(self, data: st.DataObject, ranges: int) -> None:
        """From nothing, from a snapshot of this epoch, or with ranges of older ones."""
        self._start(data, ranges)

    @precondition(lambda self: self.start_at is not None)
    @rule(data=st.data(), ranges=st.integers(0, 2))
    def another_start_of_a_higher_generation(self, data: st.DataObject, ranges: int) -> None:
        """Section 5.3 ◆: drop the state and start over from it."""
        self.generation += 1
        self._start(data, ranges)

    def _start(self, data: st.DataObject, wanted_ranges: int) -> None:
        attempt = self.own
        for what in data.draw(st.lists(st.sampled_from(["frame", "frozen", "marker"]), max_size=3)):
            if self.start_at is not None:
                break  # these stand below the Start: the log goes on while an instance waits
            if what == "marker":
                self._mark(self.next_checkpoint)
            else:
                self._write(self.epoch if what == "frame" else self.epoch - 1, attempt, [b"b"])
        given: dict[str, Any] = {
            "epoch": self.epoch, "generation": self.generation, "policy": self.policy, "expected_epoch": self.epoch,
            "event_position": self.epoch_begins_at,
            "next_checkpoint_id": max(1, self.next_checkpoint - data.draw(st.sampled_from([0, 2]))),
        }  # fmt: skip
        from_own_epoch = bool(data.draw(st.booleans()))
        if self.acks and from_own_epoch:
            ack = data.draw(st.sampled_from(self.acks))
            given |= {"checkpoint_id": ack.checkpoint_id, "event_position": ack.event_position}
            given |= {"expected_sequence": 0 if self.policy is FailoverPolicy.RESET else ack.handled_through}
        elif segments := self._segments(data, wanted_ranges):
            first = segments[0]
            given |= {"event_ranges": segments, "expected_epoch": first.epoch}
            given |= {"checkpoint_id": NO_CHECKPOINT + 1, "expected_sequence": self._first_sequence(first)}
        # No coordinator goes back below a checkpoint that an instance was told of: the instance would say Hello again.
        self.told = given["checkpoint_id"] = max(self.told, given.get("checkpoint_id", NO_CHECKPOINT))
        self.start_at = len(self.log)
        self.starts += 1
        self._append(Wire.start(attempt, self.driver.core.nonce or "", **given))

    def _segments(self, data: st.DataObject, wanted: int) -> tuple[Segment, ...]:
        """Ranges in order, each of a newer epoch than the one before, perhaps with holes between."""
        segments: list[Segment] = []
        lowest = 0
        for _ in range(wanted):
            below = self.log[lowest:]
            frames = [r for r in below if isinstance(r, EventFrame) and r.count and r.epoch <= self.epoch]
            frames = [r for r in frames if not segments or r.epoch > segments[-1].epoch]
            if not frames:
                break
            frame = data.draw(st.sampled_from(frames))
            begin = data.draw(st.integers(lowest, self.log.index(frame, lowest)))
            end = data.draw(st.integers(begin, len(self.log)))
            segments.append(Segment(begin, end, frame.epoch, 0, frame.attempt))
            lowest = end
        return tuple(segments)

    def _first_sequence(self, segment: Segment) -> int:
        for record in self.log[segment.begin : segment.end]:
            if isinstance(record, EventFrame) and self._numbering(record.epoch, record.attempt) == self._numbering(
                segment.epoch, segment.attempt
            ):
                return record.sequence
        return 0

    # ---- what must be so

    @invariant()
    def it_runs_exactly_while_nothing_is_missing(self) -> None:
        if self.driver.hellos:
            expected = Phase.WAITING if self.start_at is None else Phase.RUNNING
            assert self.driver.core.phase is expected
            assert len(self.driver.written(Failed)) == self.failures
            assert len(self.driver.of(do.OpenUser)) == self.starts
            assert self.driver.core.position == len(self.log)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_an_instance_handles_what_the_whole_partition_says_counts(round_: int) -> None:
    explore(ReadingMachine, round_, examples=80, steps=30)
