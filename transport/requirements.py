"""What a job needs of its broker, held against what is there: before anything starts, and by name.

The right to read is looked at here because whoever lacks it would otherwise notice nothing: a consumer that is assigned
a topic it may not see waits for it for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..schemas.access import Grant, Operation, Resource, grant_commands
from ..schemas.errors import JobRefused, NotAuthorized
from ..schemas.plan import Plan, Role, alter_command, create_command, partitions_command, topic_grants
from ..schemas.settings import JobSettings
from ..schemas.topics import OPTIONAL_SETTINGS, TopicNames, TopicSpec
from .durability import risks
from .ports import RECORD_OVERHEAD_BYTES, Inspection, Transport

_log = logging.getLogger(__name__)

NAMED_MAX = 5
"""So many things that are missing an error names; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that a job needs and does not have."""

    topic: str
    what: str
    remedy: str
    """A command."""
    right: bool = False
    """Whether it is a right of this user."""

    def __str__(self) -> str:
        return f"{self.topic}: {self.what}. What cures it: {self.remedy}"


def missing(specs: Iterable[TopicSpec], grants: Sequence[Grant], there: Inspection, record_bytes: int) -> list[Missing]:
    """What of these topics, and of these rights on them, is not there.

    ``record_bytes`` is the largest value that a record may have. Settings that this user may not know are not judged.
    """
    found: list[Missing] = []
    for spec in specs:
        needed = [operation for operation in Operation if _needed(grants, spec.name, operation)]
        facts = there.topics.get(spec.name)
        if spec.name in there.hidden:
            found += [_right(spec.name, operation, grants, there) for operation in needed]
        elif facts is None:
            found.append(Missing(spec.name, "it does not exist", create_command(spec, there.address)))
        else:
            allowed = facts.operations
            if allowed is not None:
                found += [_right(spec.name, op, grants, there) for op in needed if op not in allowed]
            found += _of_its_shape(spec, facts.info.partitions, facts.settings or {}, there.address, record_bytes)
    return found


def _needed(grants: Sequence[Grant], topic: str, operation: Operation) -> bool:
    return any(grant.operation is operation and grant.covers(Resource.TOPIC, topic, operation) for grant in grants)


def _right(topic: str, operation: Operation, grants: Sequence[Grant], there: Inspection) -> Missing:
    grant = next(g for g in grants if g.operation is operation and g.covers(Resource.TOPIC, topic, operation))
    who = "this user" if there.user is None else f"user {there.user!r}"
    (command,) = grant_commands([grant], there.user or "USER", there.address)
    return Missing(topic, f"{who} lacks the right {operation} on it", command, right=True)


def _of_its_shape(
    spec: TopicSpec, partitions: int, settings: Mapping[str, str], address: str, record_bytes: int
) -> list[Missing]:
    found = []
    if partitions < spec.partitions:
        what = f"it has {partitions} partitions and {spec.partitions} are needed"
        found.append(Missing(spec.name, what, partitions_command(spec, address)))
    wanted = {key: value for key, value in spec.settings.items() if key not in OPTIONAL_SETTINGS}
    wrong = {key: value for key, value in wanted.items() if settings.get(key, value) != value}
    told = [f"{key} is {settings[key]} and must be {value}" for key, value in wrong.items()]
    largest = settings.get("max.message.bytes", "")
    needed = record_bytes + RECORD_OVERHEAD_BYTES
    if largest.isdecimal() and int(largest) < needed:
        wrong["max.message.bytes"] = str(needed)
        told.append(f"max.message.bytes is {largest} and must be at least {needed}, what this client may send")
    if wrong:
        found.append(Missing(spec.name, "; ".join(told), alter_command(spec.name, wrong, address)))
    return found


def require(
    settings: JobSettings,
    transport: Transport,
    roles: Iterable[Role],
    timeout_s: float,
    *,
    creates: bool = False,
    before_widening: Callable[[], None] = lambda: None,
) -> None:
    """Raises where the broker lacks something that processes of these roles need.

    NotAuthorized where it is a right, JobRefused where it is a topic or how one is set up. With ``creates``, topics and
    partitions that are missing are created first; where this user may not, the error has the commands that do it.
    ``before_widening`` is called, and may raise, before a topic that is there gets partitions: it never loses them.
    """
    plan, deadline, roles = Plan(settings), time.monotonic() + timeout_s, tuple(roles)
    grants = plan.grants(roles)
    names = [spec.name for spec in plan.topics]
    there = transport.inspect(names, timeout_s)
    lacking = missing(plan.topics, grants, there, transport.max_record_bytes)
    _require_rights(settings, there, lacking)
    if creates:
        short = [spec for spec in plan.topics if _is_short(spec, there)]
        if any(spec.name in there.topics for spec in short):
            before_widening()
        if short:
            _create(settings, transport, short, there, max(deadline - time.monotonic(), 0.05))
            there = transport.inspect(names, max(deadline - time.monotonic(), 0.05))
            lacking = missing(plan.topics, grants, there, transport.max_record_bytes)
        _require_rights(settings, there, lacking)
    if lacking:
        raise JobRefused(_told(settings, there, lacking))
    if Role.COORDINATOR in roles:
        _warn_of_risks(settings, there)


def _warn_of_risks(settings: JobSettings, there: Inspection) -> None:
    """Log what endangers the job's topics: each thing once, however many topics have it."""
    found: dict[str, list[str]] = {}
    for name in there.topics:
        for risk in risks(name, there, settings.replication_factor):
            found.setdefault(risk.what, []).append(name)
    for what, names in found.items():
        others = f" and {len(names) - 1} more topics" if len(names) > 1 else ""
        _log.warning("job=%s: %s%s: %s (penstock doctor says what cures it)", settings.name, names[0], others, what)


def require_rights(settings: JobSettings, transport: Transport, roles: Iterable[Role], timeout_s: float) -> None:
    """Raises NotAuthorized where this user lacks a right that these roles need on a topic that is there."""
    plan = Plan(settings)
    there = transport.inspect([spec.name for spec in plan.topics], timeout_s)
    lacking = missing(plan.topics, plan.grants(roles), there, transport.max_record_bytes)
    _require_rights(settings, there, lacking)


def require_visible(names: TopicNames, transport: Transport, timeout_s: float = 30.0) -> None:
    """Raises NotAuthorized where this user may not see the job of that name: it may exist or not."""
    log = TopicSpec(names.checkpoints, 1)
    there = transport.inspect([log.name], timeout_s)
    if log.name in there.hidden:
        lacking = missing([log], topic_grants(names, Role.READER), there, transport.max_record_bytes)
        told = "".join(f"\n  {one}" for one in lacking)
        raise NotAuthorized(f"this user may not see job {names.job} at {there.address}: it may be there or not.{told}")


def _require_rights(settings: JobSettings, there: Inspection, lacking: Sequence[Missing]) -> None:
    if rights := [one for one in lacking if one.right]:
        raise NotAuthorized(_told(settings, there, rights))


def _is_short(spec: TopicSpec, there: Inspection) -> bool:
    facts = there.topics.get(spec.name)
    return facts is None or facts.info.partitions < spec.partitions


def _create(
    settings: JobSettings, transport: Transport, specs: list[TopicSpec], there: Inspection, timeout_s: float
) -> None:
    try:
        transport.create_topics(specs, timeout_s)
    except NotAuthorized as error:
        widen, create = partitions_command, create_command
        commands = "\n  ".join((widen if s.name in there.topics else create)(s, there.address) for s in specs)
        raise NotAuthorized(
            f"job {settings.name} needs topics that are not there, and may not create them: {error}\nOr have them"
            f" created:\n  {commands}"
        ) from error


def _told(settings: JobSettings, there: Inspection, lacking: Sequence[Missing]) -> str:
    named = "".join(f"\n  {one}" for one in lacking[:NAMED_MAX])
    more = f"\n  and {len(lacking) - NAMED_MAX} more" if len(lacking) > NAMED_MAX else ""
    return (
        f"job {settings.name} cannot start at {there.address}: what it needs is not there (penstock plan prints all of"
        f" it).{named}{more}"
    )
