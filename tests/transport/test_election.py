"""The contract of elections, over both transports: one at a time holds the place, and the dead do not hold it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import KafkaError

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import ConfigurationError, TopicMissing, TransportError
from penstock.schemas.topics import TopicSpec
from penstock.transport import Election, MemoryTransport, Transport
from penstock.transport.kafka import KafkaConfig, KafkaTransport
from penstock.transport.kafka_election import KafkaElection

from .conftest import DEADLINE_S, MakeTopic

SESSION_S = 2.0
"""The embedded broker allows sessions that are shorter than Kafka's default."""
STEADY_S = 1.0
"""For how long it is watched that nothing changes: several heartbeats of a group."""

CANDIDATE = """
import sys, time
from penstock.transport.kafka import KafkaTransport
election = KafkaTransport(sys.argv[1]).election(sys.argv[2], sys.argv[3], float(sys.argv[4]))
was = False
while True:
    now = election.elected()
    if now != was:
        print("elected" if now else "lost", flush=True)
    was = now
    time.sleep(0.05)
"""

Stand = Callable[[], Election]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic()


@pytest.fixture
def stand(transport: Transport, topic: str) -> Iterator[Stand]:
    """Another candidate for the same place."""
    with ExitStack() as stack:

        def make() -> Election:
            return stack.enter_context(closing(transport.election(topic + ".group", topic, SESSION_S)))

        yield make


class Elsewhere:
    """A candidate whose process can be killed and stopped."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._alive = True
        if isinstance(transport, KafkaTransport):
            arguments = [transport.config.bootstrap, topic + ".group", topic, str(SESSION_S)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", CANDIDATE, *arguments], stdout=subprocess.PIPE, text=True
            )
        else:
            assert isinstance(transport, MemoryTransport)
            self._election = transport.election(topic + ".group", topic, SESSION_S)
            self._election.alive = lambda: self._alive

    def wait(self, what: str) -> None:
        """Until it says ``what``: "elected" or "lost"."""
        if self._process is None:
            assert self._election.elected() == (what == "elected")
        else:
            assert self._process.stdout is not None
            assert self._process.stdout.readline().strip() == what

    def signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)
        self._alive = number == signal.SIGCONT

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10.0)
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture
def elsewhere(transport: Transport, topic: str) -> Iterator[Elsewhere]:
    with closing(Elsewhere(transport, topic)) as made:
        yield made


def steady(elections: list[Election], wanted: list[bool]) -> None:
    end = time.monotonic() + STEADY_S
    while time.monotonic() < end:
        assert [election.elected() for election in elections] == wanted
        time.sleep(0.02)


def test_the_only_candidate_is_elected(stand: Stand) -> None:
    only = stand()
    wait_until(only.elected, "the only one elected")


def test_whoever_joins_does_not_take_the_place_from_its_holder(stand: Stand, transport: Transport, topic: str) -> None:
    first = stand()
    wait_until(first.elected, "the first elected")
    others = [stand(), stand()]
    wait_until(lambda: transport.candidates(topic + ".group") == 3, "three candidates")
    steady([first, *others], [True, False, False])


def test_exactly_one_follows_a_holder_that_leaves_and_nobody_one_who_only_waited(stand: Stand) -> None:
    candidates = [stand() for _ in range(3)]
    wait_until(lambda: any(c.elected() for c in candidates), "one elected")
    leaving = next(c for c in candidates if c.elected())
    leaving.close()
    assert not leaving.elected()
    left = [c for c in candidates if c is not leaving]
    began = time.monotonic()
    wait_until(lambda: any(c.elected() for c in left), "one of the others elected")
    assert time.monotonic() - began < SESSION_S, "it left, so nobody has to wait for its session"
    holder, waiting = sorted(left, key=lambda c: not c.elected())
    waiting.close()
    steady([holder], [True])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_is_dead_or_stopped_is_followed_when_its_session_is_over(
    elsewhere: Elsewhere, stand: Stand, how: signal.Signals
) -> None:
    elsewhere.wait("elected")
    heir = stand()
    steady([heir], [False])
    elsewhere.signal(how)
    wait_until(heir.elected, "the heir elected")
    if how == signal.SIGSTOP:
        elsewhere.signal(signal.SIGCONT)
        elsewhere.wait("lost")
        steady([heir], [True])


def test_a_place_is_for_a_topic_that_exists(transport: Transport, topic: str) -> None:
    with pytest.raises(TopicMissing, match="missing"):
        transport.election(topic + ".group", topic + ".missing", SESSION_S)
    assert transport.candidates(topic + ".group") == 0


def test_places_of_other_names_are_other_places(stand: Stand, transport: Transport, topic: str) -> None:
    one = stand()
    with closing(transport.election(topic + ".other", topic, SESSION_S)) as other:
        wait_until(lambda: one.elected() and other.elected(), "both elected")


@pytest.mark.kafka
def test_a_session_that_the_broker_does_not_allow_is_refused_with_its_bounds(kafka_broker: EmbeddedBroker) -> None:
    with closing(KafkaTransport(kafka_broker.bootstrap)) as transport:
        transport.create_topics([TopicSpec("penstock.short.checkpoints", 1)])
        with closing(transport.election("penstock.short.standby", "penstock.short.checkpoints", 0.3)) as election:
            refused = pytest.raises(ConfigurationError, match=r"0\.3 s .*group\.min\.session\.timeout\.ms is 1000")
            with refused:
                wait_until(election.elected, "a refusal")


def test_a_topic_that_a_broker_does_not_know_for_a_moment_ends_no_candidacy() -> None:
    config = KafkaConfig("127.0.0.1:1")
    with closing(KafkaElection(config, "penstock.a.standby", "penstock.a.checkpoints", SESSION_S)) as election:
        election._heard(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        assert not election.elected()
        election._heard(KafkaError(KafkaError.INVALID_GROUP_ID))
        with pytest.raises(TransportError, match="INVALID_GROUP_ID"):
            election.elected()


@pytest.mark.kafka
def test_a_topic_that_is_there_again_has_a_holder_again(kafka_broker: EmbeddedBroker) -> None:
    topic = "penstock.again.checkpoints"
    with closing(KafkaTransport(kafka_broker.bootstrap)) as transport:
        transport.create_topics([TopicSpec(topic, 1)])
        with closing(transport.election("penstock.again.standby", topic, SESSION_S)) as election:
            wait_until(election.elected, "the only one elected")
            transport.delete_topics([topic])
            wait_until(lambda: not election.elected(), "nobody elected")
            transport.create_topics([TopicSpec(topic, 1)])
            wait_until(election.elected, "the only one elected again")
