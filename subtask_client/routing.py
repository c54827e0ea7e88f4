"""To which subtasks an emitted record goes (protocol, section 9): one decision per record, so it is prepared ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeAlias, assert_never

from ..schemas.errors import ConfigurationError
from ..schemas.graph import Edge, Graph, Partitioning
from ..schemas.ids import SubtaskId
from ..schemas.keys import Key, key_group, subtask_of_group

KeyFunction: TypeAlias = Callable[[Any], Key]
"""A record's key. It must give the same key for the same record in every process, and change nothing."""

_Route: TypeAlias = Callable[[Any], tuple[SubtaskId, ...]]


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


class Router:
    """The receivers of each record that one subtask emits.

    ``keys`` gives the key function of each keyed output, by the receiving operator's name. Belongs to one thread.
    Raises :class:`ConfigurationError` where a keyed output has none.
    """

    def __init__(self, graph: Graph, subtask: SubtaskId, keys: Mapping[str, KeyFunction], max_parallelism: int) -> None:
        self._operator = subtask.operator
        self._routes = {
            edge.receiver: self._route_of(graph, edge, subtask.index, keys, max_parallelism)
            for edge in graph.outputs(subtask.operator)
        }
        routes = tuple(self._routes.values())
        self._everywhere: _Route | None = None
        """The way to every output at once; None where there is no output."""
        if len(routes) == 1:
            self._everywhere = routes[0]
        elif routes:
            self._everywhere = lambda record: tuple(receiver for route in routes for receiver in route(record))

    def route(self, record: Any, output: str | None = None) -> Sequence[SubtaskId]:
        """The subtasks that get ``record``: of all operators that this one feeds, or only of the one called ``output``.

        Each call takes one turn of a round robin. Raises :class:`ConfigurationError` where there is no such output, or
        where the record has no key.
        """
        route = self._everywhere if output is None else self._routes.get(output)
        if route is None:
            raise self._no_output(output)
        return route(record)

    def _route_of(
        self, graph: Graph, edge: Edge, index: int, keys: Mapping[str, KeyFunction], max_parallelism: int
    ) -> _Route:
        receivers = graph.receivers(edge, index)
        match edge.partitioning:
            case Partitioning.KEYED:
                key = keys.get(edge.receiver)
                if key is None:
                    raise ConfigurationError(
                        f"operator {edge.sender!r} feeds {edge.receiver!r} by key, and no key function is given for it;"
                        f" declare the input with keyed_by(...) of {edge.sender!r}"
                    )
                return _by_key(edge, key, receivers, max_parallelism)
            case Partitioning.REBALANCE:
                # Senders begin at different receivers, or the first one would get the first record of each.
                first = index % len(receivers)
                turns = cycle([(receiver,) for receiver in receivers[first:] + receivers[:first]])
                return lambda record: next(turns)
            case Partitioning.BROADCAST | Partitioning.FORWARD:
                always = tuple(receivers)
                return lambda record: always
            case _:
                assert_never(edge.partitioning)

    def _no_output(self, output: str | None) -> ConfigurationError:
        what = "a record" if output is None else f"a record for output {output!r}"
        if not self._routes:
            return ConfigurationError(
                f"operator {self._operator!r} emitted {what}, and no operator takes its records; give the receiving"
                f" operator an input from {self._operator!r} (inputs=[...] of job.operator)"
            )
        return ConfigurationError(
            f"operator {self._operator!r} emitted {what}, which is none of its outputs; there are:"
            f" {', '.join(self._routes)}"
        )


def _by_key(edge: Edge, key: KeyFunction, receivers: Sequence[SubtaskId], groups: int) -> _Route:
    owners = [(receivers[subtask_of_group(group, groups, len(receivers))],) for group in range(groups)]

    def route(record: Any) -> tuple[SubtaskId, ...]:
        try:
            found = key(record)
        except Exception as error:
            raise _no_key(edge, key, record, f"raised {type(error).__name__}: {error}") from error
        try:
            return owners[key_group(found, groups)]
        except Exception as error:  # a str that UTF-8 cannot hold, a tuple too deep
            raise _no_key(edge, key, record, f"gave no key: {error}") from error

    return route


def _no_key(edge: Edge, key: KeyFunction, record: Any, what: str) -> ConfigurationError:
    name = getattr(key, "__qualname__", None) or repr(key)
    return ConfigurationError(
        f"operator {edge.sender!r} emitted a {type(record).__name__} that has no key for {edge.receiver!r}: the key"
        f" function ({name}) {what}"
    )
