"""``python -m penstock.schemas.publish``: writes the schema file of every record class that has changed.

A published file is never changed or removed: records written under it must decode for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

from .codec import current_schema, header_of, published_schemas, record_classes


def unpublished() -> list[tuple[str, int]]:
    """The (name, next version) of every record class whose schema has no file yet."""
    versions: dict[str, list[bytes]] = {}
    for name, schema in published_schemas():
        versions.setdefault(name, []).append(header_of(schema))
    return [
        (name, len(versions.get(name, [])) + 1)
        for name in record_classes()
        if header_of(current_schema(name)) not in versions.get(name, [])
    ]


def publish(folder: Path) -> list[Path]:
    """Writes what :func:`unpublished` names into ``folder`` and returns the new files."""
    written = []
    for name, version in unpublished():
        path = folder / f"{name}.{version}.avsc"
        path.write_text(json.dumps(current_schema(name), indent=2) + "\n")
        written.append(path)
    return written


if __name__ == "__main__":
    for path in publish(Path(__file__).with_name("avro")):
        print(path.name)
