"""Folders of stored states: each job has its own, and one that finds another's mark there refuses to start."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.protocol.effects import CollectOrphans
from penstock.coordinator.service import CoordinatorService, instances_of
from penstock.coordinator.state_owner import WITNESS, check_state_owner, claim_states
from penstock.coordinator.stored_states import collect_orphans
from penstock.schemas.errors import JobRefused, StateError
from penstock.schemas.state import state_location
from penstock.schemas.status import Ending
from penstock.schemas.topics import TopicSpec
from penstock.testing.local import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport, StateStorage
from penstock.transport.kafka import KafkaTransport
from tests.coordinator.jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_recovered

LARGE = bytes(200_000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/states"


def large_job(plan: Plan, url: str, name: str = "job", prefix: str | None = None) -> Any:
    """Each checkpoint stores a state."""
    plan.does["checkpoint_coordinator"] = lambda c, n, result: result.complete(b"%d" % n + LARGE)
    job = make_job(plan, name, state_storage=url)
    return job if prefix is None else job.renamed(name, prefix=prefix)


def stored(url: str, running: LocalJob) -> set[str]:
    return set(StateStorage(url, running.settings.topics.root).list())


def named(running: LocalJob) -> set[str]:
    return running.client.history().locations()


def assert_states_stand(url: str, running: LocalJob) -> None:
    """Every state that a completed checkpoint names, now."""
    storage = StateStorage(url, running.settings.topics.root)
    locations = named(running)
    assert locations
    for location in locations:
        assert storage.get(location).endswith(LARGE)


def stop(running: LocalJob) -> None:
    assert running.client.stop(timeout_s=PATIENCE_S).accepted
    running.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("one", "other"), [(("a", None), ("a2", None)), (("a", None), ("a-b", None)), (("a", "team-a"), ("a", "team-ab"))]
)
def test_jobs_with_one_storage_have_folders_of_their_own(
    url: str, one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    transport = MemoryTransport(MemoryBroker())
    first, second = Plan(), Plan()
    with run(large_job(first, url, *one), transport) as ours, run(large_job(second, url, *other), transport) as theirs:
        for _ in range(4):  # so that discarded ones are deleted meanwhile
            wait_checkpoint(ours, first)
            wait_checkpoint(theirs, second)
        stop(ours)
        stop(theirs)
        assert_states_stand(url, ours)
        assert_states_stand(url, theirs)


def test_a_job_of_the_same_name_on_another_broker_is_refused_and_touches_nothing(url: str) -> None:
    plan = Plan()
    with run(large_job(plan, url), MemoryTransport(MemoryBroker())) as running:
        wait_checkpoint(running, plan)
        stop(running)
        before = stored(url, running)
        elsewhere = run(large_job(Plan(), url), MemoryTransport(MemoryBroker()))
        with pytest.raises(JobRefused, match=r"holds the states of another job[\s\S]*state_storage of its own") as told:
            elsewhere.start()
        elsewhere.close()
        assert "penstock.job/owner.json" in str(told.value)
        assert stored(url, running) == before
        assert_states_stand(url, running)


def one_of_many() -> MemoryTransport:
    """Of a cluster whose id came with its image, as that of many others."""
    broker = MemoryBroker()
    broker.cluster = "5L6g3nShT-eMCtK--X86sw"
    broker.create_topics([TopicSpec(WITNESS, 1)])
    return MemoryTransport(broker)


def test_two_clusters_of_one_id_are_told_apart(url: str) -> None:
    plan, here = Plan(), one_of_many()
    with run(large_job(plan, url), here) as running:
        wait_checkpoint(running, plan)
        stop(running)
        elsewhere = run(large_job(Plan(), url), one_of_many())
        with pytest.raises(JobRefused, match="holds the states of another job"):
            elsewhere.start()
        elsewhere.close()
        assert_states_stand(url, running)
        running.client.purge()
    plan = Plan()
    with run(large_job(plan, url), here) as again:
        wait_checkpoint(again, plan)


def test_what_tells_clusters_apart_need_not_be_seen(url: str) -> None:
    """It does not exist before the first transaction, and not every user may look at it."""
    here = one_of_many()
    settings = large_job(Plan(), url).settings
    storage = StateStorage(url, settings.topics.root)
    here.create_topics(settings.topic_specs)
    here.delete_topics([WITNESS])
    claim_states(settings, here, storage, 5.0)
    here.create_topics([TopicSpec(WITNESS, 1)])
    claim_states(settings, here, storage, 5.0)
    known = storage.owner_mark()
    here.delete_topics([WITNESS])
    claim_states(settings, here, storage, 5.0)
    assert storage.owner_mark() == known
    there = one_of_many()
    there.create_topics(settings.topic_specs)
    with pytest.raises(JobRefused, match="holds the states of another job"):
        claim_states(settings, there, storage, 5.0)


@pytest.mark.kafka
def test_a_real_cluster_has_what_tells_it_apart(url: str, kafka_broker: EmbeddedBroker) -> None:
    settings = large_job(Plan(), url, "told-apart").settings
    storage, transport = StateStorage(url, settings.topics.root), KafkaTransport(kafka_broker.bootstrap)
    transport.create_topics(settings.topic_specs)
    transport.claim_log(settings.topics.checkpoints, settings.topics.transactional_id).close()
    claim_states(settings, transport, storage, 30.0)
    assert json.loads(storage.owner_mark() or b"")["witness"]
    transport.delete_topics([spec.name for spec in settings.topic_specs])
    transport.close()


def test_a_coordinator_alone_is_refused_as_well(url: str) -> None:
    plan = Plan()
    with run(large_job(plan, url), MemoryTransport(MemoryBroker())) as running:
        wait_checkpoint(running, plan)
        other = MemoryTransport(MemoryBroker())
        alone = run(large_job(Plan(), url), other, subtasks=False)
        service = alone.service
        assert service is not None
        with pytest.raises(JobRefused, match="holds the states of another job"):
            service.start().wait(PATIENCE_S)
        wait_checkpoint(running, plan)


def test_a_job_goes_on_with_its_folder_and_its_successor_after_a_purge_takes_it(url: str) -> None:
    transport = MemoryTransport(MemoryBroker())
    for again in range(3):
        plan = Plan()
        with run(large_job(plan, url), transport) as running:
            wait_checkpoint(running, plan)
            stop(running)
            assert_states_stand(url, running)
        if again == 1:
            running.client.purge()


@pytest.mark.parametrize("continues", [True, False])
def test_storage_that_is_away_keeps_a_job_from_starting_and_not_from_going_on(
    url: str, continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that follows another may need nothing from there."""
    plan = Plan()
    job = make_job(plan, state_storage=url)
    with run(job) as running:
        wait_checkpoint(running, plan)

        def away(*_: object) -> None:
            raise StateError("state storage is away")

        monkeypatch.setattr(StateStorage, "owner_mark", away)
        options = CoordinatorOptions(continues=continues)
        service = CoordinatorService(
            instances_of(job.settings, job.coordinators, running.transport, options), job.restart
        ).start()
        if continues:
            wait_recovered(running, plan)
            service.leave()
            outcome = service.wait(PATIENCE_S)
            assert outcome is not None and outcome.ending is Ending.LEFT
        else:
            with pytest.raises(StateError, match="away"):
                service.wait(PATIENCE_S)
            wait_checkpoint(running, plan)


def test_of_two_that_mark_a_folder_in_the_same_moment_one_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = large_job(Plan(), url).settings
    storage = StateStorage(url, settings.topics.root)
    transports = [MemoryTransport(MemoryBroker()) for _ in range(2)]
    for transport in transports:
        transport.create_topics(settings.topic_specs)
    look, both = StateStorage.owner_mark, threading.Barrier(2)

    def looks(self: StateStorage) -> bytes | None:
        found = look(self)
        if found is None:
            both.wait(PATIENCE_S)
        return found

    def claim(transport: MemoryTransport) -> bool:
        try:
            claim_states(settings, transport, storage, 5.0)
        except JobRefused:
            return False
        return True

    monkeypatch.setattr(StateStorage, "owner_mark", looks)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(claim, transports)) == [False, True]
    folder = Path(url.removeprefix("file://")) / "penstock.job"
    assert [file.name for file in folder.iterdir()] == ["owner.json"]


@pytest.mark.parametrize("purged", [True, False])
def test_nothing_is_collected_in_a_folder_that_is_anothers_by_now(url: str, purged: bool) -> None:
    """By a coordinator that was frozen meanwhile: of the job itself as it was made anew, or of another."""
    settings, transport = large_job(Plan(), url).settings, MemoryTransport(MemoryBroker())
    storage = StateStorage(url, settings.topics.root)
    transport.create_topics(settings.topic_specs)
    owner = claim_states(settings, transport, storage, 5.0)
    leftover, theirs = state_location(1, 1, "op-0"), state_location(2, 1, "op-0")
    storage.put(leftover, LARGE)
    collect_orphans(storage, CollectOrphans(frozenset(), 5), owner)
    assert storage.list() == []
    storage.put(theirs, LARGE)
    if purged:
        transport.delete_topics([spec.name for spec in settings.topic_specs])
        transport.create_topics(settings.topic_specs)
        claim_states(settings, transport, storage, 5.0)
    else:
        storage.mark_owner(json.dumps({"cluster": "c", "topic": "t", "topic_id": "i"}).encode())
    with pytest.raises(JobRefused):
        collect_orphans(storage, CollectOrphans(frozenset(), 5), owner)
    assert storage.list() == [theirs]


def test_a_mark_of_a_later_release_is_read_as_far_as_it_is_known(url: str) -> None:
    transport, settings = MemoryTransport(MemoryBroker()), large_job(Plan(), url).settings
    transport.create_topics(settings.topic_specs)
    storage = StateStorage(url, settings.topics.root)
    claim_states(settings, transport, storage, 5.0)
    told = json.loads(storage.owner_mark() or b"")
    storage.mark_owner(json.dumps({**told, "colour": "blue"}).encode())
    check_state_owner(settings, transport, storage, 5.0)


def test_the_mark_is_no_state(url: str) -> None:
    transport, settings = MemoryTransport(MemoryBroker()), large_job(Plan(), url).settings
    transport.create_topics(settings.topic_specs)
    storage = StateStorage(url, settings.topics.root)
    claim_states(settings, transport, storage, 5.0)
    claim_states(settings, transport, storage, 5.0)
    assert storage.list() == []
    storage.mark_owner(b"not json")
    with pytest.raises(StateError, match="says whose states these are"):
        check_state_owner(settings, transport, storage, 5.0)


def test_a_job_without_state_storage_asks_nobody() -> None:
    settings = make_job(Plan()).settings
    check_state_owner(settings, MemoryTransport(MemoryBroker()), StateStorage(None, settings.topics.root), 5.0)
