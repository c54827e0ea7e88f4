"""What brokers and coordinators rightly do to logs is no damage: truncation, compaction, offsets of transactions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from penstock.audit import Report
from penstock.audit.checkpoint_log import CheckpointLogCheck
from penstock.audit.report import Place
from penstock.checkpoint_log.history import History
from penstock.schemas.acks import CheckpointAck, OperatorEventFrame
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointLogRecord,
    CheckpointPart,
    EpochClaimed,
    OperatorSnapshot,
    SubtaskSnapshot,
    checkpoint_key,
    key_of,
)
from penstock.schemas.codec import decode
from penstock.schemas.ids import NO_CHECKPOINT

from .logs import Logs, simulated

SEEDS = (
    ("savepoints-replay", 9),
    ("everything-reset", 4),
    ("everything-global", 6),
    ("zombies-replay", 3),
    ("older-replay", 5),
    ("pair-backlog-older", 2),
    ("query-everything", 4),
)


@cache
def whole(config: str, seed: int) -> Logs:
    return simulated(config, seed)


def is_healthy(logs: Logs, what: str) -> Report:
    report = logs.audit()
    assert report.healthy, f"{what}: {report}"
    return report


@pytest.mark.parametrize(("config", "seed"), SEEDS)
def test_a_checkpoint_log_may_be_compacted_up_to_any_offset(config: str, seed: int) -> None:
    """The newest record of each key stays; a tombstone may be there or gone."""
    healthy = whole(config, seed)
    log = healthy.partition("checkpoints")
    records = healthy.records[log]
    for end in range(1, len(records) + 1, max(1, len(records) // 40)):
        for keeps_tombstones in (True, False):
            newest = {record.key: record.offset for record in records[:end]}
            logs = healthy.copy()
            logs.records[log] = [
                record
                for record in records
                if record.offset >= end
                or (newest[record.key] == record.offset and (keeps_tombstones or record.value is not None))
            ]
            is_healthy(logs, f"compacted below {end}")


def test_the_first_claim_may_be_compacted_away_by_one_that_reserves_more_ids() -> None:
    """Its transaction had another record, so not more than one offset is missing."""
    logs = whole("savepoints-replay", 0).copy()
    log = logs.partition("checkpoints")
    claim = decode(logs.records[log][0].value)
    assert isinstance(claim, EpochClaimed) and claim.epoch == 1
    keyed = [((r.key or b"").decode(), None if r.value is None else decode(r.value)) for r in logs.records[log]]
    history = History.of(keyed)  # type: ignore[arg-type]
    assert history.epoch == 1
    more = replace(
        claim,
        restored_checkpoint_id=history.last_id,
        first_checkpoint_id=history.reserved_through + 1,
        reserved_through=history.reserved_through + 100,
    )
    logs.append(log, more, "epoch")
    del logs.records[log][0]
    is_healthy(logs, "the first claim is gone")


def many_checkpoints(count: int, retained: int = 3) -> list[tuple[str, CheckpointLogRecord | None]]:
    """The checkpoint log of one epoch: each checkpoint reserves ids, and all but the newest are discarded."""
    claim = EpochClaimed(1, NO_CHECKPOINT, 1, 101, {}, "instance", "started")
    keyed: list[tuple[str, CheckpointLogRecord | None]] = [(key_of(claim), claim)]
    operators = (OperatorSnapshot("greet", 1, None, 0, 128, ()),)
    for n in range(1, count + 1):
        gone = (n - retained,) if n > retained else ()
        snapshot = SubtaskSnapshot(0, 0, 1, 0, n, None, n, (), 0, 0, (), False)
        part = CheckpointPart(n, 0, "greet", (snapshot,))
        header = CheckpointCompleted(1, n, False, n, n, 1, operators, 0, gone, n + 100)
        keyed += [(key_of(part), part), (key_of(header), header)]
        keyed += [(key, None) for i in gone for key in (checkpoint_key(i), f"{checkpoint_key(i)}/0")]
    return keyed


@pytest.mark.parametrize("keeps_tombstones", [True, False])
def test_compaction_may_take_away_the_records_that_reserved_the_ids_of_later_checkpoints(
    keeps_tombstones: bool,
) -> None:
    keyed = many_checkpoints(250)
    for end in range(1, len(keyed) + 1, 7):
        newest = {key: offset for offset, (key, _) in enumerate(keyed[:end])}
        report = Report("many")
        check = CheckpointLogCheck(report, Place("penstock.many.checkpoints", 0))
        for offset, (key, record) in enumerate(keyed):
            if offset >= end or (newest[key] == offset and (keeps_tombstones or record is not None)):
                check.read(offset, key.encode(), record)
        check.finish()
        assert report.healthy, f"compacted below {end}: {report}"


@pytest.mark.parametrize(("config", "seed"), SEEDS)
def test_transactions_may_take_offsets_of_their_own(config: str, seed: int) -> None:
    """One behind each commit; and some more where one was aborted."""
    healthy = whole(config, seed)
    log = healthy.partition("checkpoints")
    for every, more in ((1, 1), (3, 1), (5, 7)):
        logs, offset = healthy.copy(), 0
        moved = []
        for number, record in enumerate(healthy.records[log]):
            moved.append(record._replace(offset=offset))
            offset += 1 + (more if number % every == 0 else 0)
        logs.records[log], logs.end[log] = moved, offset
        is_healthy(logs, f"{more} more offsets behind every {every} records")


@pytest.mark.parametrize(("config", "seed"), SEEDS)
def test_logs_may_be_truncated_below_what_kept_checkpoints_need(config: str, seed: int) -> None:
    healthy = whole(config, seed)
    log = healthy.records[healthy.partition("checkpoints")]
    history = History.of([((r.key or b"").decode(), None if r.value is None else decode(r.value)) for r in log])  # type: ignore[misc]
    last = history.last
    assert last is not None
    for partition, records in healthy.records.items():
        if partition.topic.endswith(".events"):
            subtask = healthy.subtask_of(partition)
            ranges = [s.begin for c in history.checkpoints.values() for s in c.subtasks[subtask].event_ranges]
            ranges += [s.begin for p in history.prepared.values() for s in p.subtasks[subtask].event_ranges]
            below = min([last.subtasks[subtask].event_position, *ranges])
        elif partition.topic.endswith(".acks"):
            below = min(c.inbox_position for c in history.checkpoints.values() if not c.header.savepoint)
            below = min(below, last.header.commands_position)
        else:
            continue
        assert below <= len(records)
        for begin in range(0, below + 1, max(1, below // 12)):
            logs = healthy.copy()
            logs.truncate(partition, begin)
            is_healthy(logs, f"{partition} truncated below {begin}")


def test_an_ack_and_events_that_stand_twice_are_no_damage() -> None:
    logs = whole("savepoints-replay", 0).copy()
    completed = {c.checkpoint_id for _, c in logs.all(CheckpointCompleted)}
    _, ack = logs.last(CheckpointAck, lambda a: a.checkpoint_id in completed)
    _, frame = logs.last(OperatorEventFrame)
    acks = logs.partition("acks")
    logs.append(acks, ack)
    logs.append(acks, frame)
    report = is_healthy(logs, "repeated")
    assert report.void["events to coordinators that stand twice"] == frame.count
