"""The declaration of an operator's rules in a job file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from .. import CodecSpec, codec_for
from ..errors import ConfigurationError
from .coordinator import RulesCoordinator, RulesSettings
from .rule_sets import Validate, as_plain, check, rule_set_type
from .sources import SourceSettings
from .state_codec import StateCodec
from .subtask import subtask_factory

MAX_BYTES_MAX = 512 * 1024


class Rules:
    """Versioned rule sets for all subtasks of an operator (``docs/rules.md``).

    ::

        rules = penstock.Rules(Rule, source="topic:rules", kafka={"bootstrap.servers": "broker:9092"})
        job.operator("score", **rules.operator(Score), parallelism=8)

    ``rule``: a dataclass (a rule set is a list of them), or ``list[Rule]`` or ``dict[str, Rule]``. ``source``:
    "topic:NAME" (one partition, each record a whole set), an absolute path or an fsspec URL of a JSON file, or None:
    requests alone. ``kafka``: client settings of a topic source. ``initial``: version 0, where the source holds no
    rules; None: subtasks wait for the first set. ``validate``: called with each new set; raises, or returns a text, if
    it must not be used. ``keep``: how many versions are kept. ``max_bytes``: bytes of JSON of all kept versions, and of
    one set, at most 512 KiB. ``interval``: seconds between two looks at the source.

    Raises ConfigurationError where an argument cannot be.
    """

    def __init__(
        self,
        rule: Any,
        *,
        source: str | None = None,
        kafka: Mapping[str, Any] | None = None,
        initial: Any = None,
        validate: Validate | None = None,
        keep: int = 10,
        max_bytes: int = 64 * 1024,
        interval: float = 1.0,
    ) -> None:
        hint = rule_set_type(rule)
        for what, value in (("keep", keep), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{what} of rules must be a whole number, at least 1, not {value!r}")
        if max_bytes > MAX_BYTES_MAX:
            raise ConfigurationError(
                f"max_bytes of rules is {max_bytes}: above {MAX_BYTES_MAX} a rule set may not fit into a Kafka record"
            )
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval < float("inf"):
            raise ConfigurationError(f"interval of rules must be a number of seconds above 0, not {interval!r}")
        if validate is not None and not callable(validate):
            raise ConfigurationError(f"validate of rules must be a function of a rule set, not {validate!r}")
        if source is None and kafka is not None:
            raise ConfigurationError("kafka settings of rules are for a source 'topic:NAME', and there is no source")
        checked = None
        if initial is not None:
            try:
                checked = check(hint, as_plain(hint, initial), validate, max_bytes)
            except ConfigurationError as error:
                raise ConfigurationError(f"the initial rules are refused: {error}") from error
        self._settings = RulesSettings(
            hint,
            None if source is None else SourceSettings(source, dict(kafka or {}), max_bytes),
            checked,
            validate,
            keep,
            max_bytes,
            interval,
        )

    def operator(self, subtask: Any, *, state_codec: CodecSpec = None) -> dict[str, Any]:
        """Return arguments for ``job.operator(name, **..., parallelism=...)``.

        ``subtask``: a class that derives from :class:`penstock.RuleSubtask`, or ``functools.partial`` of one.
        ``state_codec``: of its own state, as ``job.operator`` takes it; it is given here, because the coordinator's
        state goes through it as well. Every other argument of ``job.operator`` but ``codec`` may be given there.
        """
        return {
            "subtask": subtask_factory(subtask, self._settings.rule_set_type),
            "coordinator": partial(RulesCoordinator, self._settings),
            "codec": "json",
            "state_codec": StateCodec(codec_for(state_codec)),
        }
