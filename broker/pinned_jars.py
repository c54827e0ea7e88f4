"""The jars of the broker, pinned: coordinates, SHA-256 and size, from the data file beside this one."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KAFKA_VERSION = "4.3.0"


@dataclass(frozen=True, slots=True)
class Pin:
    """One jar that the broker needs."""

    group: str
    artifact: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` is this jar, by its SHA-256; False when there is none."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


@cache
def kafka_pins() -> tuple[Pin, ...]:
    """Every jar of the broker."""
    rows = Path(__file__).with_name(f"kafka-{KAFKA_VERSION}.jars").read_text().splitlines()
    return tuple(_parse(row) for row in rows if row and not row.startswith("#"))


def _parse(row: str) -> Pin:
    coordinates, sha256, size_bytes = row.split()
    group, artifact, version = coordinates.split(":")
    return Pin(group, artifact, version, sha256, int(size_bytes))
