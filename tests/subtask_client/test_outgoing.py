"""The bound on what the broker has not taken (section 1, G7), and what follows a failed append (section 6)."""

from __future__ import annotations

import threading
import time

from penstock.schemas.acks import Finished, Heartbeat
from penstock.schemas.codec import decode, encode
from penstock.schemas.state import Sender
from penstock.subtask_client.outgoing import RECORD_COST_BYTES, Outgoing
from penstock.transport.ports import Partition

RECORD = Finished(Sender("reader", 0, 5, 1, 0))
SIZE = len(encode(RECORD)) + RECORD_COST_BYTES
DEADLINE_S = 10.0


class SlowWriter:
    """Takes everything, and settles it when told to."""

    def __init__(self):
        self.outcomes = []
        self.keys = []
        self.values = []
        self.closed = False

    def append(self, partition, value, key=None, on_outcome=None):
        self.keys.append(key)
        self.values.append(value)
        self.outcomes.append(on_outcome)

    def close(self, timeout_s=5.0):
        self.closed = True


class SlowTransport:
    def __init__(self):
        self.writers = []

    def writer(self):
        self.writers.append(SlowWriter())
        return self.writers[-1]


def outgoing(**changes):
    transport = SlowTransport()
    given = {"gives_up": lambda: False, "unsettled_bytes_max": 2 * SIZE, "room_timeout_s": DEADLINE_S, **changes}
    return transport, Outgoing(transport, Partition("acks", 0), "reader/0", **given)


def test_below_the_bound_nothing_waits():
    _, out = outgoing()
    out.write(RECORD)
    out.wait_for_room()
    assert out.failure is None


def test_at_the_bound_it_waits_until_the_broker_has_taken_something():
    transport, out = outgoing()
    out.write(RECORD)
    out.write(RECORD)
    through = threading.Event()
    waiter = threading.Thread(target=lambda: (out.wait_for_room(), through.set()))
    waiter.start()
    assert not through.wait(0.05)
    out.write(RECORD)  # a heartbeat: never waits
    for settle in transport.writers[0].outcomes:
        settle(1, None)
    assert through.wait(DEADLINE_S)
    waiter.join()
    assert out.failure is None


def test_past_the_deadline_it_counts_as_a_failed_append():
    _, out = outgoing(room_timeout_s=0.0)
    out.write(RECORD)
    out.write(RECORD)
    out.wait_for_room()
    assert f"has not taken {2 * SIZE} bytes" in out.failure


def test_whoever_is_asked_to_stop_waits_no_longer():
    _, out = outgoing(gives_up=lambda: True)
    out.write(RECORD)
    out.write(RECORD)
    began = time.monotonic()
    out.wait_for_room()
    assert out.failure is not None
    assert time.monotonic() - began < DEADLINE_S


def test_after_a_failure_nothing_is_taken_until_the_writer_is_replaced():
    transport, out = outgoing()
    out.write(RECORD)
    transport.writers[0].outcomes[0](None, ValueError("timed out"))
    assert out.failure == "timed out"
    offsets = []
    out.write(RECORD, offsets.append)
    assert offsets == [None]
    assert len(transport.writers[0].outcomes) == 1
    out.replace()
    assert transport.writers[0].closed
    assert out.failure is None
    out.write(RECORD, offsets.append)
    transport.writers[1].outcomes[0](7, None)
    assert offsets == [None, 7]


def test_an_old_writers_outcome_is_no_concern_of_the_new_one():
    transport, out = outgoing()
    out.write(RECORD)
    out.replace()
    out.write(RECORD)
    transport.writers[0].outcomes[0](None, ValueError("purged"))
    assert out.failure is None


def test_a_record_has_subtask_and_attempt_as_its_key():
    transport, out = outgoing()
    out.write(RECORD)
    assert transport.writers[0].keys == [b"reader/0:5"]


def heartbeat(handled_through, generation=0):
    return Heartbeat(Sender("reader", 0, 5, 1, generation), handled_through, "polling", 0, False, {})


def test_a_heartbeat_that_comes_behind_a_newer_one_says_no_less():
    """Section 6: under one Start handled-through never goes back, and two threads write heartbeats."""
    transport, out = outgoing()
    for beat in (heartbeat(37), heartbeat(35), heartbeat(38), heartbeat(0, generation=1)):
        out.write_heartbeat(beat)
    said = [decode(value) for value in transport.writers[0].values]
    assert said == [heartbeat(37), heartbeat(37), heartbeat(38), heartbeat(0, generation=1)]


def test_small_records_are_bounded_too():
    """G7: a million records of ten bytes take far more memory than ten megabytes."""
    transport, out = outgoing(unsettled_bytes_max=100 * RECORD_COST_BYTES, room_timeout_s=0.0)
    for _ in range(100):
        out.write(RECORD)
    out.wait_for_room()
    assert out.failure is not None and len(transport.writers[0].outcomes) == 100


class PatientTransport(SlowTransport):
    """Gives another writer only when the one before has told all outcomes, as one producer for many does."""

    def writer(self):
        for before in self.writers:
            failing = threading.Thread(
                target=lambda w=before: [settle(None, ValueError("purged")) for settle in w.outcomes]
            )
            failing.start()
            failing.join(DEADLINE_S)
            assert not failing.is_alive(), "an outcome waits for whoever waits for it"
        return super().writer()


class HeldClosing(SlowWriter):
    """Its closing takes until it is told to end."""

    def __init__(self):
        super().__init__()
        self.closing, self.may_close = threading.Event(), threading.Event()

    def close(self, timeout_s=5.0):
        self.closing.set()
        assert self.may_close.wait(DEADLINE_S)


def test_a_heartbeat_while_the_writer_is_replaced_keeps_no_outcome_from_being_told():
    transport = PatientTransport()
    out = Outgoing(transport, Partition("acks", 0), "reader/0", gives_up=lambda: False)
    transport.writers.append(HeldClosing())
    out._writer = old = transport.writers[0]
    out.write(RECORD)
    replacing = threading.Thread(target=out.replace)
    replacing.start()
    assert old.closing.wait(DEADLINE_S)
    offsets = []
    out.write(RECORD, offsets.append)
    transport.writers[1].outcomes[0](7, None)
    old.may_close.set()
    replacing.join(DEADLINE_S)
    assert (offsets, out.failure) == ([7], None)


def test_a_writer_that_comes_when_it_is_wanted_no_more_is_closed_and_takes_nothing():
    _, out = outgoing()

    class Late(SlowTransport):
        def writer(self):
            made = super().writer()
            if len(self.writers) == 1:
                out.replace()
            return made

    out._transport = late = Late()
    offsets = []
    out.write(RECORD, offsets.append)
    assert offsets == [None]
    assert (late.writers[0].closed, late.writers[0].outcomes) == (True, [])
    out.write(RECORD, offsets.append)
    late.writers[1].outcomes[0](3, None)
    assert offsets == [None, 3]
