"""What is said of a topic's copies: each thing that can lose records or stop them, with its cure."""

from __future__ import annotations

import logging

import pytest

from penstock.schemas.plan import Role
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.transport import Inspection, MemoryBroker, MemoryTransport, TopicFacts, TopicInfo
from penstock.transport.durability import risks
from penstock.transport.ports import Copies
from penstock.transport.requirements import require

TOPIC = "penstock.flights.acks"
ALL = frozenset({1, 2, 3})


def there(*copies: Copies, brokers: frozenset[int] = ALL, least: str = "2", unclean: str = "false") -> Inspection:
    settings = {"min.insync.replicas": least, "unclean.leader.election.enable": unclean}
    facts = TopicFacts(TopicInfo(TOPIC, "id", len(copies)), None, settings, copies)
    return Inspection("kafka:9092", "cluster", None, {TOPIC: facts}, frozenset(), brokers)


def kept(*brokers: int, leader: int | None = 1, in_sync: tuple[int, ...] | None = None) -> Copies:
    return Copies(leader, frozenset(brokers), frozenset(brokers if in_sync is None else in_sync))


def told(inspection: Inspection, wanted: int | None = None) -> list[str]:
    return [risk.what for risk in risks(TOPIC, inspection, wanted)]


def test_three_copies_of_which_two_must_have_a_record_are_no_risk() -> None:
    assert told(there(kept(1, 2, 3), kept(1, 2, 3)), wanted=3) == []


def test_a_single_broker_is_no_risk_that_could_be_cured_there() -> None:
    assert told(there(kept(1), brokers=frozenset({1}), least="1", unclean="true")) == []


@pytest.mark.parametrize(
    ("inspection", "wanted", "what", "remedy"),
    [
        (there(kept(1), least="1"), None, "one copy on a cluster of 3 brokers", "kafka-reassign-partitions"),
        (there(kept(1, 2)), 3, "it has 2 copies and replication_factor is 3", "kafka-reassign-partitions"),
        (there(kept(1, 2, 3), kept(1), least="1"), 3, "it has one copy and", "kafka-reassign-partitions"),
        (there(kept(1, 2, 3), least="1"), None, "may be on one broker alone", "--add-config min.insync.replicas=2"),
        (there(kept(1, 2, 3), least="3"), None, "with one broker away nothing", "min.insync.replicas=2"),
        (there(kept(1, 2, 3), unclean="true"), None, "behind completed checkpoints", "election.enable=false"),
        (there(kept(1, 2, 3, in_sync=(1, 3))), None, "not in sync", "the broker that lags"),
        (there(kept(1, 2, 3), brokers=frozenset({1, 2})), None, "missing: broker 3", "start it"),
    ],
)
def test_each_risk_is_named_with_its_cure(inspection: Inspection, wanted: int | None, what: str, remedy: str) -> None:
    (risk,) = [one for one in risks(TOPIC, inspection, wanted) if what in one.what]
    assert remedy in risk.remedy
    assert not risk.now


def test_partitions_without_a_leader_are_named_and_stop_work_now() -> None:
    found = risks(TOPIC, there(kept(1, 2, 3), kept(1, 2, 3, leader=None), *[kept(1, 2, 3, leader=None)] * 6))
    (one,) = [risk for risk in found if risk.now]
    assert one.what == "no leader: partition 1, 2, 3, 4, 5 and 2 more"


def test_a_start_warns_of_each_risk_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = JobSettings("flights", (OperatorSettings("reader", 2),), replication_factor=3)
    transport = MemoryTransport(MemoryBroker())
    inspect = transport.inspect

    def with_copies(names: object, timeout_s: float = 30.0) -> Inspection:
        found = inspect(names, timeout_s)  # type: ignore[arg-type]
        topics = {name: facts._replace(copies=(kept(1, 2),)) for name, facts in found.topics.items()}
        return found._replace(topics=topics, brokers=ALL)

    monkeypatch.setattr(transport, "inspect", with_copies)
    with caplog.at_level(logging.WARNING):
        require(settings, transport, [Role.COORDINATOR], 5.0, creates=True)
    copies, least = (record.getMessage() for record in caplog.records)
    assert "and 3 more topics: it has 2 copies and replication_factor is 3" in copies
    assert "min.insync.replicas is 2 of 2 copies" in least
