"""Subtask states dealt over another number of subtasks: read, decoded, dealt, encoded, stored (protocol, section 5).

What is decided by handles alone is the core's (:mod:`.protocol.rescaling`); here is what needs a codec, user code, or
state storage. Whatever is wrong with a state or with the user's function refuses the start, and names both.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

from ..schemas.errors import ConfigurationError, JobRefused, StateError, UnreadableRecord
from ..schemas.frames import RECORD_BYTES_MAX
from ..schemas.keys import Key, key_bytes, key_group, subtask_of_group
from ..schemas.sanitize import told
from ..schemas.settings import JobSettings, Rescale
from ..schemas.state import ROWS_MARK, StateHandle, state_location
from ..schemas.user_codec import Codec
from ..transport.state_storage import StateStorage, load_state
from .protocol.effects import Redistribute, StatesToDeal
from .protocol.inputs import Redistributed
from .protocol.record_limits import RECORD_HEADROOM
from .thread_pool import Workers

_T = TypeVar("_T")
_R = TypeVar("_R")
_AT_ONCE = 16
"""So many states are read, or stored, at a time."""

RescaleFunction: TypeAlias = Callable[[Sequence[Any], int], Sequence[Any]]
"""The new states from the old: (state of each old subtask, or None; how many subtasks there are now)."""


class StateSpec(Protocol):
    """How the states of an operator's subtasks travel, and who deals them where ``rescale`` is a function."""

    @property
    def state_codec(self) -> Codec: ...
    @property
    def rescale(self) -> RescaleFunction | None: ...


def _for_each(do: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """What ``do`` makes of each, in their order. Where they are many several at once: most of it waits for storage."""
    given = list(items)
    if len(given) <= _AT_ONCE:
        return [do(item) for item in given]
    workers = Workers(_AT_ONCE, "penstock-redistribution")
    made: dict[int, _R] = {}
    over: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def make(at: int) -> None:
        try:
            made[at] = do(given[at])
            over.put(None)
        except BaseException as error:  # raised below, on the thread that waits for it
            over.put(error)

    try:
        for at in range(len(given)):
            workers.submit(make, at)
        for _ in given:
            if (error := over.get()) is not None:
                raise error
    finally:
        workers.close()
    return [made[at] for at in range(len(given))]


class Redistribution:
    """Deals the states of one job; ``unique`` goes into the names of what it stores.

    States travel in records up to ``inline_state_max``, and no larger than fits ``record_bytes_max``.
    """

    def __init__(
        self,
        settings: JobSettings,
        specs: Mapping[str, StateSpec],
        storage: StateStorage,
        unique: str,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self._settings, self._specs, self._storage, self._unique = settings, specs, storage, unique
        self._inline_max = min(settings.checkpoint.inline_state_max, record_bytes_max - RECORD_HEADROOM)

    def try_out(self, wanted: Redistribute) -> None:
        """Raises JobRefused where :meth:`perform` would for what the states are. Stores nothing."""
        for operator in wanted.operators:
            self._dealt(wanted.restored, operator)

    def perform(self, wanted: Redistribute) -> Redistributed:
        """Deals and stores. Raises JobRefused."""
        states = {}
        for operator in wanted.operators:
            kept = partial(self._kept, wanted, operator.operator)
            states[operator.operator] = tuple(_for_each(kept, enumerate(self._dealt(wanted.restored, operator))))
        return Redistributed(states)

    def _dealt(self, checkpoint_id: int, operator: StatesToDeal) -> list[bytes | None]:
        settings, spec = self._settings.operator(operator.operator), self._specs[operator.operator]
        dealer = _Dealer(self._settings, operator, checkpoint_id, spec)
        read = _for_each(lambda handle: None if handle is None else self._read(dealer, handle), operator.states)
        old = [None if data is None else dealer.decoded(index, data) for index, data in enumerate(read)]
        match settings.rescale:
            case Rescale.LIST:
                new = dealer.lists(old)
            case Rescale.KEYED:
                new = dealer.by_key(old, checked=settings.has_keyed_input)
            case _:
                new = dealer.by_function(old)
        encoded = [dealer.encoded(index, state) for index, state in enumerate(new)]
        for index, state in enumerate(encoded):
            if state is not None and len(state) > self._inline_max and not self._storage.configured:
                why = f"above {self._inline_max} bytes it needs a state_storage, and the job has none"
                raise self._not_kept(operator.operator, index, state, why)
        return encoded

    def _read(self, dealer: _Dealer, handle: StateHandle) -> bytes:
        try:
            return load_state(self._storage, handle)
        except StateError as error:
            dealer.refuse(f"a state cannot be read back: {error}", error)

    def _kept(self, wanted: Redistribute, operator: str, dealt: tuple[int, bytes | None]) -> StateHandle | None:
        """Inline where it is small. What is stored and never named is collected in a later epoch."""
        index, state = dealt
        if state is None:
            return None
        if len(state) <= self._inline_max:
            return StateHandle(len(state), inline=state)
        location = state_location(wanted.checkpoint_id, wanted.epoch, f"{operator}-{index}-rescaled-{self._unique}")
        try:
            self._storage.put(location, state)
        except StateError as error:
            raise self._not_kept(operator, index, state, str(error)) from error
        return StateHandle.stored(location, state)

    def _not_kept(self, operator: str, index: int, state: bytes, why: str) -> JobRefused:
        return JobRefused(
            f"the redistributed state of subtask {operator}/{index} of job {self._settings.name} has {len(state)} bytes"
            f" and cannot be stored: {why}"
        )


class _Dealer:
    """The states of one operator, as objects."""

    def __init__(self, settings: JobSettings, wanted: StatesToDeal, checkpoint_id: int, spec: StateSpec) -> None:
        self._groups, self._wanted, self._spec = settings.max_parallelism, wanted, spec
        self._parallelism = wanted.parallelism
        self._who = (
            f"the states of operator {wanted.operator} in checkpoint {checkpoint_id} of job {settings.name} cannot be"
            f" redistributed from {len(wanted.states)} to {wanted.parallelism} subtasks"
        )

    def refuse(self, why: str, cause: BaseException | None = None) -> NoReturn:
        was = len(self._wanted.states)
        raise JobRefused(f"{self._who}: {why}. Start with parallelism {was}, or with --fresh") from cause

    def decoded(self, subtask: int, data: bytes) -> Any:
        if data.startswith(ROWS_MARK):
            self.refuse("they go with positions in the rows of a DataFrame, whose partitions are its subtasks")
        try:
            return self._spec.state_codec.decode(data)
        except UnreadableRecord as error:
            self.refuse(f"that of subtask {subtask} cannot be read: {error}", error)

    def encoded(self, subtask: int, state: Any) -> bytes | None:
        if state is None:
            return None
        try:
            return self._spec.state_codec.encode(state)
        except ConfigurationError as error:
            self.refuse(f"the new state of subtask {subtask} does not fit the state codec: {error}", error)

    def lists(self, old: Sequence[Any]) -> list[Any]:
        """All items end to end in the order of the subtasks, cut into even runs: their order is kept."""
        items: list[Any] = []
        for subtask, state in enumerate(old):
            if state is not None and not isinstance(state, list | tuple):
                self.refuse(
                    f'rescale is "list", and the state of subtask {subtask} is a {type(state).__name__}: have'
                    " snapshot_state return a list (state_codec), or give a function"
                )
            items += state or ()
        n, count = self._parallelism, len(items)
        return [items[count * index // n : count * (index + 1) // n] for index in range(n)]

    def by_key(self, old: Sequence[Any], *, checked: bool) -> list[Any]:
        """Each entry to the subtask that owns its key; ``checked`` where it must have come from the one that did."""
        new: list[list[tuple[Any, Any]]] = [[] for _ in range(self._parallelism)]
        found: dict[bytes, int] = {}
        as_pairs = False
        for subtask, state in enumerate(old):
            as_pairs = as_pairs or isinstance(state, list | tuple)
            for given, value in self._entries(subtask, state):
                key = _key(given)
                group = self._group(subtask, key)
                owner = subtask_of_group(group, self._groups, len(old))
                if checked and owner != subtask:
                    self.refuse(
                        f"the key {given!r} in the state of subtask {subtask} belongs to subtask {owner}, by the keys"
                        " of its input: the state must use the very key that records are routed by. A codec may have"
                        " changed its type (JSON makes every key of a mapping a string): return a list of"
                        " [key, value] pairs, or give a function"
                    )
                identity = key_bytes(key)
                if identity in found:
                    self.refuse(f"the key {given!r} is in the states of subtasks {found[identity]} and {subtask}")
                found[identity] = subtask
                new[subtask_of_group(group, self._groups, self._parallelism)].append((given, value))
        if not as_pairs:
            for entries in new:
                self._refuse_merged(entries)
        return [[[key, value] for key, value in entries] if as_pairs else dict(entries) for entries in new]

    def _refuse_merged(self, entries: Sequence[tuple[Any, Any]]) -> None:
        """True, 1 and 1.0 are three keys, and one in a mapping."""
        there: dict[Any, Any] = {}
        for key, _ in entries:
            if key in there:
                self.refuse(
                    f"the keys {there[key]!r} and {key!r} come to one subtask, and are the same in a mapping: return a"
                    " list of [key, value] pairs, or give a function"
                )
            there[key] = key

    def _entries(self, subtask: int, state: Any) -> list[tuple[Any, Any]]:
        if state is None:
            return []
        if isinstance(state, Mapping):
            return list(state.items())
        pairs = isinstance(state, list | tuple) and all(isinstance(e, list | tuple) and len(e) == 2 for e in state)
        if not pairs:
            self.refuse(
                f'rescale is "keyed", and the state of subtask {subtask} is a {type(state).__name__}: have'
                " snapshot_state return a mapping, or a list of [key, value] pairs (state_codec), or give a function"
            )
        return [(key, value) for key, value in state]

    def _group(self, subtask: int, key: Any) -> int:
        try:
            return key_group(key, self._groups)
        except ConfigurationError as error:
            self.refuse(f"in the state of subtask {subtask}: {error}", error)

    def by_function(self, old: Sequence[Any]) -> list[Any]:
        function = self._spec.rescale
        assert function is not None
        name = f"its rescale function {getattr(function, '__qualname__', function)}"
        try:
            new = function(list(old), self._parallelism)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() of the user's ends no coordinator
            self.refuse(f"{name} raised {told(error)}", error)
        if isinstance(new, str | bytes | Mapping) or not isinstance(new, Sequence) or len(new) != self._parallelism:
            given = f"{len(new)} of them" if isinstance(new, list | tuple) else f"a {type(new).__name__}"
            self.refuse(f"{name} must return a list of {self._parallelism} states, and returned {given}")
        return list(new)


def _key(given: Any) -> Key:
    """A tuple that was a key comes back as a list from most codecs."""
    return tuple(map(_key, given)) if isinstance(given, list | tuple) else given
