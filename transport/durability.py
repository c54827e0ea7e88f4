"""What a topic's copies hold against: lost brokers, missing ones, and elections that go back.

Kafka takes a record as written once as many copies have it as ``min.insync.replicas`` says. With one, the only broker
that has a completed checkpoint may be lost, and an unclean election goes back behind records that were taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..schemas.plan import alter_command
from ..schemas.topics import MIN_INSYNC, UNCLEAN
from .ports import Copies, Inspection, TopicFacts

REASSIGN = "raise it with kafka-reassign-partitions.sh"


@dataclass(frozen=True, slots=True)
class Risk:
    """One thing that may lose what a topic holds, or that stops its readers and writers."""

    what: str
    remedy: str
    now: bool = False
    """Whether it stops them already."""


def risks(topic: str, there: Inspection, wanted: int | None = None) -> list[Risk]:
    """Return what endangers a topic that exists; ``wanted`` copies were asked for.

    Nothing on a single broker, nor of a transport without copies.
    """
    facts = there.topics[topic]
    if not facts.copies:
        return []
    return [*_elections(topic, facts, there), *_copies(topic, facts, there, wanted), *_missing(facts, there)]


def leaderless(copies: Iterable[Copies]) -> list[int]:
    """Return the indices of the partitions that have no leader."""
    return [index for index, kept in enumerate(copies) if kept.leader is None]


def _elections(topic: str, facts: TopicFacts, there: Inspection) -> list[Risk]:
    if (facts.settings or {}).get(UNCLEAN) != "true" or _fewest(facts) < 2:
        return []
    return [
        Risk(
            f"{UNCLEAN} is true: if its leader is lost, Kafka may go back behind completed checkpoints",
            alter_command(topic, {UNCLEAN: "false"}, there.address),
        )
    ]


def _copies(topic: str, facts: TopicFacts, there: Inspection, wanted: int | None) -> list[Risk]:
    fewest, least = _fewest(facts), (facts.settings or {}).get(MIN_INSYNC, "")
    found = []
    if wanted is not None and fewest < wanted:
        found.append(Risk(f"it has {_count(fewest)} and replication_factor is {wanted}", REASSIGN))
    elif fewest == 1 and len(there.brokers) > 1:
        found.append(
            Risk(
                f"it has one copy on a cluster of {len(there.brokers)} brokers: its broker's loss is the job's",
                REASSIGN,
            )
        )
    if fewest > 1 and least == "1":
        remedy = alter_command(topic, {MIN_INSYNC: "2"}, there.address) if fewest > 2 else REASSIGN
        found.append(Risk(f"{MIN_INSYNC} is 1: what was taken as written may be on one broker alone", remedy))
    elif fewest > 1 and least.isdecimal() and int(least) >= fewest:
        remedy = alter_command(topic, {MIN_INSYNC: str(fewest - 1)}, there.address) if fewest > 2 else REASSIGN
        found.append(
            Risk(f"{MIN_INSYNC} is {least} of {_count(fewest)}: with one broker away nothing is written", remedy)
        )
    return found


def _missing(facts: TopicFacts, there: Inspection) -> list[Risk]:
    found = []
    if gone := leaderless(facts.copies):
        shown = ", ".join(map(str, gone[:5])) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
        found.append(Risk(f"no leader: partition {shown}", "start the brokers that have its copies", now=True))
    away = frozenset().union(*(kept.brokers for kept in facts.copies)) - there.brokers if there.brokers else frozenset()
    if away:
        found.append(Risk(f"missing: broker {', '.join(map(str, sorted(away)))}, which has copies of it", "start it"))
    elif any(kept.in_sync < kept.brokers for kept in facts.copies):
        found.append(Risk("a copy of it is not in sync", "wait, or look at the log of the broker that lags"))
    return found


def _fewest(facts: TopicFacts) -> int:
    return min(len(kept.brokers) for kept in facts.copies)


def _count(copies: int) -> str:
    return "one copy" if copies == 1 else f"{copies} copies"
