"""Rules of jobs that a query drives, left out on purpose (protocol, section 10); see :mod:`.mutants`."""

from __future__ import annotations

from .edits import Early, Insert, Mutant, Never, Put, Skip

QUERY_MUTANTS: dict[str, Mutant] = {
    "completed-without-spark": Mutant(
        "section 10: a prepared checkpoint is completed by Spark's commit, and by nothing else",
        Insert("decision = decision or next((Decision(n, job.position) for n in job.history.prepared), None)"),
        "query-3",
    ),
    "what-is-planned-is-taken-back": Mutant(
        "section 10: what is prepared is planned for whoever asks, until Spark's stored offset decides about it",
        Put("return next((p for p in job.history.prepared.values() if p.header.epoch == job.current.number), None)"),
        "query-twins",
    ),
    "undecided-kept": Mutant(
        "section 10: a query that begins anew has every prepared checkpoint aborted",
        Never(),
        "query-fresh",
    ),
    "older-run-of-a-query": Mutant(
        "section 10: a run that has been replaced is refused for ever",
        {"refused": Never(), "ignored": Never()},
        "query-twins",
    ),
    "range-from-the-epochs-begin": Mutant(
        "section 10: a batch begins where the one before it ends",
        Put("batch = Segment(slot.begin_position, end, epoch, slot.generation, attempt.id)"),
        "query-3",
    ),
    "sequence-goes-on-for-ever": Mutant(
        "section 10: sequences begin anew with every epoch",
        Put("sequence = 0 if before is None else before.handled_through"),
        "query-killed",
    ),
    "ends-before-the-markers": Mutant(
        "section 10: the ends of a batch are looked at when every marker stands",
        Early(),
        "query-3",
    ),
    "gateways-open-when-prepared": Mutant(
        "section 10: gateways stay closed until Spark has decided",
        Insert("for slot in job.live(): checkpoints.sending.open_gateway(job, slot, pending.id)"),
        "query-3",
    ),
    "handled-when-prepared": Mutant(
        "section 10: futures settle as handled when Spark has committed their batch",
        Insert(
            "for slot in job.live():\n"
            "    if slot.stream.settle(slot.sent_through):\n"
            "        job.emit(Settle(slot.stream))"
        ),
        "query-3",
    ),
    "stands-where-it-stood": Mutant(
        "section 10: a query attaches to an epoch that was restored from where Spark stands",
        Skip(),
        "query-zombies",
    ),
    "any-writer-counts": Mutant(
        "section 10: what a batch sends counts where its manifest names the writer",
        {
            "writer": Put("(frames := next(iter(rereading.frames.values()), None)) is not None"),
            "sequence": Never(),
            "count": Put("return True"),
        },
        "query-killed",
    ),
    "batch-events-twice": Mutant(
        "section 10: what a batch sends is handed over once",
        Put("pending.acks[subtask] = replace(snapshot, sent_sequence=sent, inbox=(*snapshot.inbox, part, part))"),
        "query-3",
    ),
    "batch-events-behind-the-notice": Mutant(
        "section 10: what a batch has sent is handed over ahead of the notice",
        Early(),
        "query-3",
    ),
    "batch-events-lost-at-a-restart": Mutant(
        "section 10: what a batch has sent belongs to its checkpoint, whoever completes that",
        Put("rereads = n in job.current.pending and batch_inbox.take(job, pending, decision)"),
        "query-zombies",
    ),
    "batch-events-not-read-again": Mutant(
        "section 10: a successor reads what the undecided batch has sent",
        Skip(),
        "query-zombies",
    ),
    "batches-are-truncated": Mutant(
        "section 7.9: the log is kept from the beginning of the newest batch that Spark has stored",
        Put("return positions"),
        "query-3",
    ),
    "interval-triggers": Mutant(
        "section 10: nothing but a request triggers a checkpoint",
        Put("return None if interval is None else self.now + interval"),
        "query-two-at-once",
    ),
}
