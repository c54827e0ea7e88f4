"""`penstock compat`: whether one Avro schema may take another's place, and why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..schemas.compat import Incompatibility, incompatibilities
from ..schemas.errors import ConfigurationError
from .connect import JsonOption
from .console import Console
from .exits import Exit, UsageError

RollingOption = Annotated[
    bool, typer.Option("--rolling", help="Old tasks go on beside new ones: what is new must be readable to the old.")
]


@dataclass(frozen=True)
class Direction:
    """Whether one side can read all that the other has written."""

    problems: list[Incompatibility] = field(default_factory=list)

    @property
    def safe(self) -> bool:
        return not self.problems

    def plain(self) -> dict[str, Any]:
        return {"safe": self.safe, "problems": [{"path": p.path, "reason": p.reason} for p in self.problems]}


@dataclass(frozen=True)
class Compared:
    """Two schemas, both ways."""

    backward: Direction
    """The new one reads what the old one wrote: what resuming needs."""
    forward: Direction
    """The old one reads what the new one writes: what a rolling upgrade needs as well."""

    def safe(self, rolling: bool) -> bool:
        return self.backward.safe and (self.forward.safe or not rolling)

    def plain(self) -> dict[str, Any]:
        return {"backward": self.backward.plain(), "forward": self.forward.plain()}


def compared(old: Any, new: Any) -> Compared:
    return Compared(Direction(incompatibilities(new, old)), Direction(incompatibilities(old, new)))


def compat(
    old: Annotated[Path, typer.Argument(metavar="OLD.avsc", help="The schema that was in use.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.avsc", help="The schema that is to take its place.")],
    rolling: RollingOption = False,
    as_json: JsonOption = False,
) -> int:
    """Tell whether a schema may take the place of another: exit code 0 if it may, 5 if not, with every reason.

    Safe is what a job can be resumed with: the new schema reads what the old one wrote. With --rolling tasks of the old
    one still run beside it, and must read what is new.
    """
    both = compared(_schema(old), _schema(new))
    safe = both.safe(rolling)
    console = Console(as_json=as_json)
    if as_json:
        console.data({"safe": safe, "rolling": rolling, **both.plain()})
    else:
        show_direction(console, f"{new} reads what {old} wrote", both.backward)
        show_direction(console, f"{old} reads what {new} writes", both.forward)
        console.show(verdict(safe, both.forward.safe))
    return Exit.DONE if safe else Exit.UNSAFE


def show_direction(console: Console, what: str, direction: Direction) -> None:
    console.show(f"{what}: {'yes' if direction.safe else 'no'}")
    for problem in direction.problems:
        console.show(f"  {problem}")


def verdict(safe: bool, forward: bool) -> str:
    if not safe:
        return "not safe"
    return "safe" if forward else "safe to resume with, but not while old tasks go on (--rolling)"


def _schema(path: Path) -> Any:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no JSON: {error}"
        raise UsageError(f"{path} cannot be read: {why}") from error
    try:
        incompatibilities(schema, schema)
    except ConfigurationError as error:
        raise UsageError(f"{path}: {error}") from error
    return schema
