"""The versions of an operator's rules: the current one, and the last ones before it, within bounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .rule_sets import RuleSet


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the rules."""

    number: int
    rules: Any
    """As JSON has them."""
    digest: str
    size: int
    origin: str
    """Where it came from: "initial", "request", "rollback to 7", a file, or a topic with an offset."""
    at: str
    """When the coordinator took it: UTC, ISO 8601."""

    @property
    def is_requested(self) -> bool:
        """Whether somebody has asked for it: nothing brings it again, as a source does."""
        return self.origin == "request" or self.origin.startswith("rollback")

    @property
    def summary(self) -> dict[str, Any]:
        """What the history tells of it: all but the rules."""
        told = asdict(self)
        told["version"] = told.pop("number")
        told["rules"] = len(self.rules)
        return told


class Versions:
    """The kept versions, the current one last. At most ``keep``, of ``bytes_max`` bytes together."""

    def __init__(self, keep: int, bytes_max: int) -> None:
        self._keep, self._bytes_max = keep, bytes_max
        self._kept: list[Version] = []

    @property
    def current(self) -> Version | None:
        return self._kept[-1] if self._kept else None

    @property
    def kept(self) -> list[Version]:
        """Oldest first."""
        return list(self._kept)

    def find(self, number: int) -> Version | None:
        return next((version for version in self._kept if version.number == number), None)

    def begin(self, rules: RuleSet, at: str) -> None:
        """Make the initial rules version 0."""
        self._kept = [Version(0, rules.plain, rules.digest, rules.size, "initial", at)]

    def add(self, rules: RuleSet, origin: str, at: str) -> Version | None:
        """Make the rules the next version; None, and nothing has changed, if they are the current ones."""
        if self.current is not None and self.current.digest == rules.digest:
            return None
        number = 1 if self.current is None else self.current.number + 1
        version = Version(number, rules.plain, rules.digest, rules.size, origin, at)
        self._kept.append(version)
        while len(self._kept) > self._keep or (
            len(self._kept) > 1 and sum(each.size for each in self._kept) > self._bytes_max
        ):
            del self._kept[0]
        return version

    def to_plain(self) -> list[dict[str, Any]]:
        return [asdict(version) for version in self._kept]

    def restore(self, plain: list[dict[str, Any]]) -> None:
        self._kept = [Version(**version) for version in plain]
