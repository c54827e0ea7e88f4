"""The runtime over logs in memory: what only threads, user code and real records can show."""

from __future__ import annotations

import dataclasses
import math
import threading
import time

import pytest

from penstock.schemas import acks, events
from penstock.schemas.errors import (
    AppendFailed,
    EventTooLarge,
    StartTimeout,
    StateError,
    SubtaskError,
    Superseded,
    TopicMissing,
)
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.ids import SubtaskId
from penstock.schemas.state import StateHandle
from penstock.subtask_client import runtime
from penstock.subtask_client.api import FencingToken, Finished, Idle, Progress, Subtask
from penstock.subtask_client.protocol.effects import Departure, Leave
from penstock.subtask_client.protocol.phases import Phase
from penstock.subtask_client.runtime import SubtaskRuntime

DEADLINE_S = 10.0


def test_events_are_handled_in_order_and_reported_handled(rig):
    """Section 1, G1; section 6."""
    rig.run()
    start = rig.start()
    rig.append(rig.frame(0, b"a", b"b"), rig.frame(2, b"c"))
    beat = rig.handled(3)
    assert rig.called("handle_operator_event") == [(b"a",), (b"b",), (b"c",)]
    assert (beat.sender.attempt, beat.sender.epoch) == (start.attempt, 1)


def test_the_key_of_a_record_names_subtask_and_attempt(rig):
    """Section 3."""
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    keys = [record.key for record in rig.transport.read_all(rig.acks_partition)]
    assert keys[0] == b"reader/0:"
    assert set(keys[1:]) == {b"reader/0:0"}


@pytest.mark.parametrize("policy", list(FailoverPolicy))
def test_after_a_restart_in_place_the_policy_decides_what_is_handled_again(rig, policy):
    """Section 5.3."""
    rig.run()
    rig.start(policy=policy)
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    rig.append(events.Reset(1, 1))
    second = rig.start(generation=1, event_position=1, policy=policy)
    fresh = rig.frame(0 if policy is FailoverPolicy.RESET else 1, b"b", attempt=second.attempt)
    rig.append(fresh)
    rig.expect(acks.Heartbeat, lambda beat: beat.sender.generation == 1 and beat.handled_through > 0)
    rig.append(rig.marker(1, fresh.sequence + 1))
    again = [] if policy is FailoverPolicy.RESET else [b"a"]
    assert rig.expect(acks.CheckpointAck).state.inline == b",".join([*again, b"b"])
    assert len(rig.objects) == 2
    assert [name for name, *_ in rig.calls].index("close") < [name for name, *_ in rig.calls].index("open", 1)


def test_a_snapshot_is_acked_behind_everything_sent_up_to_it(rig):
    """Section 7.6."""

    class Sends(Subtask):
        def open(self, context):
            self.context = context

        def handle_operator_event(self, event):
            self.context.send_event_to_coordinator(b"re " + event)

        def snapshot_state(self, checkpoint_id):
            self.context.send_event_to_coordinator(b"in snapshot")
            return b"s"

    rig.make = Sends
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a", b"b"), rig.marker(1, 2), rig.frame(2, b"c"))
    ack = rig.expect(acks.CheckpointAck)
    assert ack.sent_sequence == 3
    assert rig.events_up()[:3] == [b"re a", b"re b", b"in snapshot"]
    at = rig.read.index(ack)
    assert sum(r.count for r in rig.read[:at] if isinstance(r, acks.OperatorEventFrame)) == 3


def test_a_state_is_restored_after_open_and_before_any_event(rig):
    """Section 5.3."""
    rig.run()
    rig.start(checkpoint_id=4, state=StateHandle(3, inline=b"abc"), next_checkpoint_id=5)
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    assert rig.calls == [("open", 0), ("restore_state", 4, b"abc"), ("handle_operator_event", b"a")]


@pytest.mark.parametrize(
    ("handle", "restored"), [(None, None), (StateHandle(0, inline=b""), b""), (StateHandle(3, location="x"), b"abc")]
)
def test_missing_empty_and_stored_states_are_restored_as_what_they_are(rig, handle, restored):
    rig.storage.states["x"] = b"abc"
    rig.run()
    rig.start(checkpoint_id=4, state=handle, next_checkpoint_id=5)
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    assert rig.called("restore_state") == [(4, restored)]


def test_without_a_checkpoint_nothing_is_restored(rig):
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    assert not rig.called("restore_state")


def test_a_state_of_the_wrong_length_fails_the_attempt_and_names_the_way_out(rig):
    """Section 11: state that cannot be read back."""
    rig.run()
    rig.start(checkpoint_id=4, state=StateHandle(9, inline=b"abc"), next_checkpoint_id=5)
    failed = rig.expect(acks.Failed)
    assert "has 3 bytes and should have 9" in failed.cause
    rig.expect(acks.Hello)


@pytest.mark.parametrize("found", [b"as it wa", b"as it waz"])
def test_a_damaged_state_fails_the_attempt(rig, found):
    """Section 7.6: size and checksum are those of what was stored."""
    handle = StateHandle.stored("there", b"as it was")
    rig.storage.states["there"] = found
    rig.run()
    rig.start(checkpoint_id=4, state=handle, next_checkpoint_id=5)
    failed = rig.expect(acks.Failed)
    assert "its state in checkpoint 4 cannot be read back" in failed.cause
    rig.expect(acks.Hello)


def test_processing_goes_on_while_a_state_is_stored(rig):
    """Section 7.6."""
    rig.settings = rig.settings_with(inline_state_max=0)
    rig.storage.gate.clear()
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"), rig.marker(1, 1), rig.frame(1, b"b"))
    rig.expect(acks.SnapshotTaken)
    assert rig.storage.putting.wait(DEADLINE_S)
    beat = rig.handled(2)
    rig.storage.gate.set()
    ack = rig.expect(acks.CheckpointAck)
    assert ack.handled_through == 1
    assert rig.storage.states == {ack.state.location: b"a"}
    assert ack.state == StateHandle.stored(ack.state.location, b"a")
    assert rig.read.index(beat) < rig.read.index(ack)


def test_a_periodic_heartbeat_names_the_upload_that_a_checkpoint_waits_for(rig):
    """Section 1, G6."""
    rig.settings = rig.settings_with(inline_state_max=0)
    rig.storage.gate.clear()
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"), rig.marker(1, 1))
    rig.expect(acks.Heartbeat, lambda beat: "uploading the state of checkpoint 1" in beat.step)


def test_a_state_that_lands_after_its_checkpoint_was_aborted_is_deleted(rig):
    """Section 7.8."""
    rig.settings = rig.settings_with(inline_state_max=0)
    rig.storage.gate.clear()
    rig.run()
    start = rig.start()
    rig.append(rig.frame(0, b"a"), rig.marker(1, 1))
    rig.expect(acks.SnapshotTaken)
    assert rig.storage.putting.wait(DEADLINE_S)
    rig.append(events.CheckpointAborted(1, 1, "declined"), rig.frame(1, b"b"))
    rig.handled(2)
    assert rig.called("notify_checkpoint_aborted") == [(1, "declined")]
    rig.storage.gate.set()
    rig.append(rig.marker(2, 2))
    second = rig.expect(acks.CheckpointAck)
    assert second.checkpoint_id == 2
    assert list(rig.storage.states) == [second.state.location]
    assert len(rig.storage.deleted) == 1
    rig.stop(start)
    rig.ended()


def test_a_state_that_cannot_be_stored_declines_its_checkpoint(rig):
    rig.settings = rig.settings_with(inline_state_max=0)
    rig.storage.error = StateError("no state storage: set state_storage")
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"), rig.marker(1, 1))
    assert "set state_storage" in rig.expect(acks.CheckpointDecline).reason


@pytest.mark.parametrize(
    "callback",
    [
        "open", "restore_state", "handle_operator_event", "snapshot_state", "notify_checkpoint_complete",
        "notify_checkpoint_aborted",
    ],
)  # fmt: skip
def test_whatever_callback_raises_the_attempt_fails_and_another_begins_in_place(rig, callback):
    """Section 8."""
    rig.fail[callback] = RuntimeError("boom")
    rig.run()
    rig.start(checkpoint_id=0, state=StateHandle(0, inline=b""), event_position=0)
    script = [
        rig.frame(0, b"a"), rig.marker(1, 1), events.CheckpointAborted(1, 1, "declined"), rig.marker(2, 1),
        events.CheckpointCompleted(1, 2),
    ]  # fmt: skip
    rig.append(*script)
    failed = rig.expect(acks.Failed)
    assert callback in failed.cause
    assert "RuntimeError: boom" in failed.cause
    assert "conftest.py" in failed.cause  # where it came through
    start = rig.start(generation=1, next_checkpoint_id=3, event_position=0)
    rig.expect(acks.Heartbeat, lambda beat: beat.sender.attempt == start.attempt and beat.handled_through == 1)
    assert len(rig.objects) == 2
    assert rig.called("close") == [()]
    rig.stop(start)
    assert rig.ended().departure is Departure.STOPPED


class Takes(Subtask):
    """Takes events, and that is all."""

    def handle_operator_event(self, event):
        pass


def test_a_factory_that_raises_fails_the_attempt(rig):
    made = []

    def make():
        made.append(1)
        if len(made) == 1:
            raise RuntimeError("no object")
        return Takes()

    rig.make = make
    rig.run()
    rig.start()
    assert "no object" in rig.expect(acks.Failed).cause
    rig.start(generation=1)
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)


def test_close_that_raises_is_only_logged(rig, caplog):
    rig.fail["close"] = RuntimeError("boom in close")
    rig.run()
    start = rig.start()
    rig.stop(start)
    assert rig.ended().departure is Departure.STOPPED
    assert "boom in close" in caplog.text
    assert "job=job operator=reader subtask=0 attempt=0" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_no_exception_leaves_through_run_and_the_object_is_closed(rig, error):
    rig.fail["handle_operator_event"] = error
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"))
    assert rig.ended() is error
    assert rig.called("close") == [()]


def test_a_state_that_is_not_bytes_ends_the_job_with_the_way_out(rig):
    """Section 8: a mistake in the job is no fault that another attempt could cure."""

    class Wrong(Subtask):
        def snapshot_state(self, checkpoint_id):
            return {"a": 1}

    rig.make = Wrong
    rig.run()
    rig.start()
    rig.append(rig.marker(1, 0))
    cause = rig.expect(acks.Refused).cause
    assert "ConfigurationError" in cause
    assert "reader/0" in cause
    assert "dict" in cause
    assert "state codec" in cause


def test_events_and_states_go_through_their_codecs(rig):
    @dataclasses.dataclass
    class Split:
        path: str
        rows: int

    class Reads(Subtask):
        def open(self, context):
            self.context, self.rows = context, 0

        def restore_state(self, checkpoint_id, state):
            self.rows = state["rows"]

        def handle_operator_event(self, event):
            self.rows += event.rows
            self.context.send_event_to_coordinator(Split(event.path, self.rows))

        def snapshot_state(self, checkpoint_id):
            return {"rows": self.rows}

    from penstock.schemas.user_codec import DataclassCodec

    codec = DataclassCodec(Split)
    rig.make = Reads
    rig.options = {"codec": Split, "state_codec": "json"}
    rig.run()
    rig.start(checkpoint_id=0, state=StateHandle(10, inline=b'{"rows":7}'))
    rig.append(rig.frame(0, codec.encode(Split("p", 5))), rig.marker(1, 1))
    assert rig.expect(acks.CheckpointAck).state.inline == b'{"rows":12}'
    assert [codec.decode(event) for event in rig.events_up()] == [Split("p", 12)]


def test_an_unreadable_payload_fails_the_attempt_and_names_what_was_expected(rig):
    """Section 1, G2: an event is never skipped."""
    rig.options = {"codec": "json"}
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"{"))
    assert "expected JSON" in rig.expect(acks.Failed).cause


def test_garbage_and_foreign_records_are_logged_with_their_offset_and_kept_out(rig, caplog):
    """Section 11."""
    rig.run()
    rig.start()
    from penstock.schemas.codec import encode

    rig.append(b"garbage", encode(acks.RunStarted("r", "h")), rig.frame(0, b"a"))
    rig.handled(1)
    assert rig.called("handle_operator_event") == [(b"a",)]
    assert "offset 1 of penstock.job.reader.events[0] is kept out" in caplog.text
    assert "offset 2 of penstock.job.reader.events[0] is kept out: a RunStarted" in caplog.text
    beat = rig.expect(acks.Heartbeat, lambda beat: beat.metrics)
    assert beat.metrics["penstock_dropped_unreadable"] == 2


def test_a_superseded_instance_raises_closes_and_says_no_hello(rig):
    """Section 4, attempt."""
    rig.run()
    start = rig.start()
    rig.append(dataclasses.replace(start, attempt=99, nonce="other"))
    error = rig.ended()
    assert isinstance(error, Superseded)
    assert "attempt 99" in str(error)
    assert rig.called("close") == [()]
    rig._catch_up()
    assert [type(r) for r in rig.read].count(acks.Hello) == 1


def test_a_thawed_instance_below_the_truncation_point_finds_that_it_was_superseded(rig):
    """Section 11: frozen, superseded, thawed."""
    frozen, thaw = threading.Event(), threading.Event()

    class Freezes(Subtask):
        def handle_operator_event(self, event):
            frozen.set()
            assert thaw.wait(DEADLINE_S)

    rig.make = Freezes
    rig.run()
    start = rig.start()
    rig.append(rig.frame(0, b"a"))
    assert frozen.wait(DEADLINE_S)
    rig.append(rig.frame(1, b"b"), rig.frame(2, b"c"))
    last = rig.append(dataclasses.replace(start, attempt=99, nonce="other"))
    rig.transport.truncate({rig.events_partition: last})
    thaw.set()
    assert isinstance(rig.ended(), Superseded)


def test_a_truncated_position_without_successor_fails_the_attempt_in_place(rig):
    frozen, thaw = threading.Event(), threading.Event()

    class Freezes(Subtask):
        def handle_operator_event(self, event):
            frozen.set()
            assert thaw.wait(DEADLINE_S)

    rig.make = Freezes
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"))
    assert frozen.wait(DEADLINE_S)
    rig.append(rig.frame(1, b"b"))
    last = rig.append(rig.frame(2, b"c"))
    rig.transport.truncate({rig.events_partition: last})
    thaw.set()
    assert "offset 2 is wanted" in rig.expect(acks.Failed).cause
    rig.expect(acks.Hello)


def test_stop_returns_normally_with_its_reason(rig):
    """Section 4, run."""
    rig.run()
    rig.stop(rig.start())
    assert rig.ended() == Leave(Departure.STOPPED, "the job stops")


def test_a_hello_answered_by_stop_never_makes_an_object(rig):
    rig.run()
    hello, attempt = rig.hello()
    rig.append(events.Stop(1, attempt, hello.nonce, "a newer run owns the job"))
    assert rig.ended() == Leave(Departure.STOPPED, "a newer run owns the job")
    assert rig.objects == []


@pytest.mark.parametrize("answered", [False, True])
def test_asked_to_stop_by_its_host_it_leaves_cleanly(rig, answered):
    rig.run()
    if answered:
        rig.start()
        rig.append(rig.frame(0, b"a"))
        rig.handled(1)
    else:
        rig.hello()
    rig.stop_requested.set()
    assert rig.ended().departure is Departure.STOPPED
    assert len(rig.called("close")) == answered


def test_a_finished_subtask_returns_when_a_completed_checkpoint_contains_its_end(rig):
    """Section 8."""

    class Works(Subtask):
        steps = 0

        def open(self, context):
            self.context = context

        def poll(self):
            self.steps += 1
            self.context.send_event_to_coordinator(b"%d" % self.steps)
            return Finished() if self.steps == 3 else Progress()

    rig.make = Works
    rig.run()
    rig.start()
    rig.expect(acks.Finished)
    assert rig.events_up() == [b"1", b"2", b"3"]
    rig.append(rig.marker(1, 0))
    assert not rig.expect(acks.CheckpointAck).finished
    rig.append(events.CheckpointCompleted(1, 1))
    rig.expect(acks.Finished)
    rig.append(rig.marker(2, 0))
    assert rig.expect(acks.CheckpointAck).finished
    rig.append(events.CheckpointCompleted(1, 2))
    assert rig.ended().departure is Departure.FINISHED
    assert rig.objects[0].steps == 3


def test_an_idle_poll_is_not_called_again_before_its_time_or_an_event(rig):
    polled = []

    class Waits(Takes):
        def poll(self):
            polled.append(1)
            return Idle(3600)

    rig.make = Waits
    rig.run()
    rig.start()
    for n in range(3):
        rig.append(rig.frame(n, b"a"))
        rig.handled(n + 1)
    for _ in range(3):
        rig.expect(acks.Heartbeat, lambda beat: beat.step_age_ms >= 50)
    assert 3 <= len(polled) <= 5


def test_an_idle_poll_is_called_again_when_its_time_has_come(rig):
    polled = threading.Semaphore(0)

    class Ticks(Subtask):
        def poll(self):
            polled.release()
            return Idle(0.01)

    rig.make = Ticks
    rig.run()
    rig.start()
    for _ in range(3):
        assert polled.acquire(timeout=DEADLINE_S)


def test_a_poll_that_raises_fails_the_attempt_and_nonsense_ends_the_job(rig):
    results = [RuntimeError("boom"), None]

    class Polls(Subtask):
        def poll(self):
            result = results.pop(0) if results else Idle()
            if isinstance(result, Exception):
                raise result
            return result

    rig.make = Polls
    rig.run()
    rig.start()
    assert "boom" in rig.expect(acks.Failed).cause
    rig.start(generation=1)
    assert "poll returned None" in rig.expect(acks.Refused).cause


def test_heartbeats_go_on_while_a_handler_blocks_and_name_the_event_exactly(rig):
    """Section 8: a thread of their own, which user code never blocks."""
    blocked, go_on = threading.Event(), threading.Event()

    class Blocks(Subtask):
        def open(self, context):
            context.metrics.gauge("depth").set(4)
            context.metrics.counter("opened").inc()

        def handle_operator_event(self, event):
            if event == b"block":
                blocked.set()
                assert go_on.wait(DEADLINE_S)

    rig.make = Blocks
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a", b"b", b"block", b"c"))
    assert blocked.wait(DEADLINE_S)
    early = rig.expect(acks.Heartbeat, lambda beat: beat.handled_through == 2)
    assert early.handled_through == 2  # two have returned, the third is under way
    first = rig.expect(acks.Heartbeat, lambda beat: beat.metrics and beat.step == "handling event 2")
    later = rig.expect(acks.Heartbeat, lambda beat: beat.metrics and beat.step_age_ms > first.step_age_ms)
    assert later.handled_through == 2
    assert later.metrics["depth"] == 4
    assert later.metrics["opened"] == 1
    go_on.set()
    assert rig.handled(4).handled_through == 4


def test_there_is_no_heartbeat_before_start(rig):
    rig.run()
    rig.hello()
    reader = rig.transport.reader({rig.acks_partition: 1})
    assert reader.poll(3 * rig.settings.heartbeat_interval) == []


def test_nobody_answering_is_a_start_timeout(rig):
    rig.settings = rig.settings_with(start_timeout=0.05)
    rig.run()
    error = rig.ended()
    assert isinstance(error, StartTimeout)
    assert "is the job's coordinator running" in str(error)


def test_a_missing_topic_is_said_at_once(rig):
    rig.transport.delete_topics([rig.events_partition.topic])
    rig.run()
    assert isinstance(rig.ended(), TopicMissing)


def test_a_broken_writer_fails_the_attempt_which_goes_on_with_a_new_one(rig):
    """Section 6: nothing may follow a hole."""
    broken = threading.Event()
    make_writer = rig.transport.writer

    class Breaks:
        def __init__(self):
            self.inner = make_writer()
            self.failed = False

        def append(self, partition, value, key=None, on_outcome=None):
            if broken.is_set() or self.failed:
                broken.clear()
                self.failed = True
                raise AppendFailed("refused")
            self.inner.append(partition, value, key, on_outcome)

        def close(self, timeout_s=5.0):
            self.inner.close(timeout_s)

    rig.transport.writer = Breaks
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    broken.set()
    assert rig.expect(acks.Failed).cause == "refused"
    start = rig.start(generation=1, expected_sequence=0)
    rig.expect(acks.Heartbeat, lambda beat: beat.sender.attempt == start.attempt and beat.handled_through == 1)


def test_the_context_says_who_and_where_and_ends_with_its_attempt(rig, recorder):
    """Section 4: (epoch, attempt) is the fencing token."""
    rig.run()
    start = rig.start(epoch=6, expected_epoch=6)
    rig.append(rig.frame(0, b"a", epoch=6))
    rig.handled(1)
    context = rig.objects[0].context
    assert (context.job, context.operator, context.subtask, context.parallelism) == ("job", "reader", 0, 1)
    assert context.fencing_token == FencingToken(6, start.attempt)
    assert context.attempt == start.attempt
    with pytest.raises(SubtaskError, match="belongs to the thread"):
        context.send_event_to_coordinator(b"x")
    rig.stop(dataclasses.replace(start, epoch=6))
    rig.ended()
    with pytest.raises(SubtaskError, match="the attempt has ended"):
        context.send_event_to_coordinator(b"x")


def test_an_event_larger_than_a_record_is_refused_where_it_is_sent(rig):
    raised = []

    class Sends(Subtask):
        def open(self, context):
            self.context = context

        def handle_operator_event(self, event):
            try:
                self.context.send_event_to_coordinator(b"x" * 2_000_000)
            except EventTooLarge as error:
                raised.append(str(error))
            self.context.send_event_to_coordinator(b"fits")

    rig.make = Sends
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a"))
    assert rig.expect(acks.OperatorEventFrame).sequence == 0
    assert "2000000 bytes" in raised[0]
    assert rig.events_up() == [b"fits"]


def test_the_trace_names_job_operator_subtask_attempt_and_checkpoint_in_each_line(rig, caplog):
    caplog.set_level("DEBUG", logger="penstock.subtask")
    rig.run()
    start = rig.start()
    rig.append(rig.frame(0, b"a"), rig.marker(3, 1))
    rig.expect(acks.CheckpointAck)
    rig.stop(start)
    rig.ended()
    lines = [r.getMessage() for r in caplog.records if r.name == "penstock.subtask"]
    assert lines
    assert all(line.startswith("job=job operator=reader subtask=0 attempt=") for line in lines)
    assert any(" checkpoint=3 > Write CheckpointAck" in line for line in lines)


def test_the_traceback_of_a_failure_that_repeats_is_told_once(rig, caplog):
    class Polls(Subtask):
        def poll(self):
            raise RuntimeError("boom")

    rig.make = Polls
    rig.run()
    for generation in range(3):
        rig.start(generation=generation)
        rig.expect(acks.Failed)
    told = [record for record in caplog.records if "boom" in record.getMessage()]
    assert [record.exc_info is not None for record in told] == [True, False, False]


class Lists(Subtask):
    """Takes lists of events, and has records to emit."""

    def __init__(self, calls, fails_with=None):
        self.calls, self.fails_with = calls, fails_with

    def open(self, context):
        self.context = context

    def handle_operator_events(self, events):
        self.calls.append(list(events))
        events.clear()  # it is the subtask's own
        if (error := self.fails_with) is not None:
            raise error

    def handle_operator_event(self, event):
        raise AssertionError("has a handler for lists")


def test_a_subtask_with_a_handler_for_lists_gets_what_a_record_holds_decoded_and_counted(rig):
    """Section 6: all of a list counts as handled when the handler has returned."""
    rig.options = {"codec": "json"}
    rig.make = lambda: Lists(rig.calls)
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b'"a"', b"2"), rig.frame(2, b"null"))
    rig.handled(3)
    assert rig.calls == [["a", 2], [None]]


def test_a_handler_for_lists_that_raises_fails_the_attempt_and_names_the_events(rig):
    rig.make = lambda: Lists(rig.calls, ValueError("no"))
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a", b"b", b"c"))
    failed = rig.expect(acks.Failed)
    assert failed.cause.startswith("handling events 0 to 2: ValueError: no")
    rig.expect(acks.Hello)


def test_a_quiet_attempt_looks_less_often_and_a_record_wakes_it(rig, monkeypatch):
    monkeypatch.setattr(runtime, "QUIET_AFTER_S", 0.0)
    monkeypatch.setattr(runtime, "QUIET_WAIT_MAX_S", 10 * DEADLINE_S)
    rig.run()
    start = rig.start()
    rig.append(rig.frame(0, b"a"))
    rig.handled(1)
    rig.append(rig.frame(1, b"b"))
    rig.handled(2)
    rig.stop(start)
    assert isinstance(rig.ended(), Leave)


def test_an_attempt_is_quiet_once_it_has_handled_nothing_for_a_while(rig):
    quiet = SubtaskRuntime(rig.settings, SubtaskId("reader", 0), rig.make, rig.transport, run="run-1")
    quiet.core.answer_due = math.inf
    waits = []
    for phase, seconds in [(Phase.RUNNING, 0), (Phase.RUNNING, 11), (Phase.WAITING, 11)]:
        quiet.core.phase, quiet._worked_at = phase, time.monotonic() - seconds
        waits.append(quiet._patience())
    assert waits == [0.25, 1.0, 0.25]
