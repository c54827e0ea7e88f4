"""What pages are told, in JSON: the whole view once, then what has changed. Made once for however many pages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from .feed import Feed
from .flows import Point
from .model import OperatorView, Segment, SubtaskView, View

TELL_EVERY_S = 0.5
SILENT_TOLD_S = 2.0
"""A shorter silence is none: so a subtask that does nothing is not told again each second."""

Parts = Mapping[str, "str | Mapping[str, str]"]
"""The view's parts as JSON; of the large ones (rows, bars) each entry by itself."""
_ENTRIES = ("rows", "bars")


class Updates:
    """The newest state of a feed, as text."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._head, self._parts, self._at = "", None, -TELL_EVERY_S  # type: tuple[str, Parts | None, float]

    def newest(self) -> tuple[str, Parts | None]:
        """Return what is told beside the view, and the view's parts: None before the first status."""
        if self._parts is None or time.monotonic() - self._at >= TELL_EVERY_S / 2:
            view = self._feed.view()
            head = {"trouble": self._feed.trouble, "looked_ms": self._feed.looked_ms}
            self._head = _text({**head, "now_ms": round(1000 * time.time())})[1:-1]
            self._parts = None if view is None else parts_of(view)
            self._at = time.monotonic()
        return self._head, self._parts

    def whole(self) -> str:
        return self.since(None)[0]

    def since(self, known: Parts | None) -> tuple[str, Parts | None]:
        """Return the message for a page that has the parts ``known``, and the parts that it has then."""
        head, parts = self.newest()
        view = "null" if parts is None else text_of(changed(known or {}, parts))
        return f'{{{head},"view":{view}}}', parts


def parts_of(view: View) -> Parts:
    parts: dict[str, str | Mapping[str, str]] = {}
    for name in _names(View):
        value = getattr(view, name)
        if name == "operators":
            rows = {f"{o.operator}/{s.subtask}": _text(_row(view, s)) for o in value for s in o.subtasks}
            parts["rows"] = rows
            value = [{**_plain(o, "subtasks"), "indexes": _indexes(o)} for o in value]
        elif name == "checkpoints":
            parts["bars"] = {str(c.checkpoint_id): _text(_plain(c.bars)) for c in value if c.bars}
            value = [_plain(c, "bars") for c in value]
        parts[name] = _text(_plain(value))
    return parts


def changed(known: Parts, parts: Parts) -> Parts:
    """Return what a page lacks that has the parts ``known``."""
    found: dict[str, str | Mapping[str, str]] = {}
    for name, part in parts.items():
        before = known.get(name)
        if isinstance(part, str):
            if part != before:
                found[name] = part
        else:
            old = before if isinstance(before, Mapping) else {}
            found[name] = {key: text for key, text in part.items() if old.get(key) != text}
    return found


def text_of(parts: Parts) -> str:
    """Return the parts as one JSON object."""
    return "{" + ",".join(f"{_text(k)}:{p if isinstance(p, str) else text_of(p)}" for k, p in parts.items()) + "}"


def _indexes(operator: OperatorView) -> list[int] | None:
    """Return which subtasks are shown, in which order; None: all of them, from the first to the last."""
    indexes = [s.subtask for s in operator.subtasks]
    return None if indexes == list(range(operator.parallelism)) else indexes


def _row(view: View, s: SubtaskView) -> list[Any]:
    """As the page's ``ROW`` names it. Times are told so that they stay the same while nothing happens."""
    since = 0 if s.since_s < 0 else round((view.at_ms - 1000 * s.since_s) / 1000)
    silent = 0 if s.silent_s < SILENT_TOLD_S else round(s.silent_s)
    return [
        s.phase, since, s.attempt, s.gateway, s.sent, s.handled, s.held, s.received, s.failures, silent, s.host, s.doing
    ]  # fmt: skip


def _plain(value: Any, without: str = "") -> Any:
    """As JSON has it. What there is a lot of is an array."""
    match value:
        case Point():
            return [value.at_ms, *(round(rate, 1) for rate in (value.sent, value.handled, value.received))]
        case Segment():
            return [value.kind, value.begin_ms, value.end_ms, value.open]
        case float():
            return round(value, 1)
        case tuple() | list():
            return [_plain(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {name: _plain(getattr(value, name)) for name in _names(type(value)) if name != without}
        case _:
            return value


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cls))


_text: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode
