"""The coordinator's side: takes new rule sets from requests and a source, and sends each to all subtasks at once.

A checkpoint's cut is taken only when every subtask has been sent the current version. So a completed checkpoint has one
version in all subtasks, also where back pressure spreads a change over several callbacks.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from .. import Backpressure, CheckpointResult, EventFuture, Gateway, OperatorCoordinator
from ..errors import ConfigurationError
from .requests import Request, request_of
from .rule_sets import RuleSet, Validate, check, check_text, objects
from .source_port import Found, Look, Source
from .sources import SourceSettings
from .state_codec import CoordinatorState
from .versions import Version, Versions

_log = logging.getLogger("penstock.rules")

_RULES_SHOWN_CHARS = 1_500
_REASON_CHARS = 300
_SUBTASKS_SHOWN = 20
_SHOW_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """Rules as the job declares them."""

    rule_set_type: Any
    source: SourceSettings | None
    initial: RuleSet | None
    validate: Validate | None
    keep: int
    max_bytes: int
    interval_s: float


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a look has found, checked by the thread that looked."""

    origin: str
    rules: RuleSet | None
    refusal: str


class RulesCoordinator(OperatorCoordinator):
    """Holds the versions; its state is the kept ones, and how far the source has been read."""

    def __init__(self, settings: RulesSettings) -> None:
        self._settings = settings
        self._source: Source | None = None if settings.source is None else settings.source.open()
        self._trouble = ""
        """Why the last look failed."""
        self._has_warned = False
        """It has been said that there are no rules."""
        self._last_refused: dict[str, str] = {}
        self._become(None)

    def _become(self, state: dict[str, Any] | None) -> None:
        self._versions = Versions(self._settings.keep, self._settings.max_bytes)
        self._position: Any = None
        """In the source."""
        self._durable: int | None = None
        """The version of the last completed checkpoint."""
        self._gateways: dict[int, Gateway] = {}
        """Of the attempts that run."""
        self._unsent: set[int] = set()
        """Subtasks among them that have not been sent the current version."""
        self._taken: set[int] = set()
        """Subtasks among them that have taken the current version."""
        self._shows_soon = False
        self._waits_for_room = False
        self._cuts: dict[int, CheckpointResult] = {}
        """Checkpoints whose cut waits for the current version to be sent."""
        self._cut_at: dict[int, int] = {}
        """The versions of checkpoints that have been cut, and may complete."""
        self._is_looking = False
        if state is not None:
            self._versions.restore(state["versions"])
            source = self._settings.source
            self._position = state["position"] if source is not None and state["source"] == source.shown else None
            assert self._versions.current is not None, "a cut before the first version"
            self._durable = self._versions.current.number
        elif self._source is None:
            self._begin_with_initial()

    def _begin_with_initial(self) -> None:
        if self._settings.initial is not None:
            self._versions.begin(self._settings.initial, _now())

    # ---- callbacks

    def start(self) -> None:
        self._show()
        if self._source is not None:
            self.context.call_every(self._settings.interval_s, self._look)
            self._look()
        elif self._versions.current is None:
            self._warn_of_waiting()

    def _warn_of_waiting(self) -> None:
        _log.warning(
            "%s: there are no rules: its subtasks wait for the first set, and no checkpoint completes before it; send"
            " one (penstock request %s %s '{\"set\": [...]}'), or declare Rules(..., initial=[...])",
            self._who, self.context.job, self.context.operator,
        )  # fmt: skip

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        """Give the attempt the current version, whatever its predecessors were sent: its state holds none."""
        self._gateways[subtask] = gateway
        self._taken.discard(subtask)
        self._unsent.add(subtask)
        self._send()

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        gateway = self._gateways.get(subtask)
        if gateway is not None and gateway.attempt == attempt:
            del self._gateways[subtask]
            self._taken.discard(subtask)
            self._unsent.discard(subtask)
            self._show()

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self._cuts[checkpoint_id] = result
        self._take_cuts()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        durable = self._cut_at.get(checkpoint_id)
        if durable is not None:  # None: the restored one
            self._durable = durable
        self._cut_at = {n: version for n, version in self._cut_at.items() if n > checkpoint_id}
        self._show()

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self._cuts.pop(checkpoint_id, None)
        self._cut_at.pop(checkpoint_id, None)

    def reset_to_checkpoint(self, checkpoint_id: int, state: CoordinatorState | None) -> None:
        before = self._versions.kept
        self._become(None if state is None else state.plain)
        current = self._versions.current
        for version in before:
            if version.is_requested and (current is None or version.number > current.number):
                _log.error(
                    "%s: version %d of the rules (%s, from %s) is undone by the rollback to checkpoint %d: ask for it"
                    " again",
                    self._who, version.number, version.digest, version.origin, checkpoint_id,
                )  # fmt: skip
        if current is None:
            return
        try:
            objects(self._settings.rule_set_type, current.rules)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self._who}: version {current.number} of the rules, in checkpoint {checkpoint_id}, does not fit"
                f" today's types: {error}. Give new fields a default"
            ) from error

    def handle_request(self, request: Any) -> Any:
        asked: Request = request_of(request)
        match asked:
            case ("set", rules):
                return self._changed_by_request(rules, "request")
            case ("rollback", number):
                version = self._versions.find(number)
                if version is None:
                    kept = ", ".join(str(each.number) for each in self._versions.kept) or "none"
                    raise ConfigurationError(f"version {number} is not kept; kept are: {kept}")
                return self._changed_by_request(version.rules, f"rollback to {number}")
            case ("history", _):
                return {**self._told(), "history": [version.summary for version in self._versions.kept]}
            case _:
                current = self._versions.current
                about = {"last_refused": self._last_refused, "source_trouble": self._trouble}
                told = {what: value for what, value in about.items() if value}
                return {**self._told(), **told, "rules": None if current is None else current.rules}

    # ---- changes

    def _changed_by_request(self, plain: Any, origin: str) -> dict[str, Any]:
        settings = self._settings
        try:
            rules = check(settings.rule_set_type, plain, settings.validate, settings.max_bytes)
        except ConfigurationError as error:
            self._refuse(origin, str(error))
            raise
        changed = self._add(rules, origin)
        self._send()
        return {**self._told(), "changed": changed is not None}

    def _add(self, rules: RuleSet, origin: str) -> Version | None:
        """Make the rules current; None if they are already. They are to be sent before the callback ends."""
        version = self._versions.add(rules, origin, _now())
        if version is not None:
            self._everyone_lacks_it()
            _log.info(
                "%s: version %d of the rules, %d of them (%s), from %s",
                self._who, version.number, len(version.rules), version.digest, origin,
            )  # fmt: skip
        return version

    def _everyone_lacks_it(self) -> None:
        self._unsent, self._taken = set(self._gateways), set()

    def _refuse(self, origin: str, reason: str) -> None:
        current = self._versions.current
        stays = "there are still no rules" if current is None else f"version {current.number} stays"
        _log.error("%s: the rules from %s are refused, and %s: %s", self._who, origin, stays, reason)
        self._last_refused = {"origin": origin, "reason": reason, "at": _now()}
        self.context.metrics.increment("rules_refused")
        self._show()

    # ---- sending

    def _send(self) -> None:
        """Send the current version to every subtask that lacks it; then take the cuts that wait for that."""
        if self._versions.current is not None:
            self._send_version(self._versions.current)
        self._show()
        self._take_cuts()

    def _send_version(self, version: Version) -> None:
        event = {"version": version.number, "rules": version.rules}
        for subtask in sorted(self._unsent):
            gateway = self._gateways[subtask]
            try:
                sent = gateway.send_event(event)
            except Backpressure:
                if not self._waits_for_room:
                    self._waits_for_room = True
                    self.context.on_writable(subtask, self._go_on)
                return
            self._unsent.discard(subtask)
            sent.add_done_callback(partial(self._handled, gateway, version))

    def _handled(self, gateway: Gateway, version: Version, sent: EventFuture) -> None:
        """An attempt has taken the version, unless the event is void."""
        is_current = self._versions.current is version and self._gateways.get(gateway.subtask) is gateway
        if is_current and sent.exception() is None:
            self._taken.add(gateway.subtask)
            self._show()

    def _go_on(self) -> None:
        self._waits_for_room = False
        self._send()

    def _take_cuts(self) -> None:
        current = self._versions.current
        if current is None or self._unsent:
            return
        for checkpoint_id, result in self._cuts.items():
            self._cut_at[checkpoint_id] = current.number
            source = self._settings.source
            state = {
                "versions": self._versions.to_plain(),
                "source": None if source is None else source.shown,
                "position": self._position,
            }
            result.complete(CoordinatorState(state))
        self._cuts.clear()

    # ---- the source

    def _look(self) -> None:
        """Look at the source on a worker thread, unless a look is under way."""
        if self._is_looking or self._source is None:
            return
        self._is_looking = True
        source, position, settings, versions = self._source, self._position, self._settings, self._versions

        def look() -> tuple[Look, list[_Checked]]:
            looked = source.look(position)
            return looked, [_checked(found, settings) for found in looked.found]

        def looked(result: Any, error: BaseException | None) -> None:
            if versions is self._versions:  # else it began before a reset, and at another position
                self._looked(result, error)

        self.context.call_async(look, looked)

    def _looked(self, result: Any, error: BaseException | None) -> None:
        self._is_looking = False
        assert self._settings.source is not None
        if error is not None:
            self.context.metrics.increment("rules_source_failures")
            self._in_trouble(f"{type(error).__name__}: {error}")
            self._send()  # what was found before, if there was more to read
            return
        looked, checked = result
        self._in_trouble(looked.trouble)
        self._position = looked.position
        for found in checked:
            if found.rules is None:
                self._refuse(found.origin, found.refusal)
            else:
                self._add(found.rules, found.origin)
        if not looked.is_caught_up:  # what is about to be replaced need not be sent
            self._look()
            return
        if self._versions.current is None:
            self._begin_with_initial()
            self._everyone_lacks_it()
            if self._versions.current is None and not self._has_warned:
                self._has_warned = True
                self._warn_of_waiting()
        self._send()

    def _in_trouble(self, trouble: str) -> None:
        """Keep why there is nothing to read, or that there no longer is such a reason."""
        assert self._settings.source is not None
        if trouble and trouble != self._trouble:
            _log.warning(
                "%s: the rules in %s cannot be read, and are tried again every %g s: %s",
                self._who, self._settings.source.shown, self._settings.interval_s, trouble,
            )  # fmt: skip
        self._trouble = trouble

    # ---- telling

    @property
    def _who(self) -> str:
        return f"job={self.context.job} operator={self.context.operator}"

    def _told(self) -> dict[str, Any]:
        """What every answer says."""
        current = self._versions.current
        told: dict[str, Any] = {
            "version": None if current is None else current.number,
            "digest": None if current is None else current.digest,
            "origin": None if current is None else current.origin,
            "durable_version": self._durable,
        }
        told["subtasks"] = sorted(self._taken)
        if self._unsent:
            told["subtasks_not_sent"] = len(self._unsent)
        return told

    def _show(self) -> None:
        metrics, current = self.context.metrics, self._versions.current
        metrics.set("rules_version", -1 if current is None else current.number)
        metrics.set("rules_durable_version", -1 if self._durable is None else self._durable)
        metrics.set("rules_count", 0 if current is None else len(current.rules))
        if not self._shows_soon:  # once for many subtasks
            self._shows_soon = True
            self.context.call_later(_SHOW_AFTER_S, self._show_facts)

    def _show_facts(self) -> None:
        """Show what the dashboard shows."""
        self._shows_soon = False
        current = self._versions.current
        shown: dict[str, Any] = {"version": "none yet: subtasks wait for the first rules"}
        if current is not None:
            taken, parallelism = sorted(self._taken), self.context.parallelism
            shown = {
                "version": f"{current.number} ({current.digest}), from {_short(current.origin, 100)}, {current.at}",
                "subtasks that have it": "all" if len(taken) == parallelism else f"{_named(taken)} of {parallelism}",
                "version of the last checkpoint": self._durable,
                "rules": _short(json.dumps(current.rules, ensure_ascii=False), _RULES_SHOWN_CHARS),
            }
        if self._last_refused:
            shown["last refused"] = _short("{origin}, {at}: {reason}".format(**self._last_refused), _REASON_CHARS)
        if self._trouble:
            shown["source"] = _short(self._trouble, _REASON_CHARS)
        self.context.show(shown)


def _checked(found: Found, settings: RulesSettings) -> _Checked:
    if found.text is None:
        return _Checked(found.origin, None, "a record without a value; the whole rule set is one record")
    try:
        rules = check_text(settings.rule_set_type, found.text, settings.validate, settings.max_bytes)
    except ConfigurationError as error:
        return _Checked(found.origin, None, str(error))
    return _Checked(found.origin, rules, "")


def _short(text: str, chars: int) -> str:
    """Return the text as UTF-8 can have it, cut."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= chars else f"{text[:chars]}... ({len(text)} characters)"


def _named(subtasks: list[int]) -> str:
    named = ", ".join(map(str, subtasks[:_SUBTASKS_SHOWN])) or "none"
    return named if len(subtasks) <= _SUBTASKS_SHOWN else f"{named} and {len(subtasks) - _SUBTASKS_SHOWN} more"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
