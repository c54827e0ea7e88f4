"""`penstock compat`: whether Avro schemas may take the place of others, and why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..checkpoint_log.history import History
from ..checkpoint_log.restorability import schemas_needed_by
from ..schemas.checkpoints import key_of
from ..schemas.compat import Incompatibility, incompatibilities
from ..schemas.errors import ConfigurationError
from ..schemas.settings import JobSettings
from ..schemas.topics import DEFAULT_PREFIX
from ..schemas.user_schemas import problems
from .connect import BrokerOption, ClientConfigOption, JsonOption, PrefixOption, job_client
from .console import Console
from .exits import Exit, UsageError
from .job_file import load_job

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
    old: Annotated[str, typer.Argument(metavar="OLD.avsc|JOB", help="The schema that was in use, or a job's name.")],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW.avsc|FILE.py[:NAME]", help="The schema that is to take its place, or the job's new file."
        ),
    ],
    rolling: RollingOption = False,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Tell whether schemas may take the place of others: exit code 0 if they may, 5 if not, with every reason.

    Of two schema files, or of a job on the broker and the file it is to be started with: for each operator its events,
    states (the coordinator's too: they share a codec) and output, against all that a checkpoint or savepoint was
    written under. Safe is what a job can be resumed with: what is new reads what is there. With --rolling tasks of the
    old file still run, and must read what is new.
    """
    console = Console(as_json=as_json)
    if new.endswith(".avsc"):
        return _files(console, Path(old), Path(new), rolling)
    with console.stdout_kept():
        settings = load_job(new).settings
    with job_client(old, broker, prefix, client_config) as client:
        history = client.history()
    return _job(console, old, verdicts(settings, history), rolling)


def _files(console: Console, old: Path, new: Path, rolling: bool) -> int:
    both = compared(_schema(old), _schema(new))
    safe = both.safe(rolling)
    if console.as_json:
        console.data({"safe": safe, "rolling": rolling, **both.plain()})
    else:
        show_direction(console, f"{new} reads what {old} wrote", both.backward)
        show_direction(console, f"{old} reads what {new} writes", both.forward)
        console.show(_in_words(safe, both.forward.safe))
    return Exit.DONE if safe else Exit.UNSAFE


# ---- a job on the broker, and its file


@dataclass(frozen=True)
class Verdict:
    """What is recorded of one subject of one operator under one schema, beside what the file says of it."""

    operator: str
    subject: str
    epochs: tuple[int, int]
    """From the first to the newest epoch in which it was in use."""
    checkpoints: list[int]
    """Kept checkpoints and savepoints that may hold what was written under it."""
    resumed: bool
    """Whether the newest checkpoint is among them: then a start depends on it."""
    in_use: bool
    """Whether the job's newest epoch uses it: then tasks may go on to."""
    both: Compared | None
    """None where there is nothing to compare with: the operator is gone, or its codec has no schema."""
    note: str = ""

    def safe(self, rolling: bool) -> bool:
        if self.both is None:
            return True
        reads = self.both.backward.safe or not self.resumed
        return reads and (self.both.safe(rolling=True) or not (rolling and self.in_use))

    def plain(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "subject": self.subject,
            "epochs": list(self.epochs),
            "checkpoints": self.checkpoints,
            "resumed": self.resumed,
            "in_use": self.in_use,
            "note": self.note,
            **({} if self.both is None else self.both.plain()),
        }


def verdicts(settings: JobSettings, history: History) -> list[Verdict]:
    """One for each schema that the job has recorded."""
    found = []
    for key, used in sorted(history.schemas.items()):
        held = [n for n, c in sorted(history.checkpoints.items()) if key in map(key_of, schemas_needed_by(history, c))]
        today = settings.schema_of(used.operator, used.subject)
        both, note = None, ""
        if used.operator not in settings.parallelism:
            note = "the file has no such operator: nothing of it is read"
        elif today is None:
            note = "its codec has no schema (bytes, or one of your own): nothing to check"
        else:
            both = Compared(
                Direction(list(problems(today.text, used.schema))), Direction(list(problems(used.schema, today.text)))
            )
        epochs = used.first_epoch, used.last_epoch
        resumed = history.last_id in held
        in_use = used.last_epoch == history.epoch
        found.append(Verdict(used.operator, used.subject, epochs, held, resumed, in_use, both, note))
    return found


def _job(console: Console, job: str, found: list[Verdict], rolling: bool) -> int:
    safe = all(verdict.safe(rolling) for verdict in found)
    if console.as_json:
        told = {"job": job, "safe": safe, "rolling": rolling, "recorded": [v.plain() for v in found]}
        console.data(told)
        return Exit.DONE if safe else Exit.UNSAFE
    if not found:
        console.show(f"job {job} has recorded no Avro schema: json and bytes have none, so there is nothing to check")
    for v in found:
        held = ", ".join(map(str, v.checkpoints)) or "none"
        epochs = f"epoch {v.epochs[0]}" if v.epochs[0] == v.epochs[1] else f"epochs {v.epochs[0]} to {v.epochs[1]}"
        console.show(f"{v.operator}: {v.subject} ({epochs}; checkpoints: {held})")
        if v.both is None:
            console.show(f"  {v.note}")
            continue
        show_direction(console, "  the file reads what was written", v.both.backward, "    ")
        if v.in_use:
            show_direction(console, "  tasks that go on read what the file writes", v.both.forward, "    ")
        if not v.both.backward.safe and not v.resumed:
            console.show("  the newest checkpoint holds nothing of it: only going back to an older one is refused")
    console.show(_in_words(safe, all(v.safe(rolling=True) for v in found)))
    return Exit.DONE if safe else Exit.UNSAFE


def show_direction(console: Console, what: str, direction: Direction, indent: str = "  ") -> None:
    console.show(f"{what}: {'yes' if direction.safe else 'no'}")
    for problem in direction.problems:
        console.show(f"{indent}{problem}")


def _in_words(safe: bool, forward: bool) -> str:
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
