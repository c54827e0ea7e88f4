"""A subtask's own numbers, sent with its periodic heartbeats."""

from __future__ import annotations

from ..schemas.errors import ConfigurationError

METRICS_MAX = 200
"""Names per subtask: every one travels with every heartbeat."""
_NAME_LENGTH_MAX = 100


class Counter:
    """Only rises, from 0 at each attempt."""

    def __init__(self, values: dict[str, float], name: str) -> None:
        self._values, self._name = values, name

    def inc(self, n: float = 1) -> None:
        self._values[self._name] += n


class Gauge:
    """Whatever was set last."""

    def __init__(self, values: dict[str, float], name: str) -> None:
        self._values, self._name = values, name

    def set(self, value: float) -> None:
        self._values[self._name] = float(value)


class Metrics:
    """Makes counters and gauges by name; the same name is the same number."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def counter(self, name: str) -> Counter:
        """Raises :class:`ConfigurationError` past :data:`METRICS_MAX` names."""
        self._register(name)
        return Counter(self._values, name)

    def gauge(self, name: str) -> Gauge:
        """Raises :class:`ConfigurationError` past :data:`METRICS_MAX` names."""
        self._register(name)
        return Gauge(self._values, name)

    def values(self) -> dict[str, float]:
        """A copy, from any thread."""
        return self._values.copy()

    def _register(self, name: str) -> None:
        if name in self._values:
            return
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_LENGTH_MAX:
            raise ConfigurationError(f"a metric's name must be a string of at most {_NAME_LENGTH_MAX}, not {name!r}")
        if len(self._values) >= METRICS_MAX:
            raise ConfigurationError(f"a subtask may have {METRICS_MAX} metrics; {name!r} is one too many")
        self._values[name] = 0.0
