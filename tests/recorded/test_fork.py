"""A fork goes on from a copy of a checkpoint, on topics of its own; its origin does not notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.audit import audit
from penstock.checkpoint_log.history import Checkpoint
from penstock.client.job_client import JobClient
from penstock.recorded import fork as forking
from penstock.recorded.dry_run import DryRun, Restore, restored
from penstock.recorded.fork import fork
from penstock.recorded.job import RecordedJob
from penstock.recorded.reading import LogReading, Recorded
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointLogRecord,
    CheckpointPart,
    EpochClaimed,
    InputSnapshot,
    OperatorSnapshot,
    SubtaskSnapshot,
    key_of,
)
from penstock.schemas.codec import Record, decode, encode
from penstock.schemas.data import Barrier, RecordFrame
from penstock.schemas.errors import (
    ConfigurationError,
    JobRefused,
    OutcomeUnknown,
    PositionUnavailable,
    StateError,
    TransportError,
)
from penstock.schemas.events import EventFrame, FailoverPolicy, TriggerCheckpoint
from penstock.schemas.frames import pack, unpack
from penstock.schemas.graph import Partitioning
from penstock.schemas.ids import Generation, SubtaskId
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment, Sender, StateHandle
from penstock.schemas.topics import TopicNames
from penstock.subtask_client.protocol.channels import Channel
from penstock.testing import check_logs
from penstock.transport import FencedLog, LogRecord, MemoryBroker, MemoryTransport, Partition
from tests.coordinator.jobs import Plan, make_job, run

from .conftest import Keeping, Ran


def everything(transport: MemoryTransport, job: str) -> dict[Partition, list[LogRecord]]:
    """All that stands on a job's topics."""
    topics = transport.describe_topics(transport.list_topics(f"penstock.{job}."))
    partitions = [Partition(name, i) for name, info in topics.items() for i in range(info.partitions)]
    return {partition: transport.read_all(partition) for partition in partitions}


def healthy(transport: MemoryTransport, *jobs: str) -> None:
    for job in jobs:
        report = audit(transport, job)
        assert report.healthy, str(report)


def go_on(transport: MemoryTransport, job: penstock.Job, plan: Plan, *letters: bytes) -> None:
    """The fork runs until its subtasks have handled more events and a savepoint has been taken."""
    with run(job, transport) as running:
        plan.wait_gateways(*range(job.operators["op"].parallelism))
        for letter in letters:
            for subtask, gateway in plan.gateways.items():
                gateway.send_event(letter)
                plan.wait_handled(letter, subtask)
        assert running.client.savepoint(timeout_s=20).accepted
        running.check()
        assert running.client.stop(timeout_s=20).accepted
        running.wait(20)
    healthy(transport, job.name)


@pytest.mark.parametrize("at", [0, 1])
def test_a_fork_goes_on_from_the_states_of_the_checkpoint_and_its_origin_is_untouched(ran: Ran, at: int) -> None:
    before = everything(ran.transport, "ran")
    made = fork(ran.recorded, "sandbox", ran.checkpoints[at], savepoint=True)
    assert set(made.topics) == {f"penstock.sandbox.{topic}" for topic in ("acks", "checkpoints", "status", "op.events")}
    check_logs(ran.transport, ran.job.renamed("sandbox").settings)
    healthy(ran.transport, "ran", "sandbox")
    plan = Plan()
    sandbox = make_job(plan, "sandbox", parallelism=2, interval=None)
    go_on(ran.transport, sandbox, plan, b"x")
    history = JobClient(ran.transport, "sandbox").history()
    last = history.last
    assert last is not None
    for snapshot in last.subtasks.values():
        assert snapshot.state is not None and snapshot.state.inline is not None
        letters = (b"a", b"b")[: at + 1]
        assert snapshot.state.inline.split(b"\0") == [b"%s%d" % (c, n) for c in letters for n in range(3)] + [b"x"]
    resets = [call for call in plan.calls if call[0] == "reset_to_checkpoint"]
    assert resets[0][1:] == (ran.checkpoints[at], b"2"), "the coordinator had received two greetings"
    assert last.id > ran.checkpoints[at]
    assert everything(ran.transport, "ran") == before


def test_the_log_of_a_fork_says_where_it_comes_from(ran: Ran) -> None:
    fork(ran.recorded, "sandbox", ran.checkpoints[0])
    history = JobClient(ran.transport, "sandbox").history()
    assert history.forked is not None
    assert (history.forked.prefix, history.forked.job) == ("penstock", "ran")
    assert history.forked.checkpoint_id == history.last_id == ran.checkpoints[0]
    origin = ran.recorded.history.checkpoints[ran.checkpoints[0]]
    assert history.last is not None
    assert history.epoch == origin.header.epoch
    assert history.reserved_through == origin.header.reserved_through, "no id is used twice"
    assert set(history.topic_ids) == set(ran.transport.list_topics("penstock.sandbox."))


def test_positions_attempts_and_markers_of_the_copy_fit_together(ran: Ran) -> None:
    fork(ran.recorded, "sandbox", ran.checkpoints[1])
    copy = RecordedJob(ran.transport, "sandbox")
    (checkpoint,) = copy.history.checkpoints.values()
    offsets = ran.transport.offsets([copy.acks])
    for subtask, snapshot in checkpoint.subtasks.items():
        assert 0 < snapshot.attempt < offsets[copy.acks].begin <= snapshot.ack_offset < offsets[copy.acks].end
        (marker,) = [decode(r.value) for r in ran.transport.read_all(copy.events(subtask))]
        assert marker == TriggerCheckpoint(1, checkpoint.id, snapshot.handled_through, True, False)
        assert snapshot.event_position == ran.transport.offsets([copy.events(subtask)])[copy.events(subtask)].end


def test_events_that_the_coordinator_had_not_received_are_handed_over_in_the_fork() -> None:
    broker, plan, held = MemoryBroker(), Plan(), []
    job = make_job(plan, "ran", interval=0.05, checkpoint={"retained": 5})

    def hold(coordinator: Any, checkpoint_id: int, result: Any) -> None:
        if ("handle_event_from_operator", 0, b"up") not in plan.calls:
            result.complete(b"0")
        elif not held:
            held.append((checkpoint_id, result))

    plan.does["checkpoint_coordinator"] = hold
    with run(job, Keeping(broker)) as running:
        plan.wait_gateways(0)
        plan.wait_for(lambda: held, "the call")
        plan.gateways[0].send_event(b"echo from below the cut")
        plan.wait_handled(b"echo from below the cut")
        assert "handle_event_from_operator" not in plan.names()[plan.names().index("checkpoint_coordinator") :]
        held[0][1].complete(b"1")
        plan.wait_for(lambda: ("notify_checkpoint_complete", held[0][0]) in plan.calls, "its notice")
        running.crash_coordinator()
    transport = MemoryTransport(broker)
    fork(RecordedJob(transport, "ran"), "sandbox", held[0][0])
    again = Plan()
    go_on(transport, make_job(again, "sandbox", interval=None), again)
    received = [call[2] for call in again.calls if call[0] == "handle_event_from_operator"]
    assert received[:2] == [b"from below the cut", b"up"], "first what the checkpoint owes, then what is new"


def test_a_fork_may_have_the_same_name_under_another_prefix(ran: Ran) -> None:
    made = fork(ran.recorded, "ran", ran.checkpoints[0], prefix="trial")
    assert {topic.split(".")[0] for topic in made.topics} == {"trial"}
    history = JobClient(ran.transport, "ran", "trial").history()
    assert history.forked is not None
    assert history.forked.prefix == "penstock"
    assert audit(ran.transport, "ran", "trial").healthy


# ---- ranges, of a log made by hand


class ByHand:
    """Job ``ran``: ``up`` feeds ``down``. Checkpoint 7 has ranges in the events and the data of ``down/0``.

    With ``failed`` both of ``up`` had failed before it: of ``up/0`` a range is left that holds nothing, of ``up/1``
    the newer attempt has written nothing but its barrier.
    """

    def __init__(self, *, failed: bool = False) -> None:
        self.transport = MemoryTransport(MemoryBroker())
        self.topics = TopicNames("penstock", "ran")
        self.transport.create_topics(self.topics.specs({"up": 2, "down": 1}, [("up", "down")]))
        events, data = Partition(self.topics.events("down"), 0), Partition(self.topics.data("up", "down"), 0)
        self.write(
            events,
            EventFrame(1, 40, 0, *pack([b"void"])),
            EventFrame(1, 50, 5, *pack([b"a", b"b"])),
            TriggerCheckpoint(1, 6, 7, False, False),
            EventFrame(0, 50, 0, *pack([b"zombie"])),
            EventFrame(1, 50, 7, *pack([b"c"])),
            TriggerCheckpoint(1, 7, 8, False, False),
            EventFrame(1, 50, 8, *pack([b"not of 7"])),
        )
        one, other = Sender("up", 0, 60, 1, 0), Sender("up", 1, 61, 1, 0)
        self.write(
            data,
            RecordFrame(one, 0, *pack([b"before"])),
            RecordFrame(one, 3, *pack([b"r3"])),
            RecordFrame(other, 9, *pack([b"not in a range"])),
            Barrier(one, 4, 6, False, 0),
            RecordFrame(Sender("up", 0, 59, 1, 0), 4, *pack([b"of an older attempt"])),
            RecordFrame(other, 10, *pack([b"s10"])),
            RecordFrame(one, 5, *pack([b"r5"])),
            Barrier(other, 11, 7, False, 0),
        )
        newer = Sender("up", 0, 62, 1, 1)
        self.write(data, *[RecordFrame(newer, i, *pack([b"n%d" % i])) for i in (0, 1)], Barrier(newer, 2, 7, False, 0))
        self.write(Partition(self.topics.acks, 0), *[Barrier(one, 0, 0, False, 0)] * 100)  # filling
        positions = (
            ChannelPosition("up/0", (Segment(1, 7, 1, 0, 60), Segment(8, OPEN_END, 1, 0, -1)), 3),
            ChannelPosition("up/1", (Segment(5, 7, 1, 0, 61), Segment(8, OPEN_END, 1, 0, -1)), 10),
        )
        if failed:
            left = Segment(4, 5, 1, 0, 60), Segment(8, 10, 1, 1, 62), Segment(11, OPEN_END, 1, 1, -1)
            positions = ChannelPosition("up/0", left, 5), positions[1]
        down = SubtaskSnapshot(
            0, 50, 1, 0, 90, StateHandle(5, b"state"), 6, (Segment(1, 5, 1, 0, 50),), 5, 0, positions, False
        )
        ups = tuple(SubtaskSnapshot(i, 60 + i, 1, 0, 91 + i, None, 0, (), 0, 0, (), False) for i in (0, 1))
        if failed:
            ups = tuple(dataclasses.replace(up, attempt=62 + i, generation=1) for i, up in enumerate(ups))
        inputs = (InputSnapshot("up", Partitioning.REBALANCE),)
        self.header = CheckpointCompleted(
            1, 7, False, 0, 0, 2,
            (OperatorSnapshot("up", 2, None, 95, 128, ()), OperatorSnapshot("down", 1, None, 95, 128, inputs)),
            80, (), 1_000,
        )  # fmt: skip
        described = self.transport.describe_topics(self.transport.list_topics("penstock.ran."))
        self.log(
            EpochClaimed(1, -1, 1, 1_000, {n: i.topic_id for n, i in described.items()}, "by hand", "a test"),
            CheckpointPart(7, 0, "up", ups), CheckpointPart(7, 1, "down", (down,)), self.header,
        )  # fmt: skip

    def write(self, partition: Partition, *records: Record) -> None:
        writer = self.transport.writer()
        for record in records:
            writer.append(partition, encode(record), b"")
        writer.close()

    def log(self, *records: CheckpointLogRecord) -> None:
        log = self.transport.claim_log(self.topics.checkpoints, self.topics.transactional_id)
        log.commit([(key_of(record), encode(record)) for record in records])


def restored_events(transport: MemoryTransport, job: str) -> list[bytes]:
    recorded = RecordedJob(transport, job)
    begun = restored(recorded, SubtaskId("down", 0), recorded.checkpoint(7), FailoverPolicy.REPLAY, Restore.RESTART)
    dry_run = DryRun(job, begun)
    log = LogReading(transport, {recorded.events(begun.subtask): begun.begin})
    judged = list(dry_run.judge_all(found for found in log if isinstance(found, Recorded)))
    assert not [one for one in judged if one.verdict.value == "fails"]
    return [event for one in judged for event in one.events]


def restored_records(transport: MemoryTransport, job: str) -> dict[str, list[bytes]]:
    """What each channel of ``down/0`` still gets out of its ranges, by the subtask's own rules."""
    recorded = RecordedJob(transport, job)
    snapshot = recorded.checkpoint(7).subtasks[SubtaskId("down", 0)]
    got: dict[str, list[bytes]] = {}
    for position in snapshot.data_positions:
        channel = Channel(position.sender, position, Generation(2, 0))
        for at in transport.read_all(Partition(recorded.topics.data("up", "down"), 0)):
            record: Any = decode(at.value)
            if record.sender.subtask_id != position.sender or channel.refusal(at.offset, record.sender):
                continue
            assert record.sequence == channel.due(record.sender)
            channel.advance(at.offset, record.sender, record.sequence)
            if isinstance(record, RecordFrame):
                got.setdefault(position.channel, []).extend(unpack(record.count, record.lengths, record.payload))
        assert not channel.ranges, "they are read to their ends"
        assert not channel.ended
    return got


def test_ranges_of_events_and_of_data_give_in_the_fork_what_they_give_in_the_origin() -> None:
    by_hand = ByHand()
    assert restored_events(by_hand.transport, "ran") == [b"a", b"b", b"c"]
    assert restored_records(by_hand.transport, "ran") == {"up/0": [b"r3", b"r5"], "up/1": [b"s10"]}
    fork(RecordedJob(by_hand.transport, "ran"), "sandbox", 7)
    assert restored_events(by_hand.transport, "sandbox") == [b"a", b"b", b"c"]
    assert restored_records(by_hand.transport, "sandbox") == {"up/0": [b"r3", b"r5"], "up/1": [b"s10"]}
    healthy(by_hand.transport, "sandbox")


def test_a_range_that_holds_nothing_does_not_tell_what_is_due_in_the_next() -> None:
    by_hand = ByHand(failed=True)
    assert restored_records(by_hand.transport, "ran") == {"up/0": [b"n0", b"n1"], "up/1": [b"s10"]}
    fork(RecordedJob(by_hand.transport, "ran"), "sandbox", 7)
    assert restored_records(by_hand.transport, "sandbox") == {"up/0": [b"n0", b"n1"], "up/1": [b"s10"]}
    healthy(by_hand.transport, "sandbox")


def test_a_fork_holds_nothing_that_the_checkpoint_does_not_read() -> None:
    by_hand = ByHand()
    fork(RecordedJob(by_hand.transport, "ran"), "sandbox", 7)
    told = {
        str(p): [type(decode(r.value)).__name__ for r in rs]
        for p, rs in everything(by_hand.transport, "sandbox").items()
    }
    assert told["penstock.sandbox.down.events[0]"] == ["EventFrame", "EventFrame", "TriggerCheckpoint"]
    assert told["penstock.sandbox.up.down.data[0]"] == [
        "RecordFrame", "Barrier", "RecordFrame", "RecordFrame", "Barrier", "Barrier"
    ]  # fmt: skip
    assert told["penstock.sandbox.acks[0]"] == ["CheckpointAck"] * 3
    assert told["penstock.sandbox.checkpoints[0]"] == [
        "Forked", "EpochClaimed", "CheckpointPart", "CheckpointPart", "CheckpointCompleted"
    ]  # fmt: skip


def test_progress_is_told_up_to_the_whole() -> None:
    by_hand, told = ByHand(), list[tuple[str, int, int]]()
    fork(RecordedJob(by_hand.transport, "ran"), "sandbox", 7, tell=lambda *what: told.append(what))
    assert told[0] == ("records", 0, told[0][2])
    assert told[-1][1] == told[-1][2]


# ---- states in state storage


def stored_job(tmp_path: Path, name: str, plan: Plan) -> penstock.Job:
    return make_job(
        plan, name, interval=None, checkpoint={"inline_state_max": 1, "retained": 1},
        state_storage=f"file://{tmp_path}",
    )  # fmt: skip


def test_a_fork_has_files_of_its_own_and_neither_job_reaches_the_others(tmp_path: Path) -> None:
    transport, plan = MemoryTransport(MemoryBroker()), Plan()
    go_on(transport, stored_job(tmp_path, "ran", plan), plan, b"event")
    recorded = RecordedJob(transport, "ran")
    savepoint = recorded.history.last_id
    with pytest.raises(JobRefused, match=r"has states in state storage \(1, .*--state-storage URL"):
        fork(recorded, "sandbox", savepoint)
    assert transport.list_topics("penstock.sandbox.") == []
    made = fork(recorded, "sandbox", savepoint, state_storage=f"file://{tmp_path}")
    assert made.states == 1

    def files(job: str) -> dict[str, bytes]:
        folder = tmp_path / f"penstock.{job}"
        return {
            str(p.relative_to(folder)): p.read_bytes()
            for p in folder.rglob("*")
            if p.is_file() and p.name != "owner.json"
        }

    original = files("ran")
    assert files("sandbox") == original
    again = Plan()
    go_on(transport, stored_job(tmp_path, "sandbox", again), again, b"more")
    assert files("ran") == original
    for path in (tmp_path / "penstock.ran").rglob("*"):
        if path.is_file():
            path.unlink()
    transport.delete_topics(transport.list_topics("penstock.ran."))
    last = Plan()
    go_on(transport, stored_job(tmp_path, "sandbox", last), last, b"and more")
    assert [c for c in last.calls if c[0] == "reset_to_checkpoint"]


def test_a_damaged_state_is_not_forked(tmp_path: Path) -> None:
    """Section 7.6: a copy would be of no use, and its error would come late."""
    transport, plan = MemoryTransport(MemoryBroker()), Plan()
    go_on(transport, stored_job(tmp_path, "ran", plan), plan, b"event")
    recorded = RecordedJob(transport, "ran")
    (location,) = recorded.checkpoint(recorded.history.last_id, savepoint=False).locations()
    file = tmp_path / "penstock.ran" / location
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"is damaged: it has \d+ bytes and should have \d+"):
        fork(recorded, "sandbox", recorded.history.last_id, state_storage=f"file://{tmp_path}")
    assert transport.list_topics("penstock.sandbox.") == []


def test_a_folder_of_states_that_belongs_to_another_job_is_left_as_it_is(tmp_path: Path) -> None:
    transport, plan = MemoryTransport(MemoryBroker()), Plan()
    go_on(transport, stored_job(tmp_path, "ran", plan), plan, b"event")
    elsewhere, other = MemoryTransport(MemoryBroker()), Plan()
    go_on(elsewhere, stored_job(tmp_path, "sandbox", other), other, b"of another broker")
    folder = tmp_path / "penstock.sandbox"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    recorded = RecordedJob(transport, "ran")
    with pytest.raises(JobRefused, match="holds the states of another job"):
        fork(recorded, "sandbox", recorded.history.last_id, state_storage=f"file://{tmp_path}")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert transport.list_topics("penstock.sandbox.") == []


# ---- refusals


def test_what_cannot_be_forked_is_refused_and_nothing_is_made(ran: Ran) -> None:
    transport, job = ran.transport, ran.recorded
    topics = transport.list_topics("")
    with pytest.raises(JobRefused, match="there is a job 'ran' under prefix 'penstock' already"):
        fork(job, "ran", ran.checkpoints[0])
    with pytest.raises(JobRefused, match=f"has no checkpoint 99 any more; it has: {ran.checkpoints[0]}, "):
        fork(job, "sandbox", 99)
    with pytest.raises(ConfigurationError, match="cannot be part of a topic name"):
        fork(job, "Sand Box", ran.checkpoints[0])
    assert transport.list_topics("") == topics


@pytest.mark.damages_logs("a topic deleted")
def test_a_topic_that_is_gone_is_named(ran: Ran) -> None:
    job = ran.recorded
    _ = job.history
    ran.transport.delete_topics(["penstock.ran.acks"])
    with pytest.raises(JobRefused, match=r"lacks penstock\.ran\.acks, which checkpoint"):
        fork(job, "sandbox", ran.checkpoints[0])


def test_a_range_that_is_gone_is_named_with_the_ways_out() -> None:
    by_hand = ByHand()
    by_hand.transport.truncate({Partition(by_hand.topics.events("down"), 0): 3})
    with pytest.raises(PositionUnavailable, match=r"needs penstock\.ran\.down\.events\[0\] from offset 1.*savepoint"):
        fork(RecordedJob(by_hand.transport, "ran"), "sandbox", 7)
    assert by_hand.transport.list_topics("penstock.sandbox.") == []


def test_a_querys_checkpoint_cannot_be_forked() -> None:
    by_hand = ByHand()
    by_hand.log(dataclasses.replace(by_hand.header, checkpoint_id=8, committer="a query", parts=0))
    with pytest.raises(JobRefused, match="belongs to a Structured Streaming query"):
        fork(RecordedJob(by_hand.transport, "ran"), "sandbox", 8)


class Failing(MemoryTransport):
    """Fails where a fork commits, and with ``stuck`` also where it is to be undone."""

    stuck = False

    def claim_log(self, topic: str, owner: str, timeout_s: float = 30.0) -> Any:
        assert "sandbox" in owner, "the origin is never fenced"
        log = super().claim_log(topic, owner, timeout_s)

        class Lost:
            def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
                if [key for key, _ in records] != ["forked"]:
                    raise OutcomeUnknown("no answer came")
                log.commit(records)

            def close(self) -> None:
                log.close()

        lost: FencedLog = Lost()
        return lost

    def delete_topics(self, names: Any, timeout_s: float = 30.0) -> None:
        if self.stuck:
            raise TransportError("cannot be deleted")
        super().delete_topics(names, timeout_s)


def test_a_fork_that_fails_half_way_leaves_nothing_or_says_what_is_left(ran: Ran) -> None:
    transport = Failing(ran.transport.broker)
    with pytest.raises(OutcomeUnknown) as caught:
        fork(RecordedJob(transport, "ran"), "sandbox", ran.checkpoints[0])
    assert not getattr(caught.value, "__notes__", [])
    assert transport.list_topics("penstock.sandbox.") == []
    transport.stuck = True
    with pytest.raises(OutcomeUnknown) as caught:
        fork(RecordedJob(transport, "ran"), "sandbox", ran.checkpoints[0])
    assert "purge it (penstock purge sandbox)" in caught.value.__notes__[0]
    with pytest.raises(JobRefused, match=r"purge it \(penstock purge sandbox\)"):
        fork(RecordedJob(ran.transport, "ran"), "sandbox", ran.checkpoints[0])


def test_of_two_forks_to_one_name_the_second_leaves_the_first_alone(ran: Ran) -> None:
    """Both found the name free; the first has come to its end, or is still at it."""
    names = TopicNames("penstock", "sandbox")
    late = [forking._Fork(ran.recorded, names, n, False, None) for n in ran.checkpoints]
    early = forking._Fork(ran.recorded, names, ran.checkpoints[0], False, None)
    refused = []

    def meanwhile(what: str, done: int, total: int) -> None:
        with pytest.raises(
            JobRefused, match="'sandbox' under prefix 'penstock' is being begun by another process"
        ) as error:
            late[0].make(lambda *_: None)
        refused.append(error)

    early.make(meanwhile)
    assert refused
    with pytest.raises(JobRefused, match="is being begun by another process"):
        late[1].make(lambda *_: None)
    assert JobClient(ran.transport, "sandbox").history().lineage == [ran.checkpoints[0]]
    plan = Plan()
    go_on(ran.transport, make_job(plan, "sandbox", parallelism=2, interval=None), plan, b"x")


def test_of_two_forks_that_look_at_once_the_one_that_claims_last_goes_on(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, transport = TopicNames("penstock", "sandbox"), ran.transport
    first, second = (forking._Fork(ran.recorded, names, n, False, None) for n in ran.checkpoints)
    claim = MemoryTransport.claim_log

    def overtaken(self: MemoryTransport, *arguments: Any) -> FencedLog:
        claimed = claim(self, *arguments)
        monkeypatch.undo()
        second.make(lambda *_: None)
        return claimed

    monkeypatch.setattr(MemoryTransport, "claim_log", overtaken)
    with pytest.raises(JobRefused, match="is being begun by another process"):
        first.make(lambda *_: None)
    assert JobClient(transport, "sandbox").history().lineage == [ran.checkpoints[1]]


def test_a_fork_that_is_fenced_deletes_nothing(ran: Ran) -> None:
    made = forking._Fork(ran.recorded, TopicNames("penstock", "sandbox"), ran.checkpoints[0], False, None)

    def fence(what: str, done: int, total: int) -> None:
        ran.transport.claim_log("penstock.sandbox.checkpoints", "penstock.sandbox.coordinator")

    with pytest.raises(JobRefused, match=r"begun by another process, meanwhile.*purge it"):
        made.make(fence)
    assert len(ran.transport.list_topics("penstock.sandbox.")) == 4


def test_from_a_fork_that_was_killed_no_coordinator_starts(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """However early that was: its topics may all be empty."""
    monkeypatch.setattr(forking._Fork, "_copy_records", lambda *_: (_ for _ in ()).throw(TransportError("killed")))
    monkeypatch.setattr(forking._Fork, "_undo", lambda *_: None)
    with pytest.raises(TransportError, match="killed"):
        fork(ran.recorded, "sandbox", ran.checkpoints[0])
    with pytest.raises(JobRefused, match=r"'sandbox' under prefix 'penstock' is a fork that has not come to its end"):
        audit(ran.transport, "sandbox")
    match = r"job sandbox is a fork of job ran that has not come to its end.*penstock purge sandbox"
    with (
        pytest.raises(JobRefused, match=match),
        run(make_job(Plan(), "sandbox", parallelism=2), ran.transport) as running,
    ):
        running.wait(20)


def test_what_is_truncated_while_it_is_copied_ends_the_fork_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_hand = ByHand()
    job = RecordedJob(by_hand.transport, "ran")

    def truncate(checkpoint: Checkpoint) -> int:
        by_hand.transport.truncate({Partition(by_hand.topics.events("down"), 0): 4})
        return 0

    monkeypatch.setattr(forking, "offsets_to_read", truncate)
    with pytest.raises(PositionUnavailable, match=r"is no longer kept\. Take a savepoint"):
        fork(job, "sandbox", 7)
    assert by_hand.transport.list_topics("penstock.sandbox.") == []


def test_a_job_under_another_name_keeps_every_setting() -> None:
    job = penstock.Job("one")
    for setting in dataclasses.fields(job):
        if setting.name in ("name", "operators"):
            continue
        changed: Any = {
            "checkpoint": penstock.CheckpointSettings(interval=7.0),
            "restart": penstock.RestartStrategy(budget=7),
            "prefix": "other",
            "state_storage": "file:///elsewhere",
        }.get(setting.name, 7)
        assert getattr(penstock.Job("one", **{setting.name: changed}).renamed("two"), setting.name) == changed


def purged_and_forked_again(ran: Ran) -> None:
    """Somebody took the fork that is being made for one that was killed."""
    JobClient(ran.transport, "sandbox").purge()
    fork(ran.recorded, "sandbox", ran.checkpoints[1])


@pytest.mark.parametrize("at", ["records", "copying", "states"])
def test_a_fork_that_is_purged_under_way_leaves_the_job_alone_that_has_its_name_then(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    made = forking._Fork(ran.recorded, TopicNames("penstock", "sandbox"), ran.checkpoints[0], False, None)
    anew: list[dict[Partition, list[LogRecord]]] = []

    def take_over() -> None:
        if not anew:
            monkeypatch.undo()
            anew.append({})
            purged_and_forked_again(ran)
            anew[0] = everything(ran.transport, "sandbox")

    run_copying = forking.Copying.run

    def copy(copying: Any) -> Any:
        copied = run_copying(copying)
        take_over()
        if at == "copying":
            raise TransportError("the topic is another one")
        return copied

    if at != "records":
        monkeypatch.setattr(forking.Copying, "run", copy)
    with pytest.raises(JobRefused, match=r"has been purged, or begun by another process, meanwhile"):
        made.make(lambda *_: take_over() if at == "records" else None)
    assert everything(ran.transport, "sandbox") == anew[0]
    healthy(ran.transport, "sandbox")
    plan = Plan()
    go_on(ran.transport, make_job(plan, "sandbox", parallelism=2, interval=None), plan, b"x")


def test_an_origin_that_is_purged_and_made_anew_while_it_is_copied_is_not_forked(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that has its name then may have a checkpoint of that number too."""
    run_copying = forking.Copying.run

    def copy(copying: Any) -> Any:
        copied = run_copying(copying)
        ran.transport.delete_topics(ran.transport.list_topics("penstock.ran."))
        for _ in range(2):
            plan = Plan()
            with run(make_job(plan, "ran", parallelism=2, interval=None), ran.transport) as running:
                plan.wait_gateways(0, 1)
                assert running.client.stop(savepoint=True, timeout_s=20).accepted
        return copied

    monkeypatch.setattr(forking.Copying, "run", copy)
    with pytest.raises(JobRefused, match="job ran was purged while it was copied"):
        fork(ran.recorded, "sandbox", ran.checkpoints[0])
    assert ran.transport.list_topics("penstock.sandbox.") == []
