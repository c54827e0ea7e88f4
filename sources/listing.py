"""What a listing has reached, and the worker's end of it: splits are listed in bounded steps, off the coordinator."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from .split import Split, size_of

STEP_S = 1.0
"""Seconds that one step may take, beyond one call of the source."""
_DIGEST = 10
"""Bytes kept of a name: among a million names two agree with a probability below one in 10^12."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One split that has been found, and how the listing goes on behind it."""

    split: Split
    folder: str | None
    """Of a name that is remembered; None where ``key`` is the point up to which everything has been found."""
    key: Any


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing is found any more in this folder, nor in those that sort before it."""

    folder: str


Found: TypeAlias = Listed | Closed


@dataclass
class Progress:
    """How far a listing has come: in every checkpoint, so it grows with what has to be remembered alone."""

    after: Any = None
    """Everything up to here has been found, where a listing goes through its splits in order."""
    seen: dict[str, bytearray] = field(default_factory=dict)
    """Digests of the names that were found, by folder, where new ones may have any name."""
    closed: str | None = None
    """Folders up to this one are not looked at any more."""

    def note(self, found: Found) -> None:
        """Take over what was found, once its split is in the look-ahead."""
        if isinstance(found, Closed):
            self.closed = found.folder
            self.seen = {folder: names for folder, names in self.seen.items() if folder > found.folder}
        elif found.folder is None:
            self.after = found.key
        else:
            self.seen.setdefault(found.folder, bytearray()).extend(digest(found.key))

    def names_in(self, folder: str) -> set[bytes]:
        """Return the digests of the names that were found in a folder."""
        names = bytes(self.seen.get(folder, b""))
        return {names[at : at + _DIGEST] for at in range(0, len(names), _DIGEST)}

    @property
    def remembered(self) -> int:
        """Names that are remembered."""
        return sum(map(len, self.seen.values())) // _DIGEST

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        seen = {folder: base64.b64encode(names).decode() for folder, names in self.seen.items()}
        return {"after": self.after, "seen": seen, "closed": self.closed}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Progress:
        """Return what :meth:`to_json` was called on."""
        seen = {folder: bytearray(base64.b64decode(names)) for folder, names in plain["seen"].items()}
        return cls(plain["after"], seen, plain["closed"])


def digest(name: str) -> bytes:
    """Return the bytes that are kept of a name."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()


class Listing(Protocol):
    """How the coordinator sees a source."""

    discover_every: float | None
    """Seconds from the end of one listing to the beginning of the next; None: there is one, and then no more input."""

    def identity(self) -> dict[str, Any]:
        """Return what must not change while there are checkpoints, as a JSON value."""

    def walk(self, progress: Progress) -> Iterator[Found]:
        """Yield what ``progress`` does not know yet. Runs on a worker thread; may raise anything."""

    def cut(self, split: Split) -> tuple[Split, Split | None]:
        """Return what to hand out now, and what is left of a split that was listed."""

    def parts(self, split: Split) -> int:
        """Return how often ``cut`` will be called."""


@dataclass(frozen=True)
class Step:
    """What one step of a walk has found."""

    found: list[Found]
    sizes: list[int]
    """Bytes of each split as JSON, 0 for what is none."""
    ended: bool


class Walk:
    """One pass over a source. Steps run on a worker thread, one at a time."""

    def __init__(self, source: Listing, progress: Progress) -> None:
        self._found = iter(source.walk(progress))
        self.cancelled = False
        """Set by the coordinator, from its own thread, when nobody needs the result."""

    def step(self, count: int, size: int) -> Step:
        """Find at most ``count`` splits, and at most one beyond ``size`` bytes; stop after a second."""
        found: list[Found] = []
        sizes: list[int] = []
        deadline, splits, total = time.monotonic() + STEP_S, 0, 0
        while splits < count and total < size and not self.cancelled and time.monotonic() < deadline:
            one = next(self._found, None)
            if one is None:
                return Step(found, sizes, ended=True)
            found.append(one)
            sizes.append(size_of(one.split) if isinstance(one, Listed) else 0)
            splits, total = splits + isinstance(one, Listed), total + sizes[-1]
        return Step(found, sizes, ended=False)
