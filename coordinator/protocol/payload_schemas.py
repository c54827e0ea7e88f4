"""Avro schemas of the user's payloads: recorded while in use, checked where a job goes on (protocol, section 12).

Payloads carry a fingerprint of the schema they were written under. The checkpoint log holds the schemas themselves, as
long as something can be restored that was written under them: so old bytes are decoded as what they are, and a job
whose schemas cannot read them is refused instead of failing at the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...checkpoint_log.history import Checkpoint, Keyed, Prepared, keyed
from ...checkpoint_log.restorability import schemas_needed_by
from ...schemas.acks import Hello
from ...schemas.checkpoints import SchemaUsed, key_of, schema_key
from ...schemas.compat import Incompatibility
from ...schemas.errors import JobRefused
from ...schemas.events import WriterSchema
from ...schemas.user_schemas import JSON, Subject, problems
from .state import JobState

WAYS_OUT = (
    "Give new fields a default and renamed ones an alias, keep types or widen them; or give the operator another name,"
    " or begin anew with --fresh. `penstock compat` lists all that does not fit"
)


def check(job: JobState, checkpoint_id: int, checkpoint: Checkpoint | Prepared) -> None:
    """Raises JobRefused where today's schemas cannot read all that the checkpoint may hold."""
    told = []
    for used in schemas_needed_by(job.history, checkpoint):
        today = job.settings.schema_of(used.operator, used.subject)
        found = problems(today.text, used.schema) if today is not None else ()
        told += [f"{used.subject} of operator {used.operator}: {problem}" for problem in found]
    if told:
        raise JobRefused(
            f"checkpoint {checkpoint_id} of job {job.settings.name} holds what the job's schemas of today cannot read:"
            f" {'; '.join(told)}. {WAYS_OUT}"
        )


def claimed(job: JobState, epoch: int) -> list[Keyed]:
    """What is written from ``epoch`` on, and the discards of what nothing needs any more."""
    before = "" if job.history.run is None else job.history.run.run
    run = job.registry.run_id or before
    today = {}
    for schema in job.settings.schemas:
        if schema.text != JSON:
            key = schema_key(schema.operator, schema.subject, schema.digest)
            known = job.history.schemas.get(key)
            first = epoch if known is None else known.first_epoch
            today[key] = SchemaUsed(schema.operator, schema.subject, schema.text, first, epoch, run)
    kept: list[Checkpoint | Prepared] = [*job.history.checkpoints.values(), *job.history.prepared.values()]
    needed = {key_of(used) for checkpoint in kept for used in schemas_needed_by(job.history, checkpoint)}
    gone = [
        key
        for key, used in job.history.schemas.items()
        if key not in today and key not in needed and not (used.run and used.run in (run, before))
    ]
    return [*today.items(), *((key, None) for key in gone)]


def seen(job: JobState, hello: Hello) -> list[Keyed]:
    """What is to be committed before this instance is started: it writes, in this epoch and run, under these."""
    epoch, run = job.history.epoch, hello.run
    known = [job.history.schemas.get(schema_key(hello.operator, d.subject, d.digest)) for d in hello.schemas]
    due = [used for used in known if used is not None and (used.last_epoch, used.run) != (epoch, run)]
    return keyed(*(SchemaUsed(u.operator, u.subject, u.schema, u.first_epoch, epoch, run) for u in due))


def refusal(job: JobState, hello: Hello) -> str | None:
    """Why an instance with these schemas cannot work with this coordinator; None: it can."""
    for written in hello.schemas:
        today = job.settings.schema_of(hello.operator, written.subject)
        if today is None or today.digest == written.digest:
            continue
        theirs = job.history.schemas.get(schema_key(hello.operator, written.subject, written.digest))
        where = f"subtask {hello.subtask_id} of job {job.settings.name}"
        if theirs is None:
            return (
                f"{where} writes its {written.subject} under an Avro schema ({written.digest}) that this coordinator"
                " does not know: the tasks run a newer job file. Start the coordinator with that file first"
            )
        for problem in _between(job, theirs, today.text):
            return (
                f"{where} runs an older job file, and its {written.subject} do not fit those of the coordinator:"
                f" {problem}. Start the job's tasks anew with the file that the coordinator has"
            )
    return None


def _between(job: JobState, theirs: SchemaUsed, today: str) -> Iterator[Incompatibility]:
    """What old tasks and a new coordinator could not read of each other, or the tasks of their restored state."""
    yield from problems(today, theirs.schema)
    if theirs.subject == Subject.EVENTS:
        yield from problems(theirs.schema, today)
    restored = job.history.last
    for used in [] if restored is None else schemas_needed_by(job.history, restored):
        if (used.operator, used.subject) == (theirs.operator, theirs.subject):
            yield from problems(theirs.schema, used.schema)


def told_before(job: JobState, hello: Hello) -> list[WriterSchema]:
    """What an instance is told ahead of its Start: what it may have to read and does not write itself."""
    own = {schema_key(hello.operator, d.subject, d.digest) for d in hello.schemas}
    upstream = {edge.sender for edge in job.settings.graph.inputs(hello.operator)}
    return [
        WriterSchema(job.history.epoch, used.operator, used.subject, used.schema)
        for key, used in job.history.schemas.items()
        if key not in own
        and (used.operator in upstream if used.subject == Subject.OUTPUT else used.operator == hello.operator)
    ]
