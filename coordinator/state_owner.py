"""Whose a folder of stored states is: one job's of one cluster. Two that wrote there would delete each other's."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, fields

from ..schemas.errors import JobRefused, StateError
from ..schemas.settings import JobSettings
from ..transport.ports import Transport
from ..transport.state_storage import StateStorage

_log = logging.getLogger(__name__)

WITNESS = "__transaction_state"
"""A topic that every cluster makes for itself with its first transaction, under an id of its own. Cluster ids tell no
two apart where both were set up by the same instructions: images and guides come with one."""


@dataclass(frozen=True, slots=True)
class StateOwner:
    """A job by what no other job has: the id of its checkpoint log. It lasts until the job is purged."""

    cluster: str
    topic: str
    topic_id: str
    witness: str = ""
    """The id of the cluster's :data:`WITNESS`; empty where there is none yet, or where this user may not see it."""

    def is_same(self, other: StateOwner) -> bool:
        return (self.cluster, self.topic, self.topic_id) == (other.cluster, other.topic, other.topic_id)

    def follows(self, earlier: StateOwner) -> bool:
        """Return whether this topic has replaced that of ``earlier``, as far as can be known."""
        told_apart = self.witness and earlier.witness and self.witness != earlier.witness
        return (self.cluster, self.topic) == (earlier.cluster, earlier.topic) and not told_apart

    def __str__(self) -> str:
        witness = f" ({WITNESS} {self.witness})" if self.witness else ""
        return f"the job with checkpoint log {self.topic} (id {self.topic_id}) of Kafka cluster {self.cluster}{witness}"


def check_state_owner(settings: JobSettings, transport: Transport, storage: StateStorage, timeout_s: float) -> None:
    """Raise JobRefused if the job's folder of states belongs to another job. Change nothing."""
    if storage.configured:
        _checked(_owner(settings, transport, timeout_s), storage)


def claim_states(
    settings: JobSettings, transport: Transport, storage: StateStorage, timeout_s: float, *, continues: bool = False
) -> StateOwner | None:
    """Mark the job's folder of states as its own; None if it has none. Raises JobRefused if it belongs to another.

    With ``continues`` an instance before this one has done so: state storage that is away then keeps nobody from
    following it, since nothing may be needed from there.
    """
    if not storage.configured:
        return None
    owner = _owner(settings, transport, timeout_s)
    try:
        _claim(owner, storage)
    except StateError as error:
        if not continues:
            raise
        _log.warning("job=%s: goes on without a look at whose its folder of states is: %s", settings.name, error)
    return owner


def require_mark(owner: StateOwner, storage: StateStorage) -> None:
    """Raise JobRefused if the folder does not bear the mark of ``owner`` itself: a recreated job has another."""
    found = _checked(owner, storage)
    if found is None or not owner.is_same(found):
        raise JobRefused(f"{storage!r} is not marked as the folder of {owner}, but of {found or 'no job'}")


def _claim(owner: StateOwner, storage: StateStorage) -> None:
    found = _checked(owner, storage)
    if found is None or not owner.is_same(found) or (owner.witness and not found.witness):
        storage.mark_owner(json.dumps(asdict(owner)).encode(), instead=found is not None)
        _checked(owner, storage)  # another may have marked it in the same moment


def _owner(settings: JobSettings, transport: Transport, timeout_s: float) -> StateOwner:
    topic = settings.topics.checkpoints
    there = transport.inspect([topic, WITNESS], timeout_s)
    facts, witness = there.topics.get(topic), there.topics.get(WITNESS)
    if facts is None:
        raise JobRefused(f"job {settings.name}: its checkpoint log {topic} is gone: it was deleted in this moment")
    return StateOwner(there.cluster, topic, facts.info.topic_id, "" if witness is None else witness.info.topic_id)


def _checked(owner: StateOwner, storage: StateStorage) -> StateOwner | None:
    """The owner that the folder has, None where it has none."""
    data = storage.owner_mark()
    if data is None:
        return None
    try:
        told = dict(json.loads(data))
        found = StateOwner(**{field.name: told[field.name] for field in fields(StateOwner) if field.name in told})
    except (ValueError, TypeError) as error:
        raise StateError(f"{storage!r}: the mark that says whose states these are cannot be read: {error}") from error
    if not owner.is_same(found) and not owner.follows(found):
        raise JobRefused(
            f"{storage!r} holds the states of another job: of {found}; this one is {owner}. Each would delete the"
            " other's states. Give this job a state_storage of its own; or, where the other one is gone for good,"
            f" delete that folder ({storage.owner_location})"
        )
    return found
