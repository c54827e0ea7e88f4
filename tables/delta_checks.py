"""What a Delta table must be so that rows may be appended to it: each reason against it is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigurationError

APPENDABLE = frozenset(
    {
        *("appendOnly", "changeDataFeed", "clustering", "deletionVectors", "domainMetadata", "timestampNtz"),
        *("typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"),
        # Fine unless a column or a setting makes use of them, which is looked at one by one.
        *("checkConstraints", "columnMapping", "generatedColumns", "identityColumns", "invariants"),
        *("allowColumnDefaults", "rowTracking", "inCommitTimestamp", "icebergCompatV1", "icebergCompatV2"),
    }
)
"""Writer features of tables that rows can be appended to without knowing more of them."""

NEEDED = {
    "delta.columnMapping.mode": ("none", "column mapping"),
    "delta.enableRowTracking": ("false", "row tracking"),
    "delta.enableInCommitTimestamps": ("false", "in-commit timestamps"),
    "delta.enableIcebergCompatV1": ("false", "Iceberg compatibility"),
    "delta.enableIcebergCompatV2": ("false", "Iceberg compatibility"),
}
"""Settings that the writer does not support, the value that is fine, and what they are called."""

COLUMN_RULES = {
    "delta.generationExpression": "is a generated column",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
}


def check_table(delta: Any, schema: Any, partition_by: Sequence[str], where: str, may_add: bool) -> list[Any]:
    """Return the columns that the table lacks and that may be added. Raises :class:`ConfigurationError`."""
    import deltalake

    _check_features(delta, where)
    has = list(delta.metadata().partition_columns)
    if has != list(partition_by):
        raise ConfigurationError(
            f"{where} is partitioned by {has}, and the sink was told {list(partition_by)}: give partition_by={has}"
        )
    there = {each.name: each for each in delta.schema().fields}
    wanted = {each.name: each for each in deltalake.Schema.from_arrow(schema).fields}
    for name, each in wanted.items():
        known = there.get(name)
        if known is not None and _kind(known) != _kind(each):
            raise ConfigurationError(f"the column {name!r} of {where} is {_kind(known)}, the sink's is {_kind(each)}")
        if known is not None and each.nullable and not known.nullable:
            raise ConfigurationError(
                f"the column {name!r} of {where} takes no null: give the sink's field nullable=False"
            )
    for name, known in there.items():
        rules = [text for key, text in COLUMN_RULES.items() if key in (known.metadata or {})]
        if rules:
            raise ConfigurationError(f"the column {name!r} of {where} {rules[0]}, which this writer does not support")
        if name not in wanted and (not known.nullable or "CURRENT_DEFAULT" in (known.metadata or {})):
            why = "takes no null" if not known.nullable else "has a default value"
            raise ConfigurationError(f"{where} has a column {name!r} that {why}, and the sink's schema lacks it")
    lacking = [each for name, each in wanted.items() if name not in there]
    if lacking and not may_add:
        names = [each.name for each in lacking]
        raise ConfigurationError(f"{where} lacks the columns {names}: with schema_mode='merge' the sink adds them")
    if unfit := [each.name for each in lacking if not each.nullable]:
        raise ConfigurationError(f"the columns {unfit} cannot be added to {where}: an added column must be nullable")
    return lacking


def _check_features(delta: Any, where: str) -> None:
    protocol, configuration = delta.protocol(), delta.metadata().configuration
    unknown = sorted(set(protocol.writer_features or ()) - APPENDABLE)
    if unknown or protocol.min_writer_version > 7:
        raise ConfigurationError(
            f"{where} has the features {unknown} (writer version {protocol.min_writer_version}), which this writer"
            " does not support"
        )
    for key, (fine, what) in NEEDED.items():
        if (configuration.get(key) or fine).lower() != fine:
            raise ConfigurationError(
                f"{where} has {what} ({key}={configuration[key]}), which this writer does not support"
            )
    if checks := sorted(key for key in configuration if key.startswith("delta.constraints.")):
        raise ConfigurationError(f"{where} has the constraint {checks[0]}, which this writer does not check")


def _kind(field: Any) -> Any:
    return json.loads(field.to_json())["type"]
