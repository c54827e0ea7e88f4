"""The golden files: for each published schema the bytes of one record, and what they mean.

``python -m tests.schemas.golden_files`` (from the repository's root) writes those of newly published schemas. It never
touches one that exists: bytes like these may stand in somebody's topic.
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.schemas.codec import current_schema, encode, header_of, record_classes

from .values import example, plain

FOLDER = Path(__file__).with_name("golden")
PUBLISHED = Path(__file__).parents[2] / "schemas" / "avro"


def published() -> list[str]:
    """Every published schema as ``<topic>.<Record>.<version>``."""
    return sorted(path.name.removesuffix(".avsc") for path in PUBLISHED.glob("*.avsc"))


def schema_header(schema: str) -> bytes:
    """What every record written under the published schema of that name begins with."""
    return header_of(json.loads((PUBLISHED / f"{schema}.avsc").read_text()))


def golden(schema: str) -> bytes:
    """The golden bytes of that schema."""
    return bytes.fromhex((FOLDER / f"{schema}.hex").read_text())


def meaning(schema: str) -> dict[str, object]:
    """What the golden bytes meant when they were written."""
    expected: dict[str, object] = json.loads((FOLDER / f"{schema}.json").read_text())
    return expected


def write_missing() -> list[str]:
    """Writes the files of published schemas that have none; returns their names."""
    written = []
    for schema in published():
        name = schema.rsplit(".", 1)[0]
        path = FOLDER / f"{schema}.hex"
        if path.exists() or schema_header(schema) != header_of(current_schema(name)):
            continue
        record = example(record_classes()[name])
        digits = encode(record).hex()
        path.write_text("\n".join(digits[at : at + 120] for at in range(0, len(digits), 120)) + "\n")
        path.with_suffix(".json").write_text(json.dumps(plain(record), indent=2, ensure_ascii=False) + "\n")
        written.append(schema)
    return written


if __name__ == "__main__":
    print(*write_missing(), sep="\n")
