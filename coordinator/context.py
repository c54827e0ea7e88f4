"""A user's coordinator's way to its host (the CoordinatorContext of :mod:`.api`)."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..schemas.errors import ConfigurationError
from ..schemas.settings import OperatorSettings
from .timers import Timer

_log = logging.getLogger(__name__)

SHOWN_CHARS_MAX = 8_000
"""They are in the status, which is written each second."""


class HostMetrics:
    def __init__(self, numbers: dict[str, float]) -> None:
        self._numbers = numbers
        self._lock = threading.Lock()

    def increment(self, name: str, by: float = 1.0) -> None:
        with self._lock:
            self._numbers[name] += by

    def set(self, name: str, value: float) -> None:
        self._numbers[name] = value


class Host(Protocol):
    """The part of an :class:`.host.OperatorHost` that a context needs."""

    job: str
    incarnation: str
    settings: OperatorSettings
    epoch: int
    metrics: HostMetrics
    shown: str

    def run(self, name: str, fn: Callable[[], object]) -> None: ...

    def after(self, delay_s: float, fn: Callable[[], object], epoch: int) -> Timer: ...

    def every(self, interval_s: float, fn: Callable[[], object]) -> Timer: ...

    def work(self, fn: Callable[[], Any], on_result: Callable[[Any, BaseException | None], object]) -> None: ...

    def when_writable(self, subtask: int, fn: Callable[[], object]) -> None: ...

    def raised(self, callback: str, error: BaseException | str) -> None: ...


class HostContext:
    """Of one epoch: what a thread does through it after a global failover is dropped."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._epoch = host.epoch
        self._told = False

    def _is_over(self, what: str) -> bool:
        """Whether the epoch has been rolled back; what is dropped then is said once."""
        if self._epoch == self._host.epoch:
            return False
        if not self._told:
            self._told = True
            _log.warning(
                "job=%s operator=%s: %s through the context of epoch %d is dropped: the coordinator has been rolled"
                " back, and is in epoch %d",
                self.job, self.operator, what, self._epoch, self._host.epoch,
            )  # fmt: skip
        return True

    @property
    def operator(self) -> str:
        return self._host.settings.name

    @property
    def job(self) -> str:
        return self._host.job

    @property
    def incarnation(self) -> str:
        return self._host.incarnation

    @property
    def parallelism(self) -> int:
        return self._host.settings.parallelism

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def metrics(self) -> HostMetrics:
        return self._host.metrics

    def show(self, what: Mapping[str, Any]) -> None:
        try:
            text = json.dumps(dict(what), ensure_ascii=False, separators=(",", ":"))
            text.encode()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"context.show takes names and JSON values: {error}") from error
        if len(text) > SHOWN_CHARS_MAX:
            raise ConfigurationError(
                f"context.show takes at most {SHOWN_CHARS_MAX} characters of JSON, not {len(text)}"
            )
        if not self._is_over("show"):
            self._host.shown = text

    def run_in_coordinator(self, fn: Callable[[], object]) -> None:
        if not self._is_over("run_in_coordinator"):
            self._host.run("run_in_coordinator", fn)

    def call_later(self, delay_s: float, fn: Callable[[], object]) -> Timer:
        return self._host.after(delay_s, fn, self._epoch)

    def call_every(self, interval_s: float, fn: Callable[[], object]) -> Timer:
        return self._host.every(interval_s, fn)

    def call_async(self, fn: Callable[[], Any], on_result: Callable[[Any, BaseException | None], object]) -> None:
        if not self._is_over("call_async"):
            self._host.work(fn, on_result)

    def on_writable(self, subtask: int, fn: Callable[[], object]) -> None:
        if subtask not in range(self._host.settings.parallelism):
            raise ConfigurationError(
                f"operator {self.operator!r} has subtasks 0 to {self.parallelism - 1}, not {subtask!r}"
            )
        if not self._is_over("on_writable"):
            self._host.when_writable(subtask, fn)

    def fail_job(self, cause: BaseException | str) -> None:
        if not self._is_over("fail_job"):
            self._host.raised("fail_job", cause)
