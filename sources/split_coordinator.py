"""The coordinator of a source: lists splits ahead, and hands each out once, to whoever asks.

It runs under ``on_failover="replay"``: while subtasks fail it keeps its state, and the log gives a subtask its splits
again. That takes no care in here because a request says how many splits a subtask wants *in all*: what an attempt that
was rolled back had asked for is asked for again, and has been given.

So the state is the listing's progress, the look-ahead, and two numbers per subtask. Which splits are open, and where,
is in the states of the subtasks alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from .. import CheckpointResult, EventContext, Gateway, OperatorCoordinator
from ..errors import Backpressure, ConfigurationError, PenstockError, StateError
from .listing import Closed, Listing, Progress, Step, Walk
from .split import Split, size_of

_log = logging.getLogger("penstock.sources")

STATE_VERSION = 1
LOOK_AHEAD = 1_000
"""Splits that are listed and not handed out yet, at most; all of them are in the state."""
LOOK_AHEAD_BYTES = 48 * 1024
"""Bytes of them as JSON: well below ``inline_state_max``."""
WINDOW = 100
"""Splits among which one with a host, or with more weight, goes first; and how often the oldest may be passed over."""
LISTING_ATTEMPTS = 6
"""A listing that has failed so often in a row fails the coordinator; 1, 2, 4 ... seconds lie between."""


class Ahead(NamedTuple):
    """A split in the look-ahead."""

    split: Split
    size: int


class SplitCoordinator(OperatorCoordinator):
    """Hands out the splits of one source."""

    def __init__(self, source: Listing) -> None:
        self._source = source
        self._started = False
        self._walk: Walk | None = None
        self._empty()

    def _empty(self) -> None:
        if self._walk is not None:
            self._walk.cancelled = True  # its result, if it comes, is of a history that was rolled back
        self._progress = Progress()
        self._listed = False
        """There is no more input: the one listing has ended."""
        self._ahead: deque[Ahead] = deque()
        self._found = self._handed_out = 0
        self._series = 0
        """Of the counters below. Another parallelism begins a new one: see :func:`.split_reader.rescale`."""
        self._given: dict[int, int] = {}
        """Splits that each subtask was given in this series."""
        self._told: set[int] = set()
        """Subtasks that know of the end."""
        self._finished: dict[int, int] = {}
        """Splits that each subtask has said to have read to their end."""

        # Not in the state: a subtask that begins asks again.
        self._waiting: dict[int, int] = {}
        """How many splits a subtask wants in all, where that is more than it was given; the first waits longest."""
        self._hosts: dict[int, str] = {}
        self._gateways: dict[int, Gateway] = {}
        self._blocked: set[int] = set()
        """Subtasks whose gateway had no room."""
        self._walk = None
        self._stepping = self._pausing = False
        self._failures, self._last_failure = 0, ""
        self._ahead_size = self._with_preferences = self._passed_over = 0

    # ---- callbacks

    def start(self) -> None:
        self._refill()
        self._started = True

    def close(self) -> None:
        if self._walk is not None:
            self._walk.cancelled = True

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._gateways[subtask] = gateway
        self._blocked.discard(subtask)
        self._serve()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        series = event["series"]
        if series < self._series or subtask >= self.context.parallelism:
            return  # sent before the subtasks were rescaled; they have asked again since
        if series > self._series:
            self._series = series
            for counters in (self._given, self._told, self._finished, self._waiting):
                counters.clear()
        self._finished[subtask], self._hosts[subtask] = event["finished"], event["host"]
        if event["wants"] > self._given.get(subtask, 0):
            self._waiting[subtask] = event["wants"]
        self._serve()

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(
            {
                "version": STATE_VERSION,
                "source": self._source.identity(),
                "progress": self._progress.to_json(),
                "listed": self._listed,
                "ahead": [entry.split.to_json() for entry in self._ahead],
                "found": self._found,
                "handed_out": self._handed_out,
                "series": self._series,
                "given": sorted(self._given.items()),
                "told": sorted(self._told),
                "finished": sorted(self._finished.items()),
            }
        )

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self._empty()
        if state is not None:
            self._restore(checkpoint_id, state)
        if self._started:
            self._refill()

    def handle_request(self, request: Any) -> Any:
        """Answer any request with the progress."""
        finished = sum(self._finished.values())
        if self._listed:
            listing = "ended"
        elif self._failures:
            listing = f"has failed {self._failures} times and is tried again: {self._last_failure}"
        else:
            listing = "waits for the next discovery" if self._pausing else "running"
        return {
            "found": self._found,
            "handed_out": self._handed_out,
            "finished": finished,
            "open": self._handed_out - finished,
            "listing": listing,
        }

    def _restore(self, checkpoint_id: int, state: Any) -> None:
        version = state.get("version") if isinstance(state, dict) else None
        if version != STATE_VERSION:
            raise StateError(
                f"checkpoint {checkpoint_id}: the state of the coordinator of operator {self.context.operator!r} is not"
                f" that of a source (version {version!r}, known here is {STATE_VERSION}); an operator that has become a"
                " source begins under another name"
            )
        if state["source"] != (now := self._source.identity()):
            raise ConfigurationError(
                f"operator {self.context.operator!r} goes on from checkpoint {checkpoint_id}, which lists"
                f" {state['source']}; the job says {now}. What was read of the one says nothing of the other: change it"
                " back, or give the operator another name"
            )
        self._progress = Progress.from_json(state["progress"])
        self._listed, self._found, self._handed_out = state["listed"], state["found"], state["handed_out"]
        self._series, self._told = state["series"], set(state["told"])
        self._given, self._finished = dict(state["given"]), dict(state["finished"])
        for fields in state["ahead"]:
            split = Split.from_json(fields)
            self._append(split, size_of(split))

    # ---- listing

    def _refill(self) -> None:
        """List on, on a worker thread, where the look-ahead is half empty."""
        room, bytes_room = LOOK_AHEAD - len(self._ahead), LOOK_AHEAD_BYTES - self._ahead_size
        if self._stepping or self._pausing or self._listed:
            return
        if room < LOOK_AHEAD // 2 or bytes_room < LOOK_AHEAD_BYTES // 2:
            return
        self._stepping = True
        if self._walk is None:
            self._walk = Walk(self._source, self._progress)
        self.context.call_async(partial(self._walk.step, room, bytes_room), self._stepped)

    def _stepped(self, step: Step | None, error: BaseException | None) -> None:
        self._stepping = False
        if step is None:
            assert error is not None
            self._walk = None
            self._listing_failed(error)
            return
        self._failures = 0
        for found, size in zip(step.found, step.sizes, strict=True):
            self._progress.note(found)
            if not isinstance(found, Closed):
                self._found += self._source.parts(found.split)
                self._append(found.split, size)
        if step.ended:
            self._walk = None
            if self._source.discover_every is None:
                self._listed = True
                level = logging.INFO if self._found else logging.WARNING
                _log.log(level, "operator %s: the listing has ended, %d splits", self.context.operator, self._found)
            else:
                self._pause(self._source.discover_every)
        self._serve()

    def _listing_failed(self, error: BaseException) -> None:
        self._failures += 1
        self._last_failure = f"{type(error).__name__}: {error}"
        self.context.metrics.increment("listing_failures")
        if isinstance(error, PenstockError) or self._failures >= LISTING_ATTEMPTS:
            raise error
        delay = 2.0 ** (self._failures - 1)
        _log.warning(
            "operator %s: the listing has failed, attempt %d of %d, the next one in %g s: %s", self.context.operator,
            self._failures, LISTING_ATTEMPTS, delay, self._last_failure,
        )  # fmt: skip
        self._pause(delay)

    def _pause(self, delay: float) -> None:
        self._pausing = True
        self.context.call_later(delay, self._go_on)

    def _go_on(self) -> None:
        self._pausing = False
        self._refill()

    def _append(self, split: Split, size: int) -> None:
        self._ahead.append(Ahead(split, size))
        self._ahead_size += size
        self._with_preferences += split.prefers

    # ---- handing out

    def _serve(self) -> None:
        """Give splits to those that wait, one to each by turns; tell of the end; list on."""
        given = True
        while given and self._ahead:
            given = False
            for subtask in list(self._waiting):
                given = (bool(self._ahead) and self._give(subtask)) or given
        if self._listed and not self._ahead:
            for subtask, gateway in self._gateways.items():
                if subtask not in self._told and self._sent(subtask, gateway, {"end": True}):
                    self._told.add(subtask)
        self._measure()
        self._refill()

    def _give(self, subtask: int) -> bool:
        gateway = self._gateways.get(subtask)
        if gateway is None or subtask in self._blocked:
            return False
        at = self._choose(self._hosts.get(subtask))
        listed = self._ahead[at]
        split, rest = self._source.cut(listed.split)
        if not self._sent(subtask, gateway, {"series": self._series, "split": split.to_json()}):
            return False
        if rest is not None:
            self._ahead[at] = Ahead(rest, listed.size)
        else:
            self._passed_over = 0 if at == 0 else self._passed_over + 1
            del self._ahead[at]
            self._ahead_size -= listed.size
            self._with_preferences -= listed.split.prefers
        self._handed_out += 1
        self._given[subtask] = given = self._given.get(subtask, 0) + 1
        if given >= self._waiting[subtask]:
            del self._waiting[subtask]
        return True

    def _choose(self, host: str | None) -> int:
        """Return the place in the look-ahead of the split that a subtask on ``host`` gets.

        The oldest is passed over at most WINDOW times, so each split has its turn.
        """
        if not self._with_preferences or self._passed_over >= WINDOW:
            return 0
        best, best_rank = 0, (-1, -1.0)
        for at in range(min(WINDOW, len(self._ahead))):
            split = self._ahead[at].split
            near = 2 if host in split.hosts else 1 if not split.hosts else 0
            if (rank := (near, split.weight)) > best_rank:
                best, best_rank = at, rank
        return best

    def _sent(self, subtask: int, gateway: Gateway, event: Any) -> bool:
        try:
            gateway.send_event(event)
        except Backpressure:
            if subtask not in self._blocked:
                self._blocked.add(subtask)
                self.context.on_writable(subtask, self._unblocked(subtask))
            return False
        return True

    def _unblocked(self, subtask: int) -> Callable[[], None]:
        def go_on() -> None:
            self._blocked.discard(subtask)
            self._serve()

        return go_on

    def _measure(self) -> None:
        metrics, finished = self.context.metrics, sum(self._finished.values())
        metrics.set("splits_found", self._found)
        metrics.set("splits_handed_out", self._handed_out)
        metrics.set("splits_finished", finished)
        metrics.set("splits_open", self._handed_out - finished)
