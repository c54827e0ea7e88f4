"""Rules left out on purpose: each must be noticed, or the checks hold nothing.

The code of a rule is marked by a comment with the mutant's name (:mod:`.markers`); where a mutant edits several places,
each marker adds the name of its part. ``python -m tests.simulation --mutants`` shows for each mutant the seed that
notices it, and what it says.
"""

from __future__ import annotations

from .edits import Always, Early, Insert, Mutant, Never, Put, Skip
from .query_mutants import QUERY_MUTANTS

MUTANTS: dict[str, Mutant] = {
    # ---- gateways and the cut (sections 6, 7.2 to 7.4)
    "gateway-never-closes": Mutant(
        "section 7.3: at the cut that operator's gateways close",
        Skip(),
        "replay1-two",
    ),
    "abort-opens-the-oldest": Mutant(
        "section 6: abort is by id, and never opens another checkpoint's gateways",
        Put("sending.open_gateway(job, slot, min(slot.gateway.closed, default=pending.id))"),
        "replay2",
    ),
    "ack-opens-everybody": Mutant(
        "section 6: an ack from subtask 1 releases nothing of subtask 0",
        Insert("for other in job.live(): sending.open_gateway(job, other, pending.id)"),
        "replay2",
    ),
    "late-future-closes": Mutant(
        "section 7.3: a future completed after n was aborted closes nothing",
        Insert("for slot in job.live(): slot.gateway._held.setdefault(done.checkpoint_id, [])"),
        "replay2",
    ),
    "no-release-below": Mutant(
        "section 7.4: whatever the gateway holds under lower ids is appended before the marker",
        Skip(),
        "replay2",
    ),
    "two-calls-at-once": Mutant(
        "section 7.1: no checkpoint is called while another still awaits a coordinator's future or its markers",
        Skip(),
        "replay2",
    ),
    "handed-over-at-once": Mutant(
        "section 7.2: until its future completes a coordinator is handed no event",
        Never(),
        "replay1",
    ),
    "inbox-position-late": Mutant(
        "section 7.2: the inbox position of n is the first record not handed over at its call",
        Put("job.position"),
        "global2",
    ),
    # ---- feeds (section 10.9)
    "a-batch-twice": Mutant(
        "section 10.9: a batch has its effect only if its id is above the feed's position",
        Never(),
        "feeds-replay",
    ),
    "batch-within-a-call": Mutant(
        "section 10.9: a coordinator that owes a checkpoint future is handed no batch",
        Put("owes_future = False"),
        "feeds-replay",
    ),
    "triggered-within-a-batch": Mutant(
        "section 10.9: no checkpoint is triggered while a coordinator handles a batch",
        Skip(),
        "feeds-replay",
    ),
    "positions-forgotten": Mutant(
        "section 10.9: a checkpoint has the positions of the feeds",
        Put("()"),
        "feeds-replay",
    ),
    "feeds-begin-anew": Mutant(
        "section 10.9: an epoch begins with the positions of the checkpoint that it restores",
        Put("fed = feeds.Feeds()"),
        "feeds-global",
    ),
    "answered-ahead-of-its-checkpoint": Mutant(
        "section 10.9: a batch is answered when a completed checkpoint has its effect",
        Always(),
        "feeds-replay",
    ),
    # ---- acks and completion (sections 3, 7.6, 7.7)
    "repeated-ack-counts": Mutant(
        "section 7.7: acks are taken by identity, not by count",
        Insert(
            "for other in sorted(pending.required - set(pending.acks))[:1]:\n"
            "    _add_snapshot(pending, other, replace(pending.acks[slot.subtask], subtask=other.index))"
        ),
        "repeats",
    ),
    "anybodys-records": Mutant(
        "section 3: the coordinator drops what does not match the attempt",
        Skip(),
        "replay2",
    ),
    "any-generation": Mutant(
        "section 3: the coordinator drops what does not match the generation",
        Put("slot.attempt.id != sender.attempt"),
        "zombies-replay",
    ),
    "ack-ahead-of-its-events": Mutant(
        "section 7.6: an ack that claims events which were not read fails its attempt",
        Never(),
        "losses-global",
    ),
    "complete-before-its-events": Mutant(
        "section 7.7: notify_checkpoint_complete(n) only after every event that belongs to n",
        Put("job.emit(CallComplete(operator, n))"),
        "replay2",
    ),
    "snapshot-events-left-out": Mutant(
        "section 7.7: events sent in snapshot_state(n) belong to n",
        {"before-barriers": Skip(), "before-ack": Skip()},
        "replay2",
    ),
    "ids-used-again": Mutant(
        "section 7.1: an id is never used twice in a job",
        Put("first = history.last_id + 1"),
        "replay1",
    ),
    "unnamed-states-deleted": Mutant(
        "section 7.8: what an aborted checkpoint releases, no completed one names",
        Put("locations | job.history.locations()"),
        "replay1",
    ),
    "truncates-too-far": Mutant(
        "section 7.9: logs are truncated below the last completed checkpoint's positions",
        Put("acks = 1 + last.inbox_position"),
        "replay1",
    ),
    "window-begins-too-late": Mutant(
        "section 7.9: the window begins with a checkpoint that is as old as it",
        Put("since = line[-1][1] - 500 * seconds if line else 0.0"),
        "retention-replay",
    ),
    "truncates-one-too-far": Mutant(
        "section 7.9: logs are truncated below the last completed checkpoint's positions, never above",
        Put("return [1 + needed for needed in positions + ranges]"),
        "retention-no-window",
    ),
    "discards-the-last-one": Mutant(
        "section 7.9: the last completed checkpoint is never discarded",
        Never(),
        "retention-discards",
    ),
    "never-truncates": Mutant(
        "section 7.9: what nobody needs is truncated",
        Always(),
        "retention-no-window",
    ),
    "damaged-state-restored": Mutant(
        "section 7.6: a state that is not as it was stored is refused",
        Never(),
        "rots-replay",
    ),
    "damaged-record-kept-out": Mutant(
        "section 4.1: a damaged record of the checkpoint log refuses the start",
        Put("return None"),
        "rots-replay",
    ),
    # ---- failover and recovery (section 8)
    "no-inbox-range": Mutant(
        "section 8: the inbox range is handed over",
        Never(),
        "global1",
    ),
    "whole-inbox-range": Mutant(
        "section 8: the inbox range ends at the sent-sequence that the ack names",
        {"contained": Always(), "beyond": Never()},
        "global2",
        200,
    ),
    "repeated-events-count": Mutant(
        "section 5.4: a frame whose events have been handled is a repeat, and has no effect",
        Never(),
        "repeats-replay2",
    ),
    "repeated-records-count": Mutant(
        "section 9: a record of a channel below the sequence that is due is a repeat, and has no effect",
        Never(),
        "repeats-pair",
    ),
    "repeated-batch-events-count": Mutant(
        "section 10.7: a frame that repeats what its writer has written counts once",
        Never(),
        "repeats-query-3",
    ),
    "same-gap-for-ever": Mutant(
        "section 5.4: a gap that fails two attempts is voided by a new epoch",
        Never(),
        "strays-replay",
    ),
    "range-without-a-begin": Mutant(
        "section 8: the inbox range begins with the first event not received at the trigger, and has each event once",
        {"below": Never(), "due": Always()},
        "repetitions-global",
    ),
    "range-of-any-attempt": Mutant(
        "section 8: the inbox range is of exactly the attempt and generation that acked",
        Never(),
        "global2",
        200,
    ),
    "takeover-reads-nothing-back": Mutant(
        "section 8: a new process first reads the acks topic from n's inbox position",
        Insert("low = committed.acks_end"),
        "zombies-replay",
    ),
    "oldest-hello-wins": Mutant(
        "section 8: a new process answers only the newest Hello per subtask",
        Put("job.registry.waiting.setdefault(record.subtask_id, waiting)"),
        "zombies-replay",
    ),
    "range-later": Mutant(
        "section 8: the inbox range is handed over before anything newer from that subtask",
        {"handed": Skip(), "triggered": Skip()},
        "global2",
    ),
    "rollback-forgets-futures": Mutant(
        "section 6: every future settles, also at a global failover",
        Skip(),
        "replay1",
    ),
    "reset-forgets-futures": Mutant(
        "section 6: under reset, events of the failed attempt settle with TaskNotRunning",
        Put("slot.stream = None"),
        "reset2",
    ),
    "failed-before-handed-over": Mutant(
        "section 4: what was read before is handed over, ahead of execution_attempt_failed",
        Early(),
        "replay2",
    ),
    "commands-position-too-far": Mutant(
        "section 8: a command is executed again until its effect or refusal is committed",
        Put("commands_position = job.position"),
        "savepoints-replay",
    ),
    "superseded-takes-over": Mutant(
        "section 4: a Hello whose instance was an attempt that another has superseded is not answered by Start",
        Always(),
        "frozen-replay",
        300,
    ),
    "lost-start-forgotten": Mutant(
        "section 8: a Hello whose Start may not stand waits again when a new epoch begins",
        Never(),
        "refusals-reset",
        begin=930,
    ),
    "hint-owes-no-reset": Mutant(
        "section 8: a hint that takes a waiting Hello away sends the Reset that was left out for it",
        Skip(),
        "twins-replay",
        begin=500,
    ),
    "outage-fails-everybody": Mutant(
        "section 8: a broker that is away for a minute fails nobody",
        Put("return self.seconds + max(0.0, (appended_at_ms - self._at_ms) / 1000)"),
        "calm-outages",
    ),
    # ---- the end of the job (section 7.10)
    "ends-with-work-left": Mutant(
        "section 7.10: the job ends once nothing is left of what its coordinators have begun",
        Always(),
        "pair-finite",
    ),
    "ends-with-notices-withheld": Mutant(
        "section 7.10: what is withheld for checkpoints under way is handed over before the coordinators drain",
        Skip(),
        "eager-end-global",
        begin=100,
    ),
    "restored-and-not-notified": Mutant(
        "section 8: a restore notifies the coordinators of the checkpoint, once they have all that belongs to it",
        Skip(),
        "untold-global",
        begin=130,
    ),
    # ---- bounds (section 6, G7)
    "held-without-bound": Mutant(
        "section 6: past max_held_bytes the oldest pending checkpoint is aborted",
        Skip(),
        "tiny-replay",
    ),
    "ranges-without-bound": Mutant(
        "section 8: inbox ranges above max_held_bytes stay in the log",
        Put("return False"),
        "tiny-global",
    ),
    "withheld-without-bound": Mutant(
        "section 6: while more than max_held_bytes are withheld from coordinators no record is read",
        Put("return False"),
        "tiny-replay",
    ),
    "unhandled-without-bound": Mutant(
        "section 6: past max_unhandled events send_event raises Backpressure",
        Skip(),
        "tiny-replay",
    ),
    # ---- the subtask's side (sections 4, 5, 7.5, 8)
    "old-epochs-count": Mutant(
        "section 4: a subtask ignores records of an epoch lower than the highest it has seen",
        {
            "dropped": Never(),
            "seen": Put("self.epoch_seen = max(self.epoch_seen, record.epoch)"),
            "frames": Never(),
        },
        "zombies-replay",
    ),
    "superseded-says-hello": Mutant(
        "section 4: a superseded attempt leaves and does not say Hello again",
        Insert("if self.phase is not Phase.NEW: return self.start_over()"),
        "twins-replay",
    ),
    "hello-without-looking": Mutant(
        "section 4: an instance that is to say Hello again first reads up to the high watermark",
        Never(),
        "frozen-replay",
        300,
    ),
    "reset-obeyed-while-waiting": Mutant(
        "section 5.1: until its Start an instance only notes the epoch of a Reset",
        Insert("if isinstance(record, Reset): return self.start_over()"),
        "replay2",
    ),
    "control-below-start-obeyed": Mutant(
        "section 5.3: control records below its own Start are void, and a Reset counts above the own generation only",
        {"below": Put("return self._on_live_record(offset, record)"), "reset": Never()},
        "replay2",
    ),
    "stuck-waited-for": Mutant(
        "section 8: whoever is to start over and goes on in user code for too long has its task ended",
        Skip(),
        "pair-hangs",
    ),
    "stuck-before-a-takeover-forgotten": Mutant(
        "section 8: a successor waits for whoever acknowledged a checkpoint and has not said Hello since",
        Skip(),
        "hangs-takeovers",
        begin=100,
    ),
    "stuck-under-a-start-before": Mutant(
        "section 8: whoever speaks, and not under its Start, for too long has its task ended",
        Never(),
        "hangs-takeovers",
        begin=430,
    ),
    "displaced-hello-forgotten": Mutant(
        "section 8: the Hello that a dead task's one displaced waits again",
        Put("waiting.displaced = None if again else before"),
        "tiny-global",
        begin=10_400,
    ),
    "second-start-ignored": Mutant(
        "section 5.3: a second Start for the own attempt with a higher generation means starting over",
        Skip(),
        "global2-two",
    ),
    "handled-too-early": Mutant(
        "section 3: handled-through names what has been handled",
        Put("return self.handling[1]"),
        "replay1",
    ),
    "position-too-far": Mutant(
        "section 7.6: the ack names the position of its snapshot",
        Put("event_position + 1"),
        "replay1",
    ),
    "sequences-begin-anew": Mutant(
        "section 5.4: a successor goes on in the sequence that its checkpoint names",
        Always(),
        "replay1",
    ),
    "finished-handles-on": Mutant(
        "section 8: a finished instance handles no event any more",
        Never(),
        "eager-end-replay",
    ),
    "ends-before-its-start": Mutant(
        "section 8: an attempt's end comes behind its own Start",
        Skip(),
        "brief-replay",
    ),
    "handles-behind-a-stop": Mutant(
        "section 9: after the marker of a stopping savepoint a subtask handles nothing more",
        Never(),
        "stops-replay",
    ),
    "aborted-stop-skips": Mutant(
        "section 8: when a stopping savepoint is aborted, a subtask goes on right behind its marker",
        Put("running.stopping = None"),
        "stops-replay",
    ),
    "older-run-answered": Mutant(
        "section 4: a Hello whose run is not the claimed one is answered by Stop",
        {"read": Never(), "waiting": Never()},
        "runs-replay",
    ),
    "queue-not-moved-down": Mutant(
        "section 6: opening another than the lowest closed id moves its queue down one",
        Never(),
        "global2",
        begin=300,
    ),
    "held-under-the-lowest": Mutant(
        "section 6: an event is held under the highest closed id",
        Put("self._held[min(self._held)].append(frame)"),
        "replay2",
    ),
    "appended-past-a-closed-gateway": Mutant(
        "section 6: a successor's events wait for its own gateway too",
        Never(),
        "replay2",
    ),
    "a-stop-is-executed-late": Mutant(
        "section 8: a command that would stop a run is refused when a newer run has begun behind it",
        Never(),
        "stops-replay",
    ),
    # ---- records between subtasks: what senders write, and where barriers stand (section 9)
    "barrier-before-its-records": Mutant(
        "section 9: everything that belongs to the sender's snapshot stands before its barrier",
        Early(),
        "pair",
    ),
    "barrier-with-the-ack": Mutant(
        "section 9: what is emitted behind the snapshot stands behind its barrier",
        {
            "snapshot": Skip(),
            "ack": Insert(
                "barriers = running.outputs.barriers(checkpoint_id, savepoint=running.checkpoints.savepoint, at_ms=0)\n"
                "core.emit(*barriers)"
            ),
        },
        "pair",
    ),
    "barriers-go-unnumbered": Mutant(
        "section 9: frames, barriers and the end share one numbering",
        Skip(),
        "pair",
    ),
    "no-end-is-told": Mutant(
        "section 9: a sender that has finished says so on its channels",
        Skip(),
        "pair-finite",
    ),
    # ---- which records count
    "one-position-for-all-channels": Mutant(
        "section 9: a snapshot names a position per channel, not the partition's",
        Insert(
            "for sender, channel in self.by_sender.items():\n"
            "    if not channel.ended and not channel.ranges:\n"
            "        channel.position = self.positions[sender.operator]"
        ),
        "pair",
    ),
    "names-the-neighbours-position": Mutant(
        "section 9: a snapshot names for a channel its own position",
        Put(
            "those = [channel.named() for channel in self.by_sender.values()]\n"
            "return tuple(\n"
            "    ChannelPosition(p.channel, those[at - 1].segments, p.sequence) for at, p in enumerate(those)\n"
            ")"
        ),
        "pair-unaligned",
    ),
    "old-generations-count": Mutant(
        "section 9: behind its open position frames of the own generation count, and no others",
        Put("return None"),
        "pair",
    ),
    "anybodys-range": Mutant(
        "section 9: in a range the frames of the attempt and generation that it names count, and no others",
        Put("return None"),
        "pair-backlog",
    ),
    "between-ranges-counts": Mutant(
        "section 9: what lies below a range is somebody's past",
        Never(),
        "pair-backlog",
    ),
    "ranges-not-named-again": Mutant(
        "section 9: a position is what is left of older ranges, then the open one",
        Put("(opened,)"),
        "diamond-backlog",
    ),
    "whole-ranges-named-again": Mutant(
        "section 9: a position is what is left of older ranges, then the open one",
        Skip(),
        "diamond-backlog",
    ),
    "range-ends-behind-its-barrier": Mutant(
        "section 9: a range ends at the barrier, and the next part begins right behind that",
        Put("part.cut = part.cut.closed(who, offset + 1, by, ended=False)"),
        "pair-backlog",
    ),
    "restored-sequences-begin-anew": Mutant(
        "section 9: in a range the sequences go on where the snapshot stood",
        Put("self._expected = 0"),
        "pair-backlog",
    ),
    "range-forgotten-at-its-barrier": Mutant(
        "section 9: what stands between the snapshot and a slower channel's barrier belongs to the checkpoint",
        Never(),
        "pair-unaligned",
    ),
    # ---- alignment
    "blocked-channel-read-on": Mutant(
        "section 9: after its barrier a channel is blocked until all have delivered",
        Never(),
        "pair",
    ),
    "blocked-events-handled": Mutant(
        "section 9: after its marker the events partition is blocked until all have delivered",
        Never(),
        "pair-two-at-once",
        begin=30,
    ),
    "highest-skipped-offset": Mutant(
        "section 9: the lowest skipped offset is remembered",
        Put("aligning.skipped[upstream] = offset"),
        "pair",
    ),
    "highest-skipped-event": Mutant(
        "section 9: the lowest skipped offset of the events partition is remembered",
        Always(),
        "pair-two-at-once",
    ),
    "never-goes-back": Mutant(
        "section 9: once the snapshot is taken, a subtask goes back to what it skipped",
        Skip(),
        "pair",
    ),
    "event-position-of-the-last-barrier": Mutant(
        "section 9: an aligned snapshot names the position behind its marker, not behind what was skipped",
        Put("event_position = _behind(core, running, None)"),
        "pair-two-at-once",
    ),
    "abort-leaves-blocked": Mutant(
        "section 9: CheckpointAborted ends the alignment",
        Never(),
        "diamond-timeout",
        begin=15,
    ),
    "abort-waits-behind-the-block": Mutant(
        "section 9: CheckpointAborted is obeyed also while the events partition is blocked",
        Put("not isinstance(record, Reset)"),
        "pair",
    ),
    "finished-sender-waited-for": Mutant(
        "section 9: a finished sender counts as having delivered",
        Put("return {None, *running.channels.by_sender}"),
        "pair-finite",
    ),
    "an-end-completes-nothing": Mutant(
        "section 9: the end of a sender counts as its barrier",
        Skip(),
        "pair-finite",
    ),
    "unaligned-ack-at-once": Mutant(
        "section 9: the ack of an unaligned snapshot follows when all barriers have been seen",
        Skip(),
        "pair-unaligned",
    ),
    "turns-unaligned-without-ranges": Mutant(
        "section 9: what the slower channels owe an overdue alignment becomes ranges",
        Put("missing = set()"),
        "pair-timeout",
    ),
    "savepoint-unaligned": Mutant(
        "section 9: savepoints are always aligned",
        Skip(),
        "pair-everything",
    ),
    "savepoint-turns-unaligned": Mutant(
        "section 9: savepoints are always aligned, however long that takes",
        Skip(),
        "pair-timeout",
    ),
    "aborted-stop-leaves-inputs-paused": Mutant(
        "section 9: when a stopping savepoint is aborted, the inputs go on where they stood",
        Skip(),
        "pair-stops",
    ),
    # ---- the end
    "ends-untold": Mutant(
        "section 8: who emits nothing says finished once its user has been told of a checkpoint with all its work",
        Put("core.finished"),
        "finite-replay",
    ),
    "told-of-an-earlier-checkpoint": Mutant(
        "section 8: that checkpoint was begun behind the end",
        Skip(),
        "finite-replay",
    ),
    "skipped-events-left-out": Mutant(
        "section 8: until then what is skipped behind the end belongs to the checkpoint as a range",
        Never(),
        "eager-end-reset",
    ),
    "a-savepoint-names-what-was-skipped": Mutant(
        "section 7.9: a savepoint needs nothing of the log",
        Never(),
        "eager-end-savepoints",
    ),
    "inputs-end-again": Mutant(
        "section 9: a restored attempt whose state has seen the end of its inputs is not told again",
        Put("self.work_ended = False"),
        "pair-brief",
    ),
    "ended-is-told": Mutant(
        "section 9: that the inputs have ended says nothing of whether the user has been told",
        Put("running.channels.ended"),
        "pair-brief",
    ),
    # ---- the coordinator's side
    "region-is-itself": Mutant(
        "section 8: subtasks that channels connect fail together",
        Put("return [subtask]"),
        "pair",
    ),
    "only-the-failed-gets-a-generation": Mutant(
        "section 8: every member of the region gets a new generation",
        Put("slot.generation += member == subtask"),
        "pair",
    ),
    "start-names-no-data-positions": Mutant(
        "section 9: a Start names where each channel goes on",
        Never(),
        "pair-unaligned",
    ),
    "data-truncated-below-the-open-position": Mutant(
        "section 7.9: data partitions are truncated below every range that a kept checkpoint names",
        {
            "ranges": Put(
                "needed = [max((s.begin for s in position.segments), default=0)] if checkpoint.id in opens else []"
            ),
            "floor": Put("return {partition: max(needed) for partition, needed in begins.items() if needed}"),
        },
        "pair-unaligned",
    ),
    "open-data-truncated": Mutant(
        "section 7.9: data partitions are truncated below the last completed checkpoint's positions",
        Put("return {partition: max(needed) for partition, needed in begins.items() if needed}"),
        "pair",
    ),
    # ---- standby (section 4.3)
    "outage-is-silence": Mutant(
        "section 4.3: an outage of the broker replaces no coordinator",
        Never(),
        "standby-replay",
    ),
    "suspended-machine-is-silence": Mutant(
        "section 4.3: what a standby did not hear while it was stopped itself is no silence",
        Put("stopped = False"),
        "standby-replay",
    ),
    "nobody-need-be-elected": Mutant(
        "section 4.3: a coordinator whose process lives keeps its place, however long it says nothing",
        Skip(),
        "standby-replay",
    ),
    # ---- a job that was purged and begun again (sections 3.2, 4)
    "epochs-of-an-earlier-incarnation": Mutant(
        "section 4.1: epochs of a job are above those of earlier incarnations",
        Put("1"),
        "purges-replay",
    ),
    "truncates-what-has-the-name-now": Mutant(
        "section 3: a coordinator truncates no topics but those that it began with",
        Never(),
        "purges-replay",
    ),
    # ---- a fork (section 3)
    "fork-without-inbox": Mutant(
        "section 3: a copy holds the events that the coordinators had not received",
        Never(),
        "forks-global",
    ),
    "fork-without-ranges": Mutant(
        "section 3: a copy holds the records that a channel's ranges name",
        Never(),
        "pair-forks",
    ),
    # ---- a log that has lost its end (section 4.5)
    "lost-log-restored-by-its-host": Mutant(
        "section 4.5: a host does not go on from a log that lacks what an instance of it completed",
        Skip(),
        "unclean-replay",
    ),
    "lost-log-restored-past-a-subtask": Mutant(
        "section 4.5: nor is an instance started that was told of a checkpoint which the log lacks",
        Skip(),
        "unclean-replay",
    ),
    "old-hello-tells-nothing": Mutant(
        "section 4.5: a Start that answers a Hello from before a notice is answered by another Hello",
        Never(),
        "unclean-global",
        seeds=200,
    ),
    # ---- the end of a job that nobody was told of (section 4)
    "acknowledged-and-not-told-of-the-end": Mutant(
        "section 4: who finds that the job has ended tells each attempt that the last completed checkpoint names",
        Never(),
        "untold-replay",
    ),
    "hello-behind-the-end-unanswered": Mutant(
        "section 4: and every Hello behind it",
        Never(),
        "untold-stops-replay",
    ),
    "hello-of-an-older-run-unanswered": Mutant(
        "section 4: also one of an older run, which may never have heard of the newer one",
        Put("hello.run == finished.run"),
        "untold-stops-global",
        begin=200,
    ),
    # ---- another parallelism (section 5)
    "events-of-the-gone-dropped": Mutant(
        "section 5: what a subtask that is gone had sent to its coordinator is handed over",
        Insert("if subtask not in job.current.slots: return"),
        "rescale-replay",
        begin=130,
    ),
    "derived-forgets-who-acknowledged": Mutant(
        "section 5: subtask i of n' keeps attempt, generation and sent-sequence of subtask i of n",
        Put("snapshot = _nobody(index)"),
        "rescale-often",
    ),
    "derived-of-a-savepoint-asks-the-log": Mutant(
        "section 5: what is derived of a savepoint asks the acks topic for nothing",
        Put("job.next_epoch.rescaling = restored, begin.acks.begin"),
        "retention-late-rescale",
    ),
    "hello-of-the-gone-unanswered": Mutant(
        "section 5: a Hello of another layout is answered by Stop",
        Put("return now is not None and hello.subtask in range(now)"),
        "rescale-often",
    ),
    "derived-asks-the-log-for-a-savepoints-inbox": Mutant(
        "section 5: what is derived of a savepoint holds its inbox itself, whatever is truncated late",
        Put("inbox_position = was.inbox_position"),
        "rescale-late",
    ),
    "derived-id-used-again": Mutant(
        "section 5: the id of n' is the first of the epoch's, and used once",
        Put("first = history.reserved_through + 1"),
        "rescale-often",
    ),
    **QUERY_MUTANTS,
}
