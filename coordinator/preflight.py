"""What a coordinator looks at before it begins: its checkpoint log to the end, and what the topics hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..checkpoint_log.history import History
from ..checkpoint_log.restorability import Offsets
from ..client.log_reader import read_log
from ..schemas.checkpoints import EpochClaimed
from ..schemas.errors import (
    BrokerUnreachable,
    Fenced,
    JobRefused,
    OutcomeUnknown,
    PenstockError,
    StateError,
    TransportError,
)
from ..schemas.ids import NO_CHECKPOINT
from ..schemas.plan import Role
from ..schemas.settings import JobSettings, Restore
from ..schemas.user_codec import learn
from ..schemas.user_schemas import Subject
from ..transport.incarnation import incarnation
from ..transport.ports import OffsetRange, Partition, Transport
from ..transport.requirements import require
from ..transport.state_storage import StateStorage
from .host import CoordinatorSpec
from .partitions import data_partitions, event_partitions
from .protocol import recovery
from .protocol.core import CoordinatorCore
from .protocol.effects import Redistribute
from .protocol.inputs import Begin, Known
from .state_owner import check_state_owner
from .state_redistribution import Redistribution, StateSpec

_log = logging.getLogger(__name__)

SUCCESSOR_WAIT_S = 5.0
"""How long a coordinator whose commit is fenced looks for the epoch of the owner that has fenced it."""
_LOOK_AGAIN_S = 0.1
_LOOK_TIMEOUT_S = 5.0


def read_begin(
    settings: JobSettings,
    transport: Transport,
    restore: Restore,
    restore_checkpoint: int,
    known: Known | None = None,
    continues: bool = False,
    *,
    timeout_s: float,
) -> Begin:
    """The input that a core begins with. Raises JobRefused where the checkpoint log cannot be read."""
    topics, partitions = settings.topics, event_partitions(settings)
    described = transport.describe_topics([spec.name for spec in settings.topic_specs], timeout_s)
    acks, data = Partition(topics.acks, 0), data_partitions(settings)
    offsets = transport.offsets([*partitions.values(), *data.values(), acks], timeout_s)
    log = tuple(read_log(settings.name, transport, Partition(topics.checkpoints, 0), timeout_s))
    if log:
        # Asked again behind the log: a coordinator at work goes on completing checkpoints, with positions above that
        # end. Where the log was empty another may have begun since, whose events are no sign of a log that was lost.
        ends = transport.offsets(list(offsets), timeout_s)
        offsets = {at: OffsetRange(there.begin, ends[at].end) for at, there in offsets.items()}
    end = offsets[acks].end
    return Begin(
        log,
        {name: info.topic_id for name, info in described.items() if name != topics.status},  # nobody needs that one
        {subtask: _offsets(offsets[partition]) for subtask, partition in partitions.items()},
        Offsets(offsets[acks].begin, end),
        int(time.time() * 1000),
        restore,
        restore_checkpoint,
        continues,
        {partition: _offsets(offsets[at]) for partition, at in data.items()},
        {operator: described[topics.events(operator)].partitions for operator in settings.parallelism},
        transport.first_epoch(),
        known or Known(),
    )


def require_history(settings: JobSettings, transport: Transport) -> None:
    """Raise JobRefused if no coordinator has ever begun an epoch of the job. Makes no topic."""
    log = Partition(settings.topics.checkpoints, 0)
    there = incarnation(transport, settings.topics, _LOOK_TIMEOUT_S)
    try:
        epoch = History.of(read_log(settings.name, transport, log, _LOOK_TIMEOUT_S)).epoch if there else 0
    except BrokerUnreachable:
        raise
    except TransportError:  # an open transaction may hide the log's end: a coordinator has written it
        return
    if epoch == 0:
        raise JobRefused(
            f"job {settings.name} cannot resume: its checkpoint log {log.topic} {'is empty' if there else 'is missing'}"
            " on this broker. Check broker and prefix, or restore the broker's data. To begin the job anew, start it"
            " without --resume (must_exist=False)"
        )


def learn_schemas(specs: Mapping[str, StateSpec], begin: Begin) -> None:
    """Lets the codecs of coordinators read what was written under the schemas that the checkpoint log names."""
    for used in History.of(begin.log).schemas.values():
        spec = specs.get(used.operator)
        if spec is not None and used.subject == Subject.STATE:
            learn(spec.state_codec, used.schema)
        if isinstance(spec, CoordinatorSpec) and used.subject == Subject.EVENTS:
            learn(spec.codec, used.schema)


def require_topics(
    settings: JobSettings,
    transport: Transport,
    roles: Iterable[Role],
    timeout_s: float,
    restore: Restore = Restore.LATEST,
    restore_checkpoint: int = -1,
    must_exist: bool = False,
) -> None:
    """Makes the job's topics, and raises as :func:`..transport.requirements.require` does.

    JobRefused where the job cannot start with more subtasks: topics keep for ever the partitions that they are given.
    With ``must_exist`` also as :func:`require_history` does, and before any topic is made.
    """
    if must_exist:
        require_history(settings, transport)

    def check() -> None:
        try:
            log = read_log(settings.name, transport, Partition(settings.topics.checkpoints, 0), _LOOK_TIMEOUT_S)
        except TransportError:
            return  # whoever starts asks again
        core = CoordinatorCore(settings, "only looking")
        recovery.check_layout(core.job, History.of(log), restore, restore_checkpoint)

    require(settings, transport, roles, timeout_s, creates=True, before_widening=check)


def check_may_start(
    settings: JobSettings,
    transport: Transport,
    restore: Restore = Restore.LATEST,
    restore_checkpoint: int = -1,
    coordinators: Mapping[str, StateSpec] | None = None,
) -> History | None:
    """Raise JobRefused if a coordinator that starts now would be refused. Change nothing, fence no coordinator.

    StateError where the states of coordinators that it would restore are not to be seen from here. Returns the job so
    far, None where that cannot be told now. With ``coordinators`` it also refuses states that cannot be redistributed
    over another parallelism; it calls user code then. For whoever is about to do something that a refused start must
    not have done. The job's topics must exist.
    """
    try:
        begin = read_begin(settings, transport, restore, restore_checkpoint, timeout_s=_LOOK_TIMEOUT_S)
    except TransportError:
        return None  # an open transaction may hide the log's end until a claim aborts it
    storage = StateStorage(settings.state_storage, settings.topics.root)
    check_state_owner(settings, transport, storage, _LOOK_TIMEOUT_S)
    core = CoordinatorCore(settings, "only looking")
    decided = core.handle(begin, time.monotonic())
    learn_schemas(coordinators or {}, begin)
    for effect in decided:
        if isinstance(effect, Redistribute) and coordinators is not None:
            Redistribution(settings, coordinators, storage, "", transport.max_record_bytes).try_out(effect)
    history = core.job.history
    if restore is not Restore.FRESH:
        restored = history.last_id if restore is Restore.LATEST else restore_checkpoint
        _check_states(settings, transport, storage, history, restored)
    return history


def _check_states(
    settings: JobSettings, transport: Transport, storage: StateStorage, history: History, checkpoint_id: int
) -> None:
    """Raises StateError where a coordinator's state in that checkpoint cannot be seen from here.

    A coordinator at work may have discarded the checkpoint meanwhile: then this says nothing.
    """
    checkpoint = history.checkpoints.get(checkpoint_id)
    for operator in settings.operators:
        part = None if checkpoint is None else checkpoint.operator(operator.name)
        state = None if part is None or not operator.has_coordinator else part.coordinator_state
        if state is None or state.location is None or storage.has(state.location):
            continue
        try:
            log = read_log(settings.name, transport, Partition(settings.topics.checkpoints, 0), _LOOK_TIMEOUT_S)
        except TransportError:
            return
        if checkpoint_id not in History.of(log).checkpoints:
            return
        raise StateError(
            f"checkpoint {checkpoint_id} of job {settings.name} cannot be restored: {storage!r} does not hold the state"
            f" of the coordinator of {operator.name} ({state.location}). state_storage must be the same place for"
            f" every machine that runs the job. Where the state is lost, name an older checkpoint:"
            f" --from-checkpoint N (penstock checkpoints {settings.name} lists them)"
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest epoch that a host's coordinators know of, and which of them has looked last."""

    epoch: int
    instance: str
    incarnation: str
    """Empty where it was not told."""
    checkpoint_id: int
    """The newest that they know to be completed and kept, -1 for none."""

    @classmethod
    def of(cls, history: History, instance: str, log: str) -> Seen:
        """What ``instance`` has read of the topic ``log``, and written to it."""
        newest = max(history.checkpoints, default=NO_CHECKPOINT)
        return cls(history.epoch, instance, history.topic_ids.get(log, ""), newest)

    @property
    def known(self) -> Known:
        """What the checkpoint log must hold."""
        return Known(self.epoch, self.checkpoint_id)


def require_no_successor(settings: JobSettings, transport: Transport, seen: Seen, timeout_s: float) -> None:
    """Raise Fenced if another host has begun an epoch since: an instance that broke off must not take over again.

    An open transaction may hide that: it is this host's own, as a rule. Raises JobRefused where the job was purged
    since: what has its name now is another job, or nothing but topics made a moment ago.
    """
    log = Partition(settings.topics.checkpoints, 0)
    transport.offsets([log], timeout_s)  # the broker is there
    there = incarnation(transport, settings.topics, timeout_s)
    if there and seen.incarnation not in (there, ""):
        raise JobRefused(
            f"job {settings.name} was purged and recreated since this coordinator's host began ({log.topic} is another"
            " topic now): start this coordinator again to join the new one"
        )
    try:
        records = read_log(settings.name, transport, log, _LOOK_TIMEOUT_S)
    except BrokerUnreachable:
        raise
    except TransportError:
        return
    claims = [record for _, record in records if isinstance(record, EpochClaimed)]
    newest = max(claims, key=lambda claim: claim.epoch, default=None)
    if newest is not None and newest.epoch > seen.epoch and newest.instance != seen.instance:
        raise Fenced(f"another coordinator (instance {newest.instance}) has begun epoch {newest.epoch} meanwhile")


def judge_fenced(fenced: Fenced, settings: JobSettings, transport: Transport, seen: Seen | None) -> PenstockError:
    """Return what a commit that was ``fenced`` means: Fenced if another host begins an epoch, else OutcomeUnknown.

    The broker refuses the predecessor of a newer owner. It also refuses an owner that was paused for longer than a
    transaction may last: then nobody else is there, and a new instance of the same host goes on. Raises as
    :func:`require_no_successor` does, but not Fenced.
    """
    deadline = time.monotonic() + SUCCESSOR_WAIT_S
    while seen is not None:
        try:
            require_no_successor(settings, transport, seen, SUCCESSOR_WAIT_S)
        except Fenced:
            return fenced
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_AGAIN_S)
    return OutcomeUnknown(f"{fenced}. But no other coordinator has begun within {SUCCESSOR_WAIT_S:g} s")


def _offsets(found: OffsetRange) -> Offsets:
    return Offsets(found.begin, found.end)
