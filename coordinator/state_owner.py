"""Whose a folder of stored states is: one job's of one cluster. Two that wrote there would delete each other's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..schemas.errors import JobRefused, StateError
from ..schemas.settings import JobSettings
from ..transport.ports import Transport
from ..transport.state_storage import StateStorage


@dataclass(frozen=True, slots=True)
class StateOwner:
    """A job by what no other job has: the id of its checkpoint log. It lasts until the job is purged."""

    cluster: str
    topic: str
    topic_id: str

    def follows(self, earlier: StateOwner) -> bool:
        """Whether ``earlier`` is gone for certain: this topic stands in its place."""
        return (self.cluster, self.topic) == (earlier.cluster, earlier.topic)

    def __str__(self) -> str:
        return f"the job with checkpoint log {self.topic} (id {self.topic_id}) of Kafka cluster {self.cluster}"


def check_state_owner(settings: JobSettings, transport: Transport, storage: StateStorage, timeout_s: float) -> None:
    """Raises JobRefused where the job's folder of states belongs to another. Changes nothing."""
    if storage.configured:
        _checked(_owner(settings, transport, timeout_s), storage)


def claim_states(settings: JobSettings, transport: Transport, storage: StateStorage, timeout_s: float) -> None:
    """Marks the job's folder of states as its own. Raises JobRefused where it belongs to another."""
    if not storage.configured:
        return
    owner = _owner(settings, transport, timeout_s)
    if _checked(owner, storage) != owner:
        storage.mark_owner(json.dumps(asdict(owner)).encode())
        _checked(owner, storage)  # another may have marked it in the same moment


def _owner(settings: JobSettings, transport: Transport, timeout_s: float) -> StateOwner:
    topic = settings.topics.checkpoints
    there = transport.inspect([topic], timeout_s)
    facts = there.topics.get(topic)
    if facts is None:
        raise JobRefused(f"job {settings.name}: its checkpoint log {topic} is gone: it was deleted in this moment")
    return StateOwner(there.cluster, topic, facts.info.topic_id)


def _checked(owner: StateOwner, storage: StateStorage) -> StateOwner | None:
    """The owner that the folder has, None where it has none."""
    data = storage.owner_mark()
    if data is None:
        return None
    try:
        found = StateOwner(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise StateError(f"{storage!r}: the mark that says whose states these are cannot be read: {error}") from error
    if found != owner and not owner.follows(found):
        raise JobRefused(
            f"{storage!r} holds the states of another job: of {found}; this one is {owner}. Each would delete the"
            " other's states. Give this job a state_storage of its own; or, where the other one is gone for good,"
            f" delete that folder ({storage.owner_location})"
        )
    return found
