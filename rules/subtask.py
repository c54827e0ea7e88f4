"""The subtask's side: the current rules at hand, and nothing handled before there are any."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Generic, NoReturn, TypeVar

from .. import Context, Subtask
from ..errors import ConfigurationError, SubtaskError
from .rule_sets import objects

RuleSetT = TypeVar("RuleSetT")

NO_VERSION = -1


class RuleSubtask(Subtask, Generic[RuleSetT]):
    """A subtask that works by rules. Derive from it and hand the class to :meth:`penstock.Rules.operator`.

    ::

        class Score(penstock.RuleSubtask[list[Rule]]):
            def process(self, record, input):
                self.context.emit(score(record, self.rules))

    An attempt gets its rules after ``open`` and ``restore_state``, and before its first record, row or poll. Its state
    does not hold them: the coordinator gives the current ones to each attempt. No method needs a ``super()`` call.
    """

    rules_version: int = NO_VERSION
    """The version of :attr:`rules`; -1 while the attempt has none."""
    _rules: RuleSetT | None = None

    @property
    def rules(self) -> RuleSetT:
        """The current rules; not to be changed. Raises SubtaskError before the attempt has got any."""
        if self._rules is None:
            raise SubtaskError(
                f"{type(self).__name__} has no rules yet: an attempt gets them after open() and restore_state(); what"
                " is derived from rules belongs into rules_changed()"
            )
        return self._rules

    @rules.setter
    def rules(self, rules: RuleSetT) -> None:
        """For tests that make the subtask without a job."""
        self._rules = rules

    def rules_changed(self, rules: RuleSetT, version: int) -> None:
        """The attempt has got rules: its first ones, also after a restore, or others. :attr:`rules` has them already.

        Between two calls versions may be skipped. What it raises fails the attempt.
        """


class _FollowsRules(RuleSubtask[Any]):
    """What stands in front of the user's class: so overrides there cannot lose it."""

    _rule_set_type: Any

    def open(self, context: Context) -> None:
        self._version_gauge = context.metrics.gauge("rules_version")
        super().open(_without_events(context))

    def may_begin(self) -> bool:
        return self.rules_version != NO_VERSION and super().may_begin()

    def handle_operator_event(self, event: Any) -> None:
        version = event["version"]
        if version == self.rules_version:  # given to a new attempt that has read it in the log already
            return
        self._rules = objects(self._rule_set_type, event["rules"])
        self.rules_version = version
        self._version_gauge.set(version)
        self.rules_changed(self._rules, version)


def subtask_factory(given: Any, rule_set_type: Any) -> Callable[[], Subtask]:
    """Return what makes the operator's subtasks; raises ConfigurationError if ``given`` is no class for rules."""
    cls = given.func if isinstance(given, partial) else given
    if not isinstance(cls, type) or not issubclass(cls, RuleSubtask):
        raise ConfigurationError(
            f"Rules.operator takes a class that derives from penstock.RuleSubtask, or functools.partial of one; not"
            f" {given!r}"
        )
    for handler in ("handle_operator_event", "handle_operator_events"):
        if getattr(cls, handler) is not getattr(Subtask, handler):
            raise ConfigurationError(
                f"{cls.__name__}.{handler} is never called: the events of a rules operator are its rules. Use"
                " rules_changed(rules, version)"
            )
    arguments = (given.args, given.keywords) if isinstance(given, partial) else ((), {})
    return partial(_make, cls, rule_set_type, *arguments)


def _make(cls: type, rule_set_type: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Subtask:
    made: Subtask = _following(cls, rule_set_type)(*args, **kwargs)
    return made


@lru_cache(maxsize=64)
def _following(cls: type, rule_set_type: Any) -> type:
    own = {"_rule_set_type": rule_set_type, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (_FollowsRules, cls), own)


def _without_events(context: Context) -> Context:
    """The same context for the user's class: nobody there would take an event of its own."""

    def refuse(event: Any) -> NoReturn:
        raise ConfigurationError(
            f"subtask {context.operator}/{context.subtask} of job {context.job!r} sends its coordinator an event, which"
            " is that of its rules and takes none; emit records to another operator instead"
        )

    return Context(
        job=context.job,
        operator=context.operator,
        subtask=context.subtask,
        parallelism=context.parallelism,
        fencing_token=context.fencing_token,
        metrics=context.metrics,
        send=refuse,
        emit=context.emit,
        emit_many=context.emit_many,
    )
