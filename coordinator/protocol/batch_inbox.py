"""What the tasks of a batch send to a coordinator (protocol, section 10.7).

Its frames stay in the log until Spark has committed the batch, which may fail and run again any number of times: known
here is only the newest manifest. Then the log is read once more from the cut on, and what the writers have written that
the manifest names becomes part of the checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from ...schemas.acks import AcksRecord, BatchEventFrame, BatchEvents, BatchWriter
from ...schemas.checkpoints import InboxEvents
from ...schemas.errors import UnreadableRecord
from ...schemas.frames import unpack
from ...schemas.ids import SubtaskId
from ...schemas.status import Ending
from .effects import ReadAcks
from .pending import Pending
from .query_state import Decision, Rereading
from .state import Dropped, JobState


def read(job: JobState, manifest: BatchEvents) -> None:
    """The newest one of a batch counts."""
    if manifest.checkpoint_id in job.history.prepared and manifest.operator in job.settings.parallelism:
        job.query.manifests[manifest.checkpoint_id] = manifest
    else:
        job.drop(Dropped.LATE_BATCH_EVENTS)


def take(job: JobState, pending: Pending, decision: Decision) -> bool:
    """Reads again what the batch sent, which becomes part of its checkpoint; whether it sent anything."""
    manifest = job.query.manifests.get(pending.id)
    if manifest is None or not manifest.writers:
        return False
    job.rereading = Rereading(pending, manifest, decision)
    job.emit(ReadAcks(pending.inbox_position, job.position))
    return True


def reread(job: JobState, rereading: Rereading, record: AcksRecord) -> None:
    if (
        isinstance(record, BatchEventFrame)
        and (frames := rereading.frames.get(record.writer)) is not None  # mutant: any-writer-counts.writer
    ):
        if frames and record.sequence <= frames[-1].sequence:  # mutant: repeated-batch-events-count
            return
        rereading.size += len(record.payload)
        if rereading.size <= _bound(job, rereading.manifest):
            frames.append(record)


def reread_end(job: JobState, rereading: Rereading) -> bool:
    """Whether all of it is there, and in the checkpoint. The job ends where some is gone."""
    job.rereading = None
    pending, manifest, bound = rereading.pending, rereading.manifest, _bound(job, rereading.manifest)
    if rereading.size > bound:
        what = (
            f"the batch of checkpoint {pending.id} has sent {rereading.size} bytes of events to the coordinator of"
            f" {manifest.operator}, more than max_held_bytes ({bound}). They are in the log: give the operator"
            f" max_held_bytes={rereading.size} or more and start the job again, it goes on from there"
        )
        job.due_end = Ending.FAILED, what
        return False
    for writer in manifest.writers:
        subtask, frames = SubtaskId(manifest.operator, writer.subtask), rereading.frames[writer.writer]
        if subtask not in pending.acks or not _whole(writer, frames):
            return _lost(job, pending, subtask, f"its manifest names {writer.count}, and that many are not there")
        for frame in frames:
            try:
                unpack(frame.count, frame.lengths, frame.payload)
            except UnreadableRecord as error:
                return _lost(job, pending, subtask, f"one of its frames is damaged: {error}")
            snapshot = pending.acks[subtask]
            part = InboxEvents(pending.id, snapshot.sent_sequence, frame.count, frame.lengths, frame.payload)
            sent = snapshot.sent_sequence + frame.count
            # mutant: batch-events-twice
            pending.acks[subtask] = replace(snapshot, sent_sequence=sent, inbox=(*snapshot.inbox, part))
    return True


def forget(job: JobState) -> None:
    """Only what a prepared checkpoint's batch sends can count."""
    job.query.manifests = {n: manifest for n, manifest in job.query.manifests.items() if n in job.history.prepared}


def _bound(job: JobState, manifest: BatchEvents) -> int:
    return job.settings.operator(manifest.operator).max_held_bytes


def _whole(writer: BatchWriter, frames: list[BatchEventFrame]) -> bool:
    sequence = 0
    for frame in frames:
        if frame.sequence != sequence:  # mutant: any-writer-counts.sequence
            return False
        sequence += frame.count
    return sequence == writer.count  # mutant: any-writer-counts.count


def _lost(job: JobState, pending: Pending, subtask: SubtaskId, what: str) -> bool:
    job.due_end = (
        Ending.FAILED,
        f"events that the batch of checkpoint {pending.id} sent as {subtask} are not in the log: {what}. Records of the"
        " acks topic were lost, or it was truncated. Begin the job anew (--fresh) and the query with an empty"
        " checkpointLocation; or go back with both to an older checkpoint (--from-checkpoint) and Spark's copy of then",
    )
    return False
