"""What ``penstock doctor JOB`` says of a job's topics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.checkpoint_log.history import Keyed, keyed
from penstock.cli.doctor import ADVICE, MISSING, OK, Finding, job_topics
from penstock.schemas.checkpoints import CheckpointCompleted, EpochClaimed, InputSnapshot, OperatorSnapshot
from penstock.schemas.codec import encode
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.transport import Inspection, MemoryBroker, MemoryTransport
from penstock.transport.ports import Copies

SETTINGS = JobSettings(
    "job", (OperatorSettings("a", 1), OperatorSettings("b", 3, inputs=(InputSettings("a", Partitioning.KEYED),)))
)
DATA = SETTINGS.topics.data("a", "b")


def transport_of(
    *, names_inputs: bool = True, without: str = "", settings: dict[str, str] | None = None
) -> MemoryTransport:
    """A job with one checkpoint, which may be so old that it does not name its operators' inputs."""
    transport = MemoryTransport(MemoryBroker())
    specs = [spec for spec in SETTINGS.topic_specs if spec.name != without]
    changed = {DATA: settings or {}}
    transport.create_topics([replace(s, settings={**s.settings, **changed.get(s.name, {})}) for s in specs])
    inputs = (InputSnapshot("a", Partitioning.KEYED),) if names_inputs else ()
    operators = (OperatorSnapshot("a", 1, None, 0, 128, ()), OperatorSnapshot("b", 3, None, 0, 128, inputs))
    ids = {name: info.topic_id for name, info in transport.describe_topics([s.name for s in specs]).items()}
    records: list[Keyed] = keyed(
        EpochClaimed(1, -1, 0, 100, ids, "i", "why"), CheckpointCompleted(1, 0, False, 0, 0, 0, operators, 0, (), 100)
    )
    log = transport.claim_log(SETTINGS.topics.checkpoints, SETTINGS.topics.transactional_id)
    log.commit([(key, None if record is None else encode(record)) for key, record in records])
    return transport


def found(transport: MemoryTransport) -> dict[str, Finding]:
    return {finding.check: finding for finding in job_topics(transport, SETTINGS.prefix, SETTINGS.name)}


@pytest.mark.parametrize("names_inputs", [True, False])
def test_topics_between_operators_are_looked_at_too(names_inputs: bool) -> None:
    findings = found(transport_of(names_inputs=names_inputs))
    assert findings.keys() == {spec.name for spec in SETTINGS.topic_specs}
    assert {finding.state for finding in findings.values()} == {OK}
    assert findings[DATA].found.startswith("3 partition(s)")


@pytest.mark.parametrize("names_inputs", [True, False])
@pytest.mark.parametrize(("changed", "state"), [("segment.bytes", ADVICE), ("retention.ms", MISSING)])
def test_how_they_are_set_up_is_told(names_inputs: bool, changed: str, state: str) -> None:
    finding = found(transport_of(names_inputs=names_inputs, settings={changed: "1000000"}))[DATA]
    assert finding.state == state
    assert f"--entity-name {DATA} --add-config" in finding.remedy


def test_a_topic_with_one_copy_on_several_brokers_is_advised_about(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = transport_of()
    inspect, kept = transport.inspect, Copies(1, frozenset({1}), frozenset({1}))

    def of_three_brokers(names: list[str], timeout_s: float = 30.0) -> Inspection:
        found = inspect(names, timeout_s)
        topics = {name: facts._replace(copies=(kept,)) for name, facts in found.topics.items()}
        topics[DATA] = topics[DATA]._replace(copies=(kept._replace(leader=None),))
        return found._replace(topics=topics, brokers=frozenset({1, 2, 3}))

    monkeypatch.setattr(transport, "inspect", of_three_brokers)
    findings = found(transport)
    acks = findings[SETTINGS.topics.acks]
    assert acks.state == ADVICE and "one copy on a cluster of 3 brokers" in acks.found and acks.remedy
    assert findings[DATA].state == MISSING and "no leader: partition 0" in findings[DATA].found


def test_one_that_is_gone_is_missing_and_the_way_out_is_one() -> None:
    """A start would create it anew, and refuse it for that."""
    finding = found(transport_of(without=DATA))[DATA]
    assert (finding.state, finding.found) == (MISSING, "does not exist")
    assert "penstock purge job" in finding.remedy


def test_without_its_status_topic_a_job_only_has_to_start_again() -> None:
    status = SETTINGS.topics.status
    finding = found(transport_of(without=status))[status]
    assert (finding.state, finding.found) == (MISSING, "does not exist")
    assert "the next start makes it again" in finding.remedy
