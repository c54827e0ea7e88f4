"""`penstock events`: an operator's log, record by record, decoded."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from ..recorded import start_position
from ..recorded.exported import checkpoint_line, record_line, schema_line
from ..recorded.formatting import HEADER, Decode, events_of, kind_of, line_of, numbers_of
from ..recorded.job import RecordedJob
from ..recorded.reading import Gone, LogReading, Recorded
from ..recorded.selection import GROUPS, Selection, kinds_named
from ..recorded.start_position import Begins
from ..schemas.checkpoints import SchemaUsed
from ..schemas.errors import JobRefused, UnreadableRecord
from ..schemas.topics import DEFAULT_PREFIX
from ..schemas.user_codec import Codec, learn
from ..schemas.user_schemas import Subject
from ..transport.ports import Partition
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, connected
from .console import Console, json_text, print_text
from .exits import UsageError
from .job_file import load_job
from .to_json import plain, text_of

OperatorArgument = Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator.")]
JobFileOption = Annotated[
    str | None,
    typer.Option("--job", metavar="FILE.py[:NAME]", help="Decode its events with the codecs of the job in this file."),
]


def events(
    job: JobArgument,
    operator: OperatorArgument,
    subtask: Annotated[int | None, typer.Option("--subtask", min=0, metavar="I", help="Only this subtask's.")] = None,
    from_checkpoint: Annotated[
        int | None, typer.Option("--from-checkpoint", min=0, metavar="N", help="Begin at this checkpoint's position.")
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option("--from-offset", min=0, metavar="O", help="From this offset of the subtask's events.")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="T", help="From a time: 90s, 10m, 2h ago, or an ISO time.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help=f"Only these: {', '.join(GROUPS)}, or a kind as it is shown."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="End after so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    job_file: JobFileOption = None,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show an operator's events, acks and control records as they are in the log, in the order of their times.

    Begins with what is left of the log, unless told where. With --json one object per line; `penstock.replay` reads
    them. Heartbeats are left out unless --kind asks for them.
    """
    console = Console(as_json=as_json)
    if sum(given is not None for given in (from_checkpoint, from_offset, from_time)) > 1:
        raise UsageError("--from-checkpoint, --from-offset and --from-time contradict one another: give one of them")
    codec = None if job_file is None else operator_codec(job_file, operator, console)
    kinds = kinds_named(kind or ())
    with connected(broker, client_config) as transport:
        recorded_job, indexes = opened(transport, job, prefix, operator, subtask)
        selection = Selection(operator, frozenset(indexes), kinds)
        begins = _begins(recorded_job, selection, from_checkpoint, from_offset, from_time)
        for note in begins.notes:
            print_text(f"penstock: {note}", sys.stderr)
        printer = _Printer(console, None if codec is None else decoding(codec, recorded_job, operator))
        if as_json:
            for used in schemas_of(recorded_job, operator):
                if used.subject != Subject.OUTPUT:
                    printer.line(schema_line(job, used))
        if as_json and from_checkpoint is not None:
            printer.line(checkpoint_line(job, recorded_job.checkpoint(from_checkpoint), operator))
        reading = LogReading(transport, begins.offsets).read(None if follow else 0.0)
        hidden = 0
        for found in reading:
            if isinstance(found, Gone):
                print_text(f"penstock: {found}", sys.stderr)
            elif selection.takes(found):
                if selection.is_noise(found):
                    hidden += 1
                    continue
                printer.record(found)
                if limit is not None and printer.printed >= limit:
                    break
        reading.close()
    if hidden and not as_json:
        print_text(f"penstock: {hidden} heartbeats are not shown (--kind heartbeat)", sys.stderr)


def opened(transport: Any, job: str, prefix: str, operator: str, subtask: int | None) -> tuple[RecordedJob, list[int]]:
    """The job, and the indexes of the subtasks that are meant. UsageError where there is no such thing."""
    try:
        recorded_job = RecordedJob(transport, job, prefix)
        return recorded_job, [s.index for s in recorded_job.subtasks(operator, subtask)]
    except JobRefused as error:
        raise UsageError(str(error)) from None


def operator_codec(job_file: str, operator: str, console: Console) -> Codec:
    """That of an operator's events, as its job file says."""
    with console.stdout_kept():
        declared = load_job(job_file)
    if operator not in declared.operators:
        known = ", ".join(declared.operators) or "none"
        raise UsageError(f"the job in {job_file} has no operator {operator!r}; it has: {known}")
    return declared.operators[operator].codec


def schemas_of(job: RecordedJob, operator: str) -> list[SchemaUsed]:
    """Those that the job has recorded; none, and that is said, where its checkpoint log cannot be read."""
    try:
        return job.schemas(operator)
    except JobRefused as error:
        print_text(f"penstock: what schemas the job has recorded is not known: {error}", sys.stderr)
        return []


def decoding(codec: Codec, job: RecordedJob, operator: str) -> Decode:
    """What reads an operator's events, also those of earlier versions of its job file."""
    for used in schemas_of(job, operator):
        if used.subject == Subject.EVENTS:
            learn(codec, used.schema)
    return codec.decode


def _begins(
    job: RecordedJob,
    selection: Selection,
    from_checkpoint: int | None,
    from_offset: int | None,
    from_time: str | None,
) -> Begins:
    subtasks = [s for s in job.subtasks(selection.operator) if s.index in selection.subtasks]
    if from_checkpoint is not None:
        try:
            checkpoint = job.checkpoint(from_checkpoint)
        except JobRefused as error:
            raise UsageError(str(error)) from None
        begins = start_position.from_checkpoint(job, checkpoint, subtasks, selection.wants_acks)
        return begins if selection.wants_events else _only(begins, job.acks)
    if from_offset is not None:
        if len(subtasks) != 1:
            raise UsageError(
                f"--from-offset is an offset of one subtask's events, and {selection.operator} has {len(subtasks)}: say"
                " which with --subtask I"
            )
        begins = start_position.from_offset(job, job.events(subtasks[0]), from_offset, selection.wants_acks)
        return begins if selection.wants_events else _only(begins, job.acks)
    partitions = [job.events(s) for s in subtasks] if selection.wants_events else []
    partitions += [job.acks] if selection.wants_acks else []
    if from_time is not None:
        return start_position.from_time(job, partitions, start_position.time_ms(from_time, int(time.time() * 1000)))
    return start_position.from_the_beginning(job, partitions)


def _only(begins: Begins, partition: Partition) -> Begins:
    return Begins({p: offset for p, offset in begins.offsets.items() if p == partition}, begins.notes)


class _Printer:
    def __init__(self, console: Console, decode: Decode | None) -> None:
        self._console, self._decode = console, decode
        self.printed = 0

    def line(self, value: dict[str, Any]) -> None:
        print(json_text(value), flush=True)

    def record(self, found: Recorded) -> None:
        self.printed += 1
        if self._console.as_json:
            self.line(json_of(found, self._decode))
            return
        if self.printed == 1:
            print_text(HEADER)
        print_text(line_of(found, self._decode))


def json_of(found: Recorded, decode: Decode | None = None) -> dict[str, Any]:
    """Return a record for programs: as it is in the log, and decoded."""
    n = numbers_of(found)
    line = {**record_line(found), "kind": "unreadable" if found.record is None else kind_of(type(found.record))}
    line |= {"operator": n.operator, "subtask": n.subtask, "epoch": n.epoch, "attempt": n.attempt}
    line |= {"sequence": n.sequence, "count": n.count}
    if found.record is None:
        return line | {"unreadable": found.unreadable}
    try:
        events = events_of(found.record)
    except UnreadableRecord as error:
        return line | {"unreadable": str(error)}
    if events is not None:
        return line | {"events": [_event(event, decode) for event in events]}
    return line | {"record": plain(found.record)}


def _event(event: bytes, decode: Decode | None) -> Any:
    if decode is None:
        return text_of(event)
    try:
        return plain(decode(event))
    except UnreadableRecord as error:
        return {"unreadable": str(error), "bytes": text_of(event)}
