"""Sources that are read split by split: what all of them share, and the one that takes any list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from .. import FailoverPolicy
from ..errors import ConfigurationError
from .listing import Found, Listed, Progress, digest
from .row_codec import RowCodec
from .split import Split
from .split_coordinator import SplitCoordinator
from .split_reader import Deal, ReadSplits, SplitReader, rescale

LISTED_AT_ONCE_MAX = 100_000
"""Splits of a list, or of a function without ``after``: each pass has all of them in memory."""

ListSplits: TypeAlias = Callable[..., Iterable[Split | str]]


class SplitSource:
    """What can be read split by split."""

    discover_every: float | None = None

    @property
    def for_readers(self) -> Any:
        """What travels to the subtasks, as ``SplitReader.source``: nothing, where splits say all."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return what must not change while there are checkpoints, as a JSON value."""
        raise NotImplementedError

    def walk(self, progress: Progress) -> Iterator[Found]:
        """Yield what ``progress`` does not know yet. Runs on a worker thread; may raise anything."""
        raise NotImplementedError

    def read_by(
        self,
        reader: Callable[[], SplitReader],
        *,
        prefetch: int = 1,
        output_codec: Any = None,
        rescale: Deal | None = None,
    ) -> dict[str, Any]:
        """Return arguments of ``job.operator(name, **source.read_by(Reader), parallelism=...)``.

        ``reader`` is a :class:`SplitReader`, or a function that makes one. ``prefetch`` is how many splits a subtask
        holds besides the one that it reads: 0 for few large ones. ``output_codec`` is for the records that are emitted;
        left out, JSON (:class:`RowCodec`). ``rescale`` deals the readers' own states where they have any.

        Raises :class:`ConfigurationError`.
        """
        made_of = reader.func if isinstance(reader, partial) else reader
        if isinstance(made_of, type):
            if not issubclass(made_of, SplitReader):
                raise ConfigurationError(
                    f"read_by takes a subclass of penstock.sources.SplitReader, not {made_of.__name__}"
                )
            if made_of.read is SplitReader.read:
                raise ConfigurationError(
                    f"{made_of.__name__} does not say how a split is read: give it a read(self, split, position) that"
                    " yields (position, record)"
                )
        elif not callable(reader):
            raise ConfigurationError(f"read_by takes a SplitReader, or a function that makes one, not {reader!r}")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 <= prefetch <= 1000:
            raise ConfigurationError(f"prefetch must be a whole number from 0 to 1000, not {prefetch!r}")
        return {
            "coordinator": partial(SplitCoordinator, self),
            "subtask": partial(ReadSplits, self.for_readers, reader, prefetch),
            "codec": "json",
            "state_codec": "json",
            "output_codec": RowCodec() if output_codec is None else output_codec,
            "on_failover": FailoverPolicy.REPLAY,
            "rescale": partial(_rescale, rescale),
        }

    def cut(self, split: Split) -> tuple[Split, Split | None]:
        """Return what to hand out now, and what is left of a split that was listed."""
        return split, None

    def parts(self, split: Split) -> int:
        """Return how often ``cut`` will be called."""
        return 1


_rescale = rescale


class Splits(SplitSource):
    """Splits from a list, or from a function that lists them; a split may be given by its id alone.

    ::

        tables = Splits(["customers", "orders"])
        ranges = Splits(list_ranges, discover_every=60)
        job.operator("read", **ranges.read_by(ReadRange), parallelism=4)

    ``list_splits`` is one of these:

    * A function with a parameter ``after``. It yields the splits whose id is greater than ``after`` in increasing order
      of their ids, compared as strings, all of them where ``after`` is None. So nothing has to be remembered but one
      id, however many there are; splits that are added later must have greater ids than those before.
    * A function without it, or a list. It gives all splits that there are, at most 100,000, in any order. Where
      discovery goes on, ids are remembered (10 bytes each), so new ones may have any id.

    The function runs on a worker thread of the coordinator's process. What it raises is tried again 5 times within a
    minute, then it fails the job; a :class:`~penstock.errors.ConfigurationError` does so at once. ``discover_every`` is
    the pause between two listings in seconds; None: there is one, and the operator finishes when all is read.
    """

    def __init__(self, list_splits: ListSplits | Iterable[Split | str], *, discover_every: float | None = None) -> None:
        self.discover_every = checked_interval(discover_every)
        if isinstance(list_splits, str | bytes) or not (callable(list_splits) or isinstance(list_splits, Iterable)):
            raise ConfigurationError(f"Splits takes a list of splits or a function that lists them: {list_splits!r}")
        if callable(list_splits):
            self._list: Callable[..., Any] = list_splits
            self._takes_after = _takes_after(list_splits)
        else:
            self._list = partial(_as_it_is, list(islice(list_splits, LISTED_AT_ONCE_MAX + 1)))
            self._takes_after = False
            if discover_every is not None:
                raise ConfigurationError("discover_every is for a function: the splits of a list are known")
            for _ in self._all():  # a list is refused where it is given
                pass

    def identity(self) -> dict[str, Any]:
        return {"splits": "in order" if self._in_order else "remembered"}

    def walk(self, progress: Progress) -> Iterator[Listed]:
        if self._takes_after:
            yield from self._after(progress.after)
        elif self.discover_every is None:
            for split in sorted(self._all(), key=_id):
                if progress.after is None or split.id > progress.after:
                    yield Listed(split, None, split.id)
        else:
            names = progress.names_in("")
            for split in self._all():
                if digest(split.id) not in names:
                    yield Listed(split, "", split.id)

    @property
    def _in_order(self) -> bool:
        return self._takes_after or self.discover_every is None

    def _after(self, after: str | None) -> Iterator[Listed]:
        for given in self._list(after=after):
            split = _split(given)
            if after is not None and split.id <= after:
                raise ConfigurationError(
                    f"the function that lists splits yielded {split.id!r:.200} after {after!r:.200}: with a parameter"
                    " 'after' it yields greater ids only, in increasing order. Without that parameter any order will do"
                )
            after = split.id
            yield Listed(split, None, split.id)

    def _all(self) -> list[Split]:
        splits = [_split(given) for given in islice(self._list(), LISTED_AT_ONCE_MAX + 1)]
        if len(splits) > LISTED_AT_ONCE_MAX:
            raise ConfigurationError(
                f"more than {LISTED_AT_ONCE_MAX} splits in one list: give Splits a function with a parameter 'after',"
                " which yields them in increasing order of their ids"
            )
        ids = set[str]()
        for split in splits:
            if split.id in ids:
                raise ConfigurationError(f"two splits have the id {split.id!r:.200}; an id names one")
            ids.add(split.id)
        return splits


def checked_interval(discover_every: float | None) -> float | None:
    """Return the pause between two listings, in seconds. Raises ConfigurationError."""
    if discover_every is None:
        return None
    number = isinstance(discover_every, int | float) and not isinstance(discover_every, bool)
    if not number or not 0 < discover_every < float("inf"):
        raise ConfigurationError(f"discover_every must be seconds, more than 0, or None, not {discover_every!r}")
    return float(discover_every)


def _takes_after(function: Callable[..., Any]) -> bool:
    try:
        return "after" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin that does not tell
        return False


def _split(given: Any) -> Split:
    if isinstance(given, Split):
        return given
    if isinstance(given, str):
        return Split(given)
    raise ConfigurationError(f"a split must be a penstock.sources.Split, or its id as a string, not {given!r:.200}")


def _id(split: Split) -> str:
    return split.id


def _as_it_is(splits: list[Split | str]) -> list[Split | str]:
    return splits
