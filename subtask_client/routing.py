"""To which subtasks an emitted record goes (protocol, section 9): one decision per record, so it is prepared ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Protocol, TypeAlias, assert_never

from ..schemas.errors import ConfigurationError
from ..schemas.graph import Edge, Graph, Partitioning
from ..schemas.ids import SubtaskId
from ..schemas.keys import Key, key_group, subtask_of_group

KeyFunction: TypeAlias = Callable[[Any], Key]
"""A record's key. It must give the same key for the same record in every process, and change nothing."""

_KEPT_KEYS_MAX, _KEPT_KEY_MAX = 16_384, 64
"""Keys whose owners an output keeps, and their characters: some megabytes at most."""


class FieldKey:
    """The key of a record is one of its fields: ``record[name]`` of a mapping, else the attribute of that name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, record: Any) -> Any:
        if isinstance(record, dict) or isinstance(record, Mapping):  # noqa: SIM101  # asking an ABC is slow
            return record[self.name]
        return getattr(record, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldKey) and other.name == self.name

    def __hash__(self) -> int:
        return hash((FieldKey, self.name))

    def __repr__(self) -> str:
        return f"field {self.name!r}"


class _Way(Protocol):
    """From one sender along one edge."""

    def route(self, record: Any) -> tuple[SubtaskId, ...]:
        """The receivers of one record."""

    def deal(self, records: Sequence[Any], data: Sequence[bytes]) -> Mapping[SubtaskId, Sequence[bytes]]:
        """What each receiver gets of many, in order, where ``data`` are their bytes; at least one record each."""


class Router:
    """The receivers of each record that one subtask emits.

    ``keys`` gives the key function of each keyed output, by the receiving operator's name. Belongs to one thread.
    Raises :class:`ConfigurationError` where a keyed output has none.
    """

    def __init__(self, graph: Graph, subtask: SubtaskId, keys: Mapping[str, KeyFunction], max_parallelism: int) -> None:
        self._operator = subtask.operator
        self._ways = {
            edge.receiver: _way_of(graph, edge, subtask.index, keys, max_parallelism)
            for edge in graph.outputs(subtask.operator)
        }
        ways = tuple(self._ways.values())
        self._everywhere: Callable[[Any], tuple[SubtaskId, ...]] | None = None
        """The way to every output at once; None where there is no output."""
        if len(ways) == 1:
            self._everywhere = ways[0].route
        elif ways:
            self._everywhere = lambda record: tuple(receiver for way in ways for receiver in way.route(record))

    def route(self, record: Any, output: str | None = None) -> Sequence[SubtaskId]:
        """The subtasks that get ``record``: of all operators that this one feeds, or only of the one called ``output``.

        Each call takes one turn of a round robin. Raises :class:`ConfigurationError` where there is no such output, or
        where the record has no key.
        """
        if output is None:
            if self._everywhere is None:
                raise self._no_output(output)
            return self._everywhere(record)
        return self._way_to(output).route(record)

    def deal(
        self, records: Sequence[Any], data: Sequence[bytes], output: str | None = None
    ) -> Mapping[SubtaskId, Sequence[bytes]]:
        """What each subtask gets of many records, in their order; ``data`` are their bytes. Raises as ``route``."""
        if output is None and not self._ways:
            raise self._no_output(output)
        ways = self._ways.values() if output is None else [self._way_to(output)]
        if not records:
            return {}
        return {receiver: many for way in ways for receiver, many in way.deal(records, data).items()}

    def _way_to(self, output: str) -> _Way:
        way = self._ways.get(output)
        if way is None:
            raise self._no_output(output)
        return way

    def _no_output(self, output: str | None) -> ConfigurationError:
        what = "a record" if output is None else f"a record for output {output!r}"
        if not self._ways:
            return ConfigurationError(
                f"operator {self._operator!r} emitted {what}, and no operator takes its records; give the receiving"
                f" operator an input from {self._operator!r} (inputs=[...] of job.operator)"
            )
        return ConfigurationError(
            f"operator {self._operator!r} emitted {what}, which is none of its outputs; there are:"
            f" {', '.join(self._ways)}"
        )


def _way_of(graph: Graph, edge: Edge, index: int, keys: Mapping[str, KeyFunction], max_parallelism: int) -> _Way:
    receivers = graph.receivers(edge, index)
    match edge.partitioning:
        case Partitioning.KEYED:
            key = keys.get(edge.receiver)
            if key is None:
                raise ConfigurationError(
                    f"operator {edge.sender!r} feeds {edge.receiver!r} by key, and no key function is given for it;"
                    f" declare the input with keyed_by(...) of {edge.sender!r}"
                )
            return _ByKey(edge, key, receivers, max_parallelism)
        case Partitioning.REBALANCE:
            # Senders begin at different receivers, or the first one would get the first record of each.
            first = index % len(receivers)
            return _InTurns(receivers[first:] + receivers[:first])
        case Partitioning.BROADCAST | Partitioning.FORWARD:
            return _ToAll(receivers)
        case _:
            assert_never(edge.partitioning)


class _ToAll:
    def __init__(self, receivers: Sequence[SubtaskId]) -> None:
        self._receivers = tuple(receivers)

    def route(self, record: Any) -> tuple[SubtaskId, ...]:
        return self._receivers

    def deal(self, records: Sequence[Any], data: Sequence[bytes]) -> Mapping[SubtaskId, Sequence[bytes]]:
        return dict.fromkeys(self._receivers, data)


class _InTurns:
    def __init__(self, receivers: Sequence[SubtaskId]) -> None:
        self._turns = cycle([(receiver,) for receiver in receivers])
        self._count = len(receivers)

    def route(self, record: Any) -> tuple[SubtaskId, ...]:
        return next(self._turns)

    def deal(self, records: Sequence[Any], data: Sequence[bytes]) -> Mapping[SubtaskId, Sequence[bytes]]:
        own = [next(self._turns)[0] for _ in data[: self._count]]
        for _ in range((len(data) - len(own)) % self._count):
            next(self._turns)
        return {receiver: data[begin :: self._count] for begin, receiver in enumerate(own)}


class _ByKey:
    """A record goes to the subtask that owns its key's group. The owners of keys are kept, as far as there is room."""

    def __init__(self, edge: Edge, key: KeyFunction, receivers: Sequence[SubtaskId], groups: int) -> None:
        self._edge, self._key, self._groups = edge, key, groups
        self._receivers = tuple(receivers)
        self._routes = [(receiver,) for receiver in receivers]
        self._owners = [subtask_of_group(group, groups, len(receivers)) for group in range(groups)]
        """Of each group, as an index into the receivers."""
        self._kept: dict[Any, int] = {}

    def route(self, record: Any) -> tuple[SubtaskId, ...]:
        try:
            found = self._key(record)
        except Exception as error:
            raise _no_key(self._edge, self._key, record, f"raised {type(error).__name__}: {error}") from error
        return self._routes[self._owner(record, found)]

    def _owner(self, record: Any, key: Key) -> int:
        try:
            return self._owners[key_group(key, self._groups)]
        except Exception as error:  # a str that UTF-8 cannot hold, a tuple too deep
            raise _no_key(self._edge, self._key, record, f"gave no key: {error}") from error

    def deal(self, records: Sequence[Any], data: Sequence[bytes]) -> Mapping[SubtaskId, Sequence[bytes]]:
        try:
            keys: list[Any] = list(map(self._key, records))
        except Exception:
            for record in records:  # says which
                self.route(record)
            raise
        kept = self._kept
        dealt: list[list[bytes]] = [[] for _ in self._receivers]
        take = [many.append for many in dealt]
        for record, its_data, key in zip(records, data, keys, strict=True):
            keeps = type(key) is bytes or type(key) is str  # True equals 1 and 1.0, and is another key
            owner = kept.get(key) if keeps else None
            if owner is None:
                owner = self._owner(record, key)
                if keeps and len(key) <= _KEPT_KEY_MAX:
                    if len(kept) >= _KEPT_KEYS_MAX:
                        kept.clear()
                    kept[key] = owner
            take[owner](its_data)
        return {receiver: many for receiver, many in zip(self._receivers, dealt, strict=True) if many}


def _no_key(edge: Edge, key: KeyFunction, record: Any, what: str) -> ConfigurationError:
    name = getattr(key, "__qualname__", None) or repr(key)
    return ConfigurationError(
        f"operator {edge.sender!r} emitted a {type(record).__name__} that has no key for {edge.receiver!r}: the key"
        f" function ({name}) {what}"
    )
