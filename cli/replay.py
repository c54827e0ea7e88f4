"""`penstock replay`: what a restored subtask would get, record by record, and why. Nothing is started or written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..recorded.dry_run import DryRun, Judged, Restore, Restored, Verdict, policy_in, restored
from ..recorded.formatting import Decode, clock, details, kind_of, numbers_of, sequence_text
from ..recorded.job import RecordedJob
from ..recorded.reading import Gone, LogReading, Recorded
from ..schemas.errors import JobRefused
from ..schemas.events import FailoverPolicy
from ..schemas.ids import SubtaskId
from ..schemas.state import Segment, StateHandle
from ..schemas.topics import DEFAULT_PREFIX
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, connected
from .console import Console, json_text, print_text
from .events import JobFileOption, OperatorArgument, decoding, json_of, opened
from .exits import Exit, UsageError
from .job_file import load_job
from .to_json import plain

HEADER = f"{'offset':>8} {'time':<23} {'epoch':>5} {'attempt':>7}  {'kind':<20} {'sequence':<10} {'verdict':<8} why"


def replay(
    job: JobArgument,
    operator: OperatorArgument,
    subtask: Annotated[int, typer.Option("--subtask", min=0, metavar="I", help="The subtask that is restored.")],
    from_checkpoint: Annotated[
        int, typer.Option("--from-checkpoint", min=0, metavar="N", help="The checkpoint it is restored from.")
    ],
    failover: Annotated[
        bool | None,
        typer.Option(
            "--failover/--restart",
            help="It fails in the epoch that took the checkpoint, or the job is started again from it. Without either:"
            " a failover while that epoch is the newest.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        FailoverPolicy | None,
        typer.Option("--policy", help="The operator's on_failover, where no Start in its log says it."),
    ] = None,
    job_file: JobFileOption = None,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """A dry run: what a subtask restored from a checkpoint would get out of its log, and why each record counts or not.

    Exits with 1 where the subtask would fail on what it reads.
    """
    console = Console(as_json=as_json)
    codec = None
    if job_file is not None:
        with console.stdout_kept():
            declared = load_job(job_file)
        if operator not in declared.operators:
            raise UsageError(f"the job in {job_file} has no operator {operator!r}")
        codec = declared.operators[operator].codec
        policy = policy or declared.operators[operator].settings.on_failover
    with connected(broker, client_config) as transport:
        recorded_job, _ = opened(transport, job, prefix, operator, subtask)
        decode = None if codec is None else decoding(codec, recorded_job, operator)
        who = SubtaskId(operator, subtask)
        try:
            checkpoint = recorded_job.checkpoint(from_checkpoint)
        except JobRefused as error:
            raise UsageError(str(error)) from None
        if policy is None and (policy := policy_in(recorded_job, who)) is None:
            policy = FailoverPolicy.REPLAY
            print_text("penstock: no Start is left that names the policy; taken as replay (--policy)", sys.stderr)
        how = None if failover is None else Restore.FAILOVER if failover else Restore.RESTART
        begun = restored(recorded_job, who, checkpoint, policy, how)
        dry_run = DryRun(job, begun)
        judged = dry_run.judge_all(_records(recorded_job, begun))
        if as_json:
            _print_json(begun, dry_run, judged, decode)
        else:
            _print(begun, dry_run, judged, decode)
    return Exit.FAILED if dry_run.verdicts[Verdict.FAILS] else Exit.DONE


def _records(job: RecordedJob, begun: Restored) -> Iterator[Recorded]:
    partition = job.events(begun.subtask)
    there = job.transport.offsets([partition])[partition]
    begin = max(begun.begin, there.begin)
    for found in LogReading(job.transport, {partition: begin}, {partition: begun.start_offset}):
        if isinstance(found, Gone):
            print_text(f"penstock: {found}", sys.stderr)
        else:
            yield found


def _print(begun: Restored, dry_run: DryRun, judged: Iterator[Judged], decode: Decode | None) -> None:
    for line in described(begun):
        print_text(line)
    print_text(HEADER)
    for one in judged:
        n = numbers_of(one.found)
        kind = "unreadable" if one.found.record is None else kind_of(type(one.found.record))
        events = f": {details(one.found, decode)}" if one.verdict is Verdict.HANDLED else ""
        print_text(
            f"{one.found.offset:>8} {clock(one.found.at.timestamp_ms):<23} {_number(n.epoch):>5}"
            f" {_number(n.attempt):>7}  {kind:<20} {sequence_text(n):<10} {one.verdict.value:<8} {one.why}{events}"
        )
    v = dry_run.verdicts
    print_text(
        f"{dry_run.events} events handled in {v[Verdict.HANDLED]} frames; {v[Verdict.SKIPPED]} records skipped,"
        f" {v[Verdict.NOT_READ]} not read, {v[Verdict.FAILS]} that it fails on"
    )


def _print_json(begun: Restored, dry_run: DryRun, judged: Iterator[Judged], decode: Decode | None) -> None:
    _line({"restored": begun.how.value, "start_offset": begun.start_offset, "start": plain(begun.start)})
    for one in judged:
        _line({**json_of(one.found, decode), "verdict": one.verdict.value, "why": one.why})
    verdicts = {verdict.value: dry_run.verdicts[verdict] for verdict in Verdict}
    _line({"events": dry_run.events, "handled_through": dry_run.handled_through, "verdicts": verdicts})


def _line(value: dict[str, Any]) -> None:
    print(json_text(value))


def described(begun: Restored) -> list[str]:
    """What the restored subtask begins with, for people."""
    start, snapshot = begun.start, begun.snapshot
    if begun.how is Restore.FAILOVER:
        did = "has restored" if begun.part is not None and begun.part.inherited else "took"
        how = f"a failover: epoch {start.epoch}, which {did} the checkpoint, goes on"
    else:
        how = f"a restart: epoch {start.epoch} begins, and nothing sent before it counts but the ranges"
    lines = [
        f"{begun.subtask} restored from checkpoint {start.checkpoint_id} by {how}",
        f"  state: {_state(start.state)}, {_origin(begun)}",
        f"  ranges: {', '.join(map(_range, start.event_ranges)) or 'none'}",
    ]
    if start.policy is FailoverPolicy.RESET:
        lines.append("  position: behind its own Start (policy reset)")
    else:
        lines.append(
            f"  position: offset {start.event_position}; event {start.expected_sequence} of epoch"
            f" {start.expected_epoch} is due first (policy {start.policy.value})"
        )
    lines += [f"  input {p.channel}: {', '.join(map(_range, p.segments)) or 'ended'}" for p in start.data_positions]
    if snapshot.finished:
        lines.append("  the checkpoint contains its end: it would not be started again")
    return lines


def _origin(begun: Restored) -> str:
    if begun.part is not None and begun.part.dealt:
        return "dealt for the parallelism that there is"
    return f"acknowledged by attempt {begun.snapshot.attempt} in epoch {begun.snapshot.epoch}"


def _state(handle: StateHandle | None) -> str:
    if handle is None:
        return "none"
    return f"{handle.size} bytes " + ("inline" if handle.inline is not None else f"in {handle.location}")


def _range(segment: Segment) -> str:
    to = "on" if segment.end < 0 else f"to {segment.end}"
    attempt = "" if segment.attempt < 0 else f", attempt {segment.attempt}"
    return f"from {segment.begin} {to} (generation {segment.epoch}.{segment.generation}{attempt})"


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)
