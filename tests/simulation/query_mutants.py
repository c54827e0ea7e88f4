# ruff: noqa: E501  (lines of source are quoted as they stand)
"""Rules of jobs that a query drives, left out on purpose (protocol, section 10); see :mod:`.mutants`."""

from __future__ import annotations

from penstock.coordinator.protocol import batch_inbox, batches, checkpoints, retention, state

from .edits import Edit, Mutant

QUERY_MUTANTS: dict[str, Mutant] = {
    "completed-without-spark": Mutant(
        "section 10: a prepared checkpoint is completed by Spark's commit, and by nothing else",
        (
            Edit(
                batches,
                "job.query, job.current, job.decision\n",
                "job.query, job.current, job.decision or next((Decision(n, job.position) for n in job.history.prepared), None)\n",
            ),
        ),
        "query-3",
    ),
    "what-is-planned-is-taken-back": Mutant(
        "section 10: what is prepared is planned for whoever asks, until Spark's stored offset decides about it",
        (
            Edit(
                batches,
                "return next(iter(job.history.prepared.values()), None)",
                "return next((p for p in job.history.prepared.values() if p.header.epoch == job.current.number), None)",
            ),
        ),
        "query-twins",
    ),
    "undecided-kept": Mutant(
        "section 10: a query that begins anew has every prepared checkpoint aborted",
        (Edit(batches, "    elif history.prepared:\n", "    elif False:\n"),),
        "query-fresh",
    ),
    "older-run-of-a-query": Mutant(
        "section 10: a run that has been replaced is refused for ever",
        (
            Edit(
                batches,
                "    if job.run is not None and wanted.run_offset < job.run[1]:\n        return _refuse(",
                "    if False:\n        return _refuse(",
            ),
            Edit(
                batches,
                "    if job.run is not None and wanted.run_offset < job.run[1]:\n        return\n",
                "",
            ),
        ),
        "query-twins",
    ),
    "range-from-the-epoch's-begin": Mutant(
        "section 10: a batch begins where the one before it ends",
        (Edit(batches, "Segment(slot.batch_begin.offset, end,", "Segment(slot.begin_position, end,"),),
        "query-3",
    ),
    "sequence-goes-on-for-ever": Mutant(
        "section 10: sequences begin anew with every epoch",
        (
            Edit(
                batches,
                "before.handled_through if before is not None and before.epoch == header.epoch else 0",
                "0 if before is None else before.handled_through",
            ),
        ),
        "query-killed",
    ),
    "ends-before-the-markers": Mutant(
        "section 10: the ends of a batch are looked at when every marker stands",
        (
            Edit(
                checkpoints,
                "    pending.step = Step.ACKS\n    for slot in job.live():\n",
                "    pending.step = Step.ACKS\n    if job.settings.batches:\n        job.emit(LookAtEnds(pending.id))\n    for slot in job.live():\n",
            ),
            Edit(
                checkpoints,
                "        job.emit(Append(slot.subtask, marker))\n    if job.settings.batches:\n",
                "        job.emit(Append(slot.subtask, marker))\n    if False:\n",
            ),
        ),
        "query-3",
    ),
    "gateways-open-when-prepared": Mutant(
        "section 10: gateways stay closed until Spark has decided",
        (
            Edit(
                batches,
                "        pending.step = Step.PREPARED\n",
                "        pending.step = Step.PREPARED\n"
                "        from . import sending\n"
                "        [sending.open_gateway(job, slot, pending.id) for slot in job.live()]\n",
            ),
        ),
        "query-3",
    ),
    "handled-when-prepared": Mutant(
        "section 10: futures settle as handled when Spark has committed their batch",
        (
            Edit(
                batches,
                "        pending.step = Step.PREPARED\n",
                "        pending.step = Step.PREPARED\n"
                "        [job.emit(Settle(s.stream)) for s in job.live() if s.stream.settle(s.sent_through)]\n",
            ),
        ),
        "query-3",
    ),
    "stands-where-it-stood": Mutant(
        "section 10: a query attaches to an epoch that was restored from where Spark stands",
        (
            Edit(
                batches,
                "elif epoch.query_run or n != (NO_CHECKPOINT if epoch.restored is None else epoch.restored.id):",
                "elif epoch.query_run:",
            ),
        ),
        "query-zombies",
    ),
    "any-writer-counts": Mutant(
        "section 10: what a batch sends counts where its manifest names the writer",
        (
            Edit(
                batch_inbox,
                "(frames := rereading.frames.get(record.writer)) is not None",
                "(frames := next(iter(rereading.frames.values()))) is not None",
            ),
            Edit(batch_inbox, "    return sequence == writer.count", "    return True"),
            Edit(batch_inbox, "        if frame.sequence != sequence:\n            return False\n", ""),
        ),
        "query-killed",
    ),
    "batch-events-twice": Mutant(
        "section 10: what a batch sends is handed over once",
        (Edit(batch_inbox, "inbox=(*snapshot.inbox, part))", "inbox=(*snapshot.inbox, part, part))"),),
        "query-3",
    ),
    "batch-events-behind-the-notice": Mutant(
        "section 10: what a batch has sent is handed over ahead of the notice",
        (
            Edit(
                batches,
                "    batch_inbox.forget(job)\n    for slot in job.live():\n",
                "    batch_inbox.forget(job)\n    checkpoints.completed(job, pending, gone)\n    for slot in job.live():\n",
            ),
            Edit(
                batches,
                "part.belongs_to, events))\n    checkpoints.completed(job, pending, gone)\n",
                "part.belongs_to, events))\n",
            ),
        ),
        "query-3",
    ),
    "batch-events-lost-at-a-restart": Mutant(
        "section 10: what a batch has sent belongs to its checkpoint, whoever completes that",
        (
            Edit(
                batches,
                "    batch_inbox.take(job, pending, complete)\n",
                "    batch_inbox.take(job, pending, complete) if ours else complete()\n",
            ),
        ),
        "query-zombies",
    ),
    "batch-events-not-read-again": Mutant(
        "section 10: a successor reads what the undecided batch has sent",
        (
            Edit(
                batches,
                "        case BatchEvents():\n            batch_inbox.read(job, record)\n        case BatchCommitted():\n",
                "        case BatchEvents():\n            pass\n        case BatchCommitted():\n",
            ),
        ),
        "query-zombies",
    ),
    "batches-are-truncated": Mutant(
        "section 7.9: the log is kept from the beginning of the newest batch that Spark has stored",
        (
            Edit(
                retention,
                "return positions + ranges",
                "return positions",
            ),
        ),
        "query-3",
    ),
    "triggered-by-the-interval": Mutant(
        "section 10: nothing but a request triggers a checkpoint",
        (
            Edit(
                state,
                "return None if interval is None or self.settings.batches else",
                "return None if interval is None else",
            ),
        ),
        "query-two-at-once",
    ),
}
