"""Which operators feed which, and what follows from that: channels and failover regions (protocol, section 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from .errors import ConfigurationError
from .ids import SubtaskId, checked_name


class Partitioning(StrEnum):
    """To which subtasks of the receiving operator a record goes."""

    KEYED = "keyed"
    """To the one that owns the key group of the record's key."""
    REBALANCE = "rebalance"
    """To one after the other."""
    BROADCAST = "broadcast"
    """To every one."""
    FORWARD = "forward"
    """To the one with the sender's own index."""


@dataclass(frozen=True, slots=True)
class InputSettings:
    """One input of an operator: all that another operator emits."""

    upstream: str
    partitioning: Partitioning

    def __post_init__(self) -> None:
        checked_name("upstream operator's name", self.upstream)
        object.__setattr__(self, "partitioning", Partitioning(self.partitioning))


class Edge(NamedTuple):
    """All records from one operator to another: one data topic."""

    sender: str
    receiver: str
    partitioning: Partitioning


class DataPartition(NamedTuple):
    """One partition of an edge's topic: everything that an operator emits to one subtask."""

    upstream: str
    receiver: SubtaskId

    def __str__(self) -> str:
        return f"{self.upstream} to {self.receiver}"


class _Operator(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def inputs(self) -> tuple[InputSettings, ...]: ...


class Graph:
    """Built once from the operators, in their order: each input names an operator before it, so there is no cycle."""

    def __init__(self, operators: Iterable[_Operator], max_parallelism: int) -> None:
        self._parallelism: dict[str, int] = {}
        self._inputs: dict[str, list[Edge]] = {}
        self._outputs: dict[str, list[Edge]] = {}
        for operator in operators:
            for given in operator.inputs:
                self._check(operator, given, max_parallelism)
                edge = Edge(given.upstream, operator.name, given.partitioning)
                self._inputs.setdefault(operator.name, []).append(edge)
                self._outputs.setdefault(given.upstream, []).append(edge)
            self._parallelism[operator.name] = operator.parallelism
        self._regions = self._find_regions()

    def _check(self, operator: _Operator, given: InputSettings, max_parallelism: int) -> None:
        name, upstream = operator.name, given.upstream
        if upstream not in self._parallelism:
            known = ", ".join(self._parallelism) or "none"
            raise ConfigurationError(
                f"operator {name!r} has an input from {upstream!r}, which no operator before it is called; there is:"
                f" {known}"
            )
        if any(edge.sender == upstream for edge in self._inputs.get(name, ())):
            raise ConfigurationError(f"operator {name!r} has two inputs from {upstream!r}; one is all there can be")
        if given.partitioning is Partitioning.FORWARD and self._parallelism[upstream] != operator.parallelism:
            raise ConfigurationError(
                f"operator {name!r} ({operator.parallelism} subtasks) takes forward() from {upstream!r}"
                f" ({self._parallelism[upstream]} subtasks): forward needs the same parallelism; use rebalance()"
            )
        if given.partitioning is Partitioning.KEYED and operator.parallelism > max_parallelism:
            raise ConfigurationError(
                f"operator {name!r} has {operator.parallelism} subtasks and keyed input, and there are only"
                f" {max_parallelism} key groups (max_parallelism)"
            )

    @property
    def edges(self) -> list[Edge]:
        return [edge for edges in self._inputs.values() for edge in edges]

    def inputs(self, operator: str) -> tuple[Edge, ...]:
        return tuple(self._inputs.get(operator, ()))

    def outputs(self, operator: str) -> tuple[Edge, ...]:
        return tuple(self._outputs.get(operator, ()))

    def senders(self, edge: Edge, receiver: int) -> list[SubtaskId]:
        """The channels of an edge that end in one subtask."""
        if edge.partitioning is Partitioning.FORWARD:
            return [SubtaskId(edge.sender, receiver)]
        return [SubtaskId(edge.sender, index) for index in range(self._parallelism[edge.sender])]

    def receivers(self, edge: Edge, sender: int) -> list[SubtaskId]:
        """The channels of an edge that begin in one subtask."""
        if edge.partitioning is Partitioning.FORWARD:
            return [SubtaskId(edge.receiver, sender)]
        return [SubtaskId(edge.receiver, index) for index in range(self._parallelism[edge.receiver])]

    def data_partitions(self) -> list[DataPartition]:
        return [
            DataPartition(edge.sender, SubtaskId(edge.receiver, index))
            for edge in self.edges
            for index in range(self._parallelism[edge.receiver])
        ]

    def channels_into(self, receiver: SubtaskId) -> list[SubtaskId]:
        return [s for edge in self.inputs(receiver.operator) for s in self.senders(edge, receiver.index)]

    def channels_out_of(self, sender: SubtaskId) -> list[SubtaskId]:
        return [r for edge in self.outputs(sender.operator) for r in self.receivers(edge, sender.index)]

    def region(self, subtask: SubtaskId) -> tuple[SubtaskId, ...]:
        """All subtasks that channels connect with this one, itself included: they fail together."""
        return self._regions[subtask]

    def _find_regions(self) -> Mapping[SubtaskId, tuple[SubtaskId, ...]]:
        everybody = [SubtaskId(name, index) for name, n in self._parallelism.items() for index in range(n)]
        region = {subtask: [subtask] for subtask in everybody}

        def join(one: SubtaskId, another: SubtaskId) -> None:
            mine, other = sorted((region[one], region[another]), key=len, reverse=True)
            if mine is not other:
                mine += other
                region.update((member, mine) for member in other)

        for edge in self.edges:
            forward = edge.partitioning is Partitioning.FORWARD
            for index in range(self._parallelism[edge.receiver]):
                join(SubtaskId(edge.receiver, index), SubtaskId(edge.sender, index if forward else 0))
            for index in range(0 if forward else self._parallelism[edge.sender]):  # whoever feeds one feeds all
                join(SubtaskId(edge.receiver, 0), SubtaskId(edge.sender, index))
        order = {subtask: at for at, subtask in enumerate(everybody)}
        return {subtask: tuple(sorted(members, key=order.__getitem__)) for subtask, members in region.items()}
