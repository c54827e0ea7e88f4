# ruff: noqa: E501  (lines of source are quoted as they stand)
"""Rules left out on purpose: each must be noticed, or the checks hold nothing.

``python -m tests.simulation --mutants`` shows for each the seed that notices it, and what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.coordinator import host
from penstock.coordinator.protocol import (
    attempts,
    checkpoints,
    commands,
    core,
    ended,
    failover,
    gateway,
    inbox,
    log_clock,
    recovery,
    rescaling,
    retention,
    sending,
    starts,
    state,
)
from penstock.subtask_client.protocol import (
    acking,
    alignment,
    channels,
    ending,
    hello,
    notices,
    outputs,
    reading,
    records,
    running,
)
from penstock.subtask_client.protocol import core as subtask_core

from .configs import CONFIGS
from .edits import Edit, Mutant, edited
from .query_mutants import QUERY_MUTANTS
from .run import simulate

MUTANTS: dict[str, Mutant] = {
    # ---- gateways and the cut (sections 6, 7.2 to 7.4)
    "gateway-never-closes": Mutant(
        "section 7.3: at the cut that operator's gateways close",
        (Edit(checkpoints, "slot.gateway.close(pending.id)", "pass"),),
        "replay1-two",
    ),
    "abort-opens-the-oldest": Mutant(
        "section 6: abort is by id, and never opens another checkpoint's gateways",
        (
            Edit(
                checkpoints,
                "        if slot.subtask in pending.required:\n            sending.open_gateway(job, slot, pending.id)",
                "        for n in slot.gateway.closed[:1] or ([pending.id] if slot.subtask in pending.required else []):\n"
                "            sending.open_gateway(job, slot, n)",
            ),
        ),
        "replay2",
    ),
    "ack-opens-everybody": Mutant(
        "section 6: an ack from subtask 1 releases nothing of subtask 0",
        (
            Edit(
                checkpoints,
                "    _acknowledged(pending, slot.subtask, snapshot)\n    sending.open_gateway(job, slot, pending.id)",
                "    _acknowledged(pending, slot.subtask, snapshot)\n"
                "    [sending.open_gateway(job, s, pending.id) for s in job.live()]",
            ),
        ),
        "replay2",
    ),
    "late-future-closes": Mutant(
        "section 7.3: a future completed after n was aborted closes nothing",
        (
            Edit(
                checkpoints,
                'return job.drop("late-coordinator-state")',
                "[s.gateway._held.setdefault(done.checkpoint_id, []) for s in job.live()]; return None",
            ),
        ),
        "replay2",
    ),
    "no-release-below": Mutant(
        "section 7.4: whatever the gateway holds under lower ids is appended before the marker",
        (Edit(checkpoints, "sending.release_below(job, slot, pending.id)", "pass"),),
        "replay2",
    ),
    "two-calls-at-once": Mutant(
        "section 7.1: no checkpoint is called while another still awaits a coordinator's future or its markers",
        (Edit(checkpoints, "all(p.step is Step.ACKS and not p.stop for p in pending)", "True"),),
        "replay2",
    ),
    "handed-over-at-once": Mutant(
        "section 7.2: until its future completes a coordinator is handed no event",
        (
            Edit(
                inbox,
                "if queue or any(delivery.operator in pending.uncut for pending in epoch.pending.values()):",
                "if False:",
            ),
        ),
        "replay1",
    ),
    "inbox-position-late": Mutant(
        "section 7.2: the inbox position of n is the first record not handed over at its call",
        (
            Edit(
                checkpoints,
                "pending.states.get(o.name), pending.inbox_position,",
                "pending.states.get(o.name), job.position,",
            ),
        ),
        "global2",
    ),
    # ---- acks and completion (sections 3, 7.6, 7.7)
    "repeated-ack-counts": Mutant(
        "section 7.7: acks are taken by identity, not by count",
        (
            Edit(
                checkpoints,
                'return job.drop("repeated-ack")',
                "return [_acknowledged(pending, s, pending.acks[slot.subtask])"
                " for s in sorted(pending.required - set(pending.acks))[:1]] and None",
            ),
        ),
        "repeats",
    ),
    "anybodys-records": Mutant(
        "section 3: the coordinator drops what does not match the attempt",
        (Edit(core, "slot.attempt.sender(slot.subtask) != sender", "False"),),
        "replay2",
    ),
    "any-generation": Mutant(
        "section 3: the coordinator drops what does not match the generation",
        (Edit(core, "slot.attempt.sender(slot.subtask) != sender", "slot.attempt.id != sender.attempt"),),
        "zombies-replay",
    ),
    "complete-before-its-events": Mutant(
        "section 7.7: notify_checkpoint_complete(n) only after every event that belongs to n",
        (Edit(checkpoints, "inbox.deliver(job, CallComplete(operator, n))", "job.emit(CallComplete(operator, n))"),),
        "replay2",
    ),
    "snapshot-events-left-out": Mutant(
        "section 7.7: events sent in snapshot_state(n) belong to n",
        (
            Edit(acking, "        *running.flush(),\n", ""),
            Edit(acking, "[*running.flush(), do.Write(ack)]", "[do.Write(ack)]"),
        ),
        "replay2",
    ),
    "ids-used-again": Mutant(
        "section 7.1: an id is never used twice in a job",
        (Edit(recovery, "first = history.reserved_through + (2 if derived else 1)", "first = history.last_id + 1"),),
        "replay1",
    ),
    "unnamed-states-deleted": Mutant(
        "section 7.8: what an aborted checkpoint releases, no completed one names",
        (
            Edit(
                checkpoints,
                "sorted(locations - job.history.locations())",
                "sorted(locations | job.history.locations())",
            ),
        ),
        "replay1",
    ),
    "truncates-too-far": Mutant(
        "section 7.9: logs are truncated below the last completed checkpoint's positions",
        (
            Edit(
                retention,
                "acks = min([c.inbox_position for c in (*kept, *replayed, last)] + [last.header.commands_position])",
                "acks = 1 + last.inbox_position",
            ),
        ),
        "replay1",
    ),
    "window-begins-too-late": Mutant(
        "section 7.9: the window begins with a checkpoint that is as old as it",
        (Edit(retention, "line[-1][1] - 1000 * seconds", "line[-1][1] - 500 * seconds"),),
        "retention-replay",
    ),
    "truncates-one-too-far": Mutant(
        "section 7.9: logs are truncated below the last completed checkpoint's positions, never above",
        (Edit(retention, "events[subtask] = min(", "events[subtask] = 1 + min("),),
        "retention-no-window",
    ),
    "discards-the-last-one": Mutant(
        "section 7.9: the last completed checkpoint is never discarded",
        (Edit(commands, "if n == history.last_id:", "if False:"),),
        "retention-discards",
    ),
    "never-truncates": Mutant(
        "section 7.9: what nobody needs is truncated",
        (Edit(retention, "if last is None or not replayed:", "if True:"),),
        "retention-no-window",
    ),
    # ---- failover and recovery (section 8)
    "no-inbox-range": Mutant(
        "section 8: the inbox range is handed over",
        (
            Edit(
                inbox,
                "if job.has_coordinator(subtask.operator):\n            events = unpack(part",
                "if False:\n            events = unpack(part",
            ),
        ),
        "global1",
    ),
    "whole-inbox-range": Mutant(
        "section 8: the inbox range ends at the sent-sequence that the ack names",
        (
            Edit(inbox, "if events.sequence + events.count <= sequence:", "if True:"),
            Edit(inbox, "if events.sequence >= sequence:", "if False:"),
        ),
        "global2",
        200,
    ),
    "range-of-any-attempt": Mutant(
        "section 8: the inbox range is of exactly the attempt and generation that acked",
        (Edit(inbox, "if sender != (snapshot.attempt, snapshot.epoch, snapshot.generation):", "if False:"),),
        "global2",
        200,
    ),
    "takeover-reads-nothing-back": Mutant(
        "section 8: a new process first reads the acks topic from n's inbox position",
        (
            Edit(
                recovery,
                "job.emit(ReadAcks(low, committed.acks_end))",
                "job.emit(ReadAcks(committed.acks_end, committed.acks_end))",
            ),
        ),
        "zombies-replay",
    ),
    "oldest-hello-wins": Mutant(
        "section 8: a new process answers only the newest Hello per subtask",
        (Edit(recovery, "job.wait(waiting)", "job.hellos.setdefault(record.subtask_id, waiting)"),),
        "zombies-replay",
    ),
    "range-later": Mutant(
        "section 8: the inbox range is handed over before anything newer from that subtask",
        (
            Edit(attempts, "    inbox.hand_inherited(job, subtask)\n", ""),
            Edit(checkpoints, "and not epoch.inherited", ""),
        ),
        "global2",
    ),
    "rollback-forgets-futures": Mutant(
        "section 6: every future settles, also at a global failover",
        (
            Edit(
                failover,
                'sending.fail_stream(job, slot, RolledBack(f"epoch {epoch.number} has been rolled back: {cause}"))',
                "pass",
            ),
        ),
        "replay1",
    ),
    "reset-forgets-futures": Mutant(
        "section 6: under reset, events of the failed attempt settle with TaskNotRunning",
        (Edit(failover, "            sending.fail_stream(job, slot, failure)", "            slot.stream = None"),),
        "reset2",
    ),
    "failed-before-handed-over": Mutant(
        "section 4: what was read before is handed over, ahead of execution_attempt_failed",
        (
            Edit(
                checkpoints,
                "    job.current.pending.clear()\n    for pending in dropped:\n        _release_withheld(job, pending)\n",
                "    job.current.pending.clear()\n",
            ),
            Edit(
                failover,
                "    for pending in aborted:\n",
                "    for pending in aborted:\n        checkpoints._release_withheld(job, pending)\n",
            ),
        ),
        "replay2",
    ),
    "commands-position-too-far": Mutant(
        "section 8: a command is executed again until its effect or refusal is committed",
        (
            Edit(
                checkpoints,
                "commands_position = min(open_commands, default=job.position)",
                "commands_position = job.position",
            ),
        ),
        "savepoints-replay",
    ),
    "superseded-takes-over": Mutant(
        "section 4: a Hello whose instance was an attempt that another has superseded is not answered by Start",
        (Edit(attempts, "if hello.previous == NO_ATTEMPT:", "if True:"),),
        "frozen-replay",
        300,
    ),
    "lost-start-forgotten": Mutant(
        "section 8: a Hello whose Start may not stand waits again when a new epoch begins",
        (
            Edit(
                failover,
                "        if subtask != failed:\n            unheard.at_takeover",
                "        if False:\n            unheard.at_takeover",
            ),
        ),
        "refusals-replay",
        300,
        300,
    ),
    "hint-owes-no-reset": Mutant(
        "section 8: a hint that takes a waiting Hello away sends the Reset that was left out for it",
        (Edit(core, "job.emit(Append(subtask, Reset(job.current.number, slot.generation)))", "pass"),),
        "twins-replay",
        begin=500,
    ),
    "outage-fails-everybody": Mutant(
        "section 8: a broker that is away for a minute fails nobody",
        (
            Edit(
                log_clock,
                "max(0.0, min((appended_at_ms - self._at_ms) / 1000, self._step_max_s))",
                "max(0.0, (appended_at_ms - self._at_ms) / 1000)",
            ),
        ),
        "calm-outages",
    ),
    # ---- bounds (section 6, G7)
    "held-without-bound": Mutant(
        "section 6: past max_held_bytes the oldest pending checkpoint is aborted",
        (Edit(core, "checkpoints.overflow(job)\n                or ", ""),),
        "tiny-replay",
    ),
    "unhandled-without-bound": Mutant(
        "section 6: past max_unhandled events send_event raises Backpressure",
        (Edit(host, "or ledger.promised - self._stream.handled_through >= self._unhandled_max", "or False"),),
        "tiny-replay",
    ),
    # ---- the subtask's side (sections 4, 5, 7.5, 8)
    "old-epochs-count": Mutant(
        "section 4: a subtask ignores records of an epoch lower than the highest it has seen",
        (
            Edit(subtask_core, "if record.epoch < self.epoch_seen:", "if False:"),
            Edit(
                subtask_core, "self.epoch_seen = record.epoch", "self.epoch_seen = max(self.epoch_seen, record.epoch)"
            ),
            Edit(reading, "if frame.epoch != epoch:", "if False:"),
        ),
        "zombies-replay",
    ),
    "superseded-says-hello": Mutant(
        "section 4: a superseded attempt leaves and does not say Hello again",
        (
            Edit(
                subtask_core,
                "    def superseded_by(self, attempt: int) -> list[Effect]:\n",
                "    def superseded_by(self, attempt: int) -> list[Effect]:\n"
                "        if self.phase is not Phase.NEW:\n            return self._start_over()\n",
            ),
        ),
        "twins-replay",
    ),
    "hello-without-looking": Mutant(
        "section 4: an instance that is to say Hello again first reads up to the high watermark",
        (Edit(hello, "if core.attempt is not None and core.position < end:", "if False:"),),
        "frozen-replay",
        300,
    ),
    "reset-obeyed-while-waiting": Mutant(
        "section 5.1: until its Start an instance only notes the epoch of a Reset",
        (
            Edit(
                subtask_core,
                "        if running is None:\n            return self.drop(Dropped.BEFORE_START)",
                "        if running is None:\n"
                "            return self._start_over() if isinstance(record, Reset) else self.drop(Dropped.BEFORE_START)",
            ),
        ),
        "replay2",
    ),
    "control-below-start-obeyed": Mutant(
        "section 5.3: control records below its own Start are void, and a Reset counts above the own generation only",
        (
            Edit(
                subtask_core,
                "            if not isinstance(record, EventFrame):\n                return self.drop(Dropped.VOID_CONTROL)\n            return self._on_frame(running, offset, record, None)",
                "            return self._on_live_record(offset, record)",
            ),
            Edit(
                subtask_core,
                "if record.full_generation <= running.start.full_generation:\n                    return self.drop(Dropped.STALE_RESET)",
                "if False:\n                    return []",
            ),
        ),
        "replay2",
    ),
    "lost-stop-forgotten": Mutant(
        "section 8: the Stops of the epoch before are written again in the new one",
        (Edit(recovery, "    attempts.stop_again(job)\n", ""),),
        "refused-stops",
        begin=300,
    ),
    "stuck-waited-for": Mutant(
        "section 8: whoever is to start over and goes on in user code for too long has its task ended",
        (
            Edit(
                failover,
                "elif silent or waited_s <= settings.task_cancellation_timeout:",
                "elif silent or left.killed_at is None:",
            ),
        ),
        "pair-hangs",
    ),
    "stuck-before-a-takeover-forgotten": Mutant(
        "section 8: a successor waits for whoever acknowledged a checkpoint and has not said Hello since",
        (Edit(recovery, "        _recall_left(job)\n", ""),),
        "hangs-takeovers",
        begin=100,
    ),
    "stuck-under-a-start-before": Mutant(
        "section 8: whoever speaks, and not under its Start, for too long has its task ended",
        (Edit(core, "if failover.ends_unheard(job, slot.subtask):", "if False:"),),
        "hangs-takeovers",
        begin=300,
    ),
    "repeated-hello-forgets-whom-it-displaced": Mutant(
        "section 8: the Hello that a dead task's one displaced waits again",
        (
            Edit(
                state,
                "waiting.displaced = before.displaced if again else before",
                "waiting.displaced = None if again else before",
            ),
        ),
        "tiny-global",
        begin=10_400,
    ),
    "second-start-ignored": Mutant(
        "section 5.3: a second Start for the own attempt with a higher generation means starting over",
        (
            Edit(
                hello,
                "if core.running is not None and start.full_generation <= core.running.start.full_generation:",
                "if core.running is not None:",
            ),
        ),
        "global2-two",
    ),
    "handled-too-early": Mutant(
        "section 3: handled-through names what has been handled",
        (Edit(running, "return self.reading.handled_through + events_done", "return self.handling[1]"),),
        "replay1",
    ),
    "position-too-far": Mutant(
        "section 7.6: the ack names the position of its snapshot",
        (Edit(alignment, "event_position=event_position,", "event_position=event_position + 1,"),),
        "replay1",
    ),
    "sequences-begin-anew": Mutant(
        "section 5.4: a successor goes on in the sequence that its checkpoint names",
        (
            Edit(
                starts,
                "    return snapshot.handled_through",
                "    return 0",
            ),
        ),
        "replay1",
    ),
    "finished-handles-on": Mutant(
        "section 8: a finished instance handles no event any more",
        (Edit(subtask_core, "if reading.ended:", "if False:"),),
        "eager-end-replay",
    ),
    "ends-before-its-start": Mutant(
        "section 8: an attempt's end comes behind its own Start",
        (Edit(ending, " or core.position <= running.reading.offset:", ":"),),
        "brief-replay",
    ),
    "handles-behind-a-stop": Mutant(
        "section 9: after the marker of a stopping savepoint a subtask handles nothing more",
        (
            Edit(
                subtask_core,
                "        if running.stopping is not None:\n            return self.drop(Dropped.BEHIND_STOP)\n        reading =",
                "        reading =",
            ),
        ),
        "stops-replay",
    ),
    "aborted-stop-skips": Mutant(
        "section 8: when a stopping savepoint is aborted, a subtask goes on right behind its marker",
        (
            Edit(
                alignment,
                "core.position, running.stopping = running.stopping[1] + 1, None",
                "running.stopping = None",
            ),
        ),
        "stops-replay",
    ),
    "older-run-answered": Mutant(
        "section 4: a Hello whose run is not the claimed one is answered by Stop",
        (
            Edit(
                attempts,
                "if job.run is None or hello.run != job.run[0] or job.settings.batches:\n        job.drop",
                "if job.run is None:\n        job.drop",
            ),
            Edit(attempts, "if job.run is None or waiting.hello.run != job.run[0]:", "if job.run is None:"),
        ),
        "runs-replay",
    ),
    "queue-not-moved-down": Mutant(
        "section 6: opening another than the lowest closed id moves its queue down one",
        (Edit(gateway, "            self._held[max(below)] += queue\n            return []", "            pass"),),
        "global2",
        begin=300,
    ),
    "held-under-the-lowest": Mutant(
        "section 6: an event is held under the highest closed id",
        (Edit(gateway, "self._held[max(self._held)].append(frame)", "self._held[min(self._held)].append(frame)"),),
        "replay2",
    ),
    "appended-past-a-closed-gateway": Mutant(
        "section 6: a successor's events wait for its own gateway too",
        (
            Edit(
                sending, "    if slot.gateway.closed:\n", "    if slot.gateway.closed and slot.phase.value == 'done':\n"
            ),
        ),
        "replay2",
    ),
    "a-stop-is-executed-late": Mutant(
        "section 8: a command that would stop a run is refused when a newer run has begun behind it",
        (Edit(commands, "if stops and job.run is not None and offset < job.run[1]:", "if False:"),),
        "stops-replay",
    ),
    # ---- records between subtasks: what senders write, and where barriers stand (section 9)
    "barrier-before-its-records": Mutant(
        "section 9: everything that belongs to the sender's snapshot stands before its barrier",
        (
            Edit(
                acking,
                "        *running.flush(),\n        *running.outputs.barriers(n, savepoint=savepoint, at_ms=returned.wall_ms),\n",
                "        *running.outputs.barriers(n, savepoint=savepoint, at_ms=returned.wall_ms),\n        *running.flush(),\n",
            ),
            Edit(
                outputs,
                "frames = self.flush()\n        for receiver, channel in self._channels.items():\n            barrier",
                "frames: list[WriteData] = []\n        for receiver, channel in self._channels.items():\n            barrier",
            ),
        ),
        "pair",
    ),
    "barrier-with-the-ack": Mutant(
        "section 9: what is emitted behind the snapshot stands behind its barrier",
        (
            Edit(acking, "        *running.outputs.barriers(n, savepoint=savepoint, at_ms=returned.wall_ms),\n", ""),
            Edit(
                acking,
                "    return [*running.flush(), do.Write(ack)]",
                "    late = running.outputs.barriers(checkpoint_id, savepoint=running.checkpoints.savepoint, at_ms=0)\n"
                "    return [*running.flush(), *late, do.Write(ack)]",
            ),
        ),
        "pair",
    ),
    "barriers-go-unnumbered": Mutant(
        "section 9: frames, barriers and the end share one numbering",
        (
            Edit(
                outputs,
                "            channel.sequence += 1\n            frames.append(WriteData(receiver, barrier))",
                "            frames.append(WriteData(receiver, barrier))",
            ),
        ),
        "pair",
    ),
    "no-end-is-told": Mutant(
        "section 9: a sender that has finished says so on its channels",
        (Edit(ending, "*running.outputs.ends(), ", ""),),
        "pair-finite",
    ),
    # ---- which records count
    "one-position-for-all-channels": Mutant(
        "section 9: a snapshot names a position per channel, not the partition's",
        (
            Edit(
                channels,
                "        return tuple(channel.named() for channel in self.channels.values())",
                "        for sender, channel in self.channels.items():\n"
                "            if not channel.ended and not channel.ranges:\n"
                "                channel.position = self.positions[sender.operator]\n"
                "        return tuple(channel.named() for channel in self.channels.values())",
            ),
        ),
        "pair",
    ),
    "names-the-neighbour's-position": Mutant(
        "section 9: a snapshot names for a channel its own position",
        (
            Edit(
                channels,
                "        return tuple(channel.named() for channel in self.channels.values())",
                "        those = [channel.named() for channel in self.channels.values()]\n"
                "        return tuple(ChannelPosition(p.channel, those[at - 1].segments, p.sequence) for at, p in enumerate(those))",
            ),
        ),
        "pair-unaligned",
    ),
    "old-generations-count": Mutant(
        "section 9: behind its open position frames of the own generation count, and no others",
        (
            Edit(
                channels,
                "return None if sender.full_generation == self.generation else Dropped.OTHER_GENERATION",
                "return None",
            ),
        ),
        "pair",
    ),
    "anybody's-range": Mutant(
        "section 9: in a range the frames of the attempt and generation that it names count, and no others",
        (
            Edit(
                channels,
                "return None if _origin(self.ranges[0]) == _origin(sender) else Dropped.OTHER_GENERATION",
                "return None",
            ),
        ),
        "pair-backlog",
    ),
    "between-ranges-counts": Mutant(
        "section 9: what lies below a range is somebody's past",
        (
            Edit(
                channels,
                "            if offset < self.ranges[0].begin:\n                return Dropped.OUTSIDE_RANGES\n",
                "",
            ),
        ),
        "pair-backlog",
    ),
    "ranges-not-named-again": Mutant(
        "section 9: a position is what is left of older ranges, then the open one",
        (Edit(channels, "(*self.ranges, opened)", "(opened,)"),),
        "diamond-backlog",
    ),
    "whole-ranges-named-again": Mutant(
        "section 9: a position is what is left of older ranges, then the open one",
        (
            Edit(
                channels,
                "rest = Segment(offset + 1, first.end,",
                "rest = Segment(first.begin, first.end if offset + 1 < first.end else first.begin,",
            ),
        ),
        "diamond-backlog",
    ),
    "range-ends-behind-its-barrier": Mutant(
        "section 9: a range ends at the barrier, and the next part begins right behind that",
        (
            Edit(
                alignment,
                "part.cut.closed(who, offset, by, ended=False)",
                "part.cut.closed(who, offset + 1, by, ended=False)",
            ),
        ),
        "pair-backlog",
    ),
    "restored-sequences-begin-anew": Mutant(
        "section 9: in a range the sequences go on where the snapshot stood",
        (Edit(channels, "self._expected = named.sequence if self.ranges else 0", "self._expected = 0"),),
        "pair-backlog",
    ),
    "range-forgotten-at-its-barrier": Mutant(
        "section 9: what stands between the snapshot and a slower channel's barrier belongs to the checkpoint as a range",
        (Edit(channels, "    if end > opened.begin:", "    if False:"),),
        "pair-unaligned",
    ),
    # ---- alignment
    "blocked-channel-read-on": Mutant(
        "section 9: after its barrier a channel is blocked until all have delivered",
        (Edit(records, "if aligning is not None and channel.sender in aligning.delivered:", "if False:"),),
        "pair",
    ),
    "blocked-events-handled": Mutant(
        "section 9: after its marker the events partition is blocked until all have delivered",
        (
            Edit(
                subtask_core,
                "if blocking is not None and None in blocking.delivered and not",
                "if blocking is not None and False and not",
            ),
        ),
        "pair-two-at-once",
        begin=30,
    ),
    "highest-skipped-offset": Mutant(
        "section 9: the lowest skipped offset is remembered",
        (Edit(records, "aligning.skipped.setdefault(upstream, offset)", "aligning.skipped[upstream] = offset"),),
        "pair",
    ),
    "highest-skipped-event": Mutant(
        "section 9: the lowest skipped offset of the events partition is remembered",
        (Edit(subtask_core, "            if blocking.skipped_events is None:\n", "            if True:\n"),),
        "pair-two-at-once",
    ),
    "never-goes-back": Mutant(
        "section 9: once the snapshot is taken, a subtask goes back to what it skipped",
        (
            Edit(
                alignment,
                "        inputs.positions[upstream] = offset\n    inputs.paused.update",
                "        pass\n    inputs.paused.update",
            ),
        ),
        "pair",
    ),
    "event-position-of-the-last-barrier": Mutant(
        "section 9: an aligned snapshot names the position behind its marker, not behind what was skipped",
        (
            Edit(
                alignment,
                "event_position = _behind(core, running, None) if None in missing else alignment.event_position",
                "event_position = _behind(core, running, None)",
            ),
        ),
        "pair-two-at-once",
    ),
    "abort-leaves-blocked": Mutant(
        "section 9: CheckpointAborted ends the alignment",
        (Edit(notices, "if running.alignment is not None and running.alignment.id == n:", "if False:"),),
        "diamond-timeout",
        begin=15,
    ),
    "abort-waits-behind-the-block": Mutant(
        "section 9: CheckpointAborted is obeyed also while the events partition is blocked",
        (Edit(subtask_core, "not isinstance(record, Reset | CheckpointAborted)", "not isinstance(record, Reset)"),),
        "pair",
    ),
    "finished-sender-waited-for": Mutant(
        "section 9: a finished sender counts as having delivered",
        (Edit(alignment, "    return {None, *running.inputs.open}", "    return {None, *running.inputs.channels}"),),
        "pair-finite",
    ),
    "an-end-completes-nothing": Mutant(
        "section 9: the end of a sender counts as its barrier",
        (
            Edit(
                alignment,
                "    effects += snapshot_if_complete(core, running)\n    return [*effects, *_pause",
                "    return [*effects, *_pause",
            ),
        ),
        "pair-finite",
    ),
    "unaligned-ack-at-once": Mutant(
        "section 9: the ack of an unaligned snapshot follows when all barriers have been seen",
        (
            Edit(
                acking,
                "    if part.storing or part.missing:\n        return []",
                "    if part.storing:\n        return []",
            ),
        ),
        "pair-unaligned",
    ),
    "turns-unaligned-without-ranges": Mutant(
        "section 9: what the slower channels owe an overdue alignment becomes ranges",
        (
            Edit(
                alignment, "    missing = _required(running) - alignment.delivered\n", "    missing: set[Who] = set()\n"
            ),
        ),
        "pair-timeout",
    ),
    "savepoint-unaligned": Mutant(
        "section 9: savepoints are always aligned",
        (Edit(alignment, "if core.config.unaligned and not savepoint:", "if core.config.unaligned:"),),
        "pair-everything",
    ),
    "savepoint-turns-unaligned": Mutant(
        "section 9: savepoints are always aligned, however long that takes",
        (Edit(alignment, " or alignment.savepoint:", ":"),),
        "pair-timeout",
    ),
    "aborted-stop-leaves-inputs-paused": Mutant(
        "section 9: when a stopping savepoint is aborted, the inputs go on where they stood",
        (
            Edit(
                alignment,
                "    return [do.Seek(core.position), *_resume(inputs)]",
                "    return [do.Seek(core.position)]",
            ),
        ),
        "pair-stops",
    ),
    # ---- the end
    "ends-untold": Mutant(
        "section 8: who emits nothing says finished once its user has been told of a checkpoint with all its work",
        (Edit(alignment, "finished=core.finished and running.settled,", "finished=core.finished,"),),
        "finite-replay",
    ),
    "told-of-an-earlier-checkpoint": Mutant(
        "section 8: that checkpoint was begun behind the end",
        (Edit(ending, " or checkpoint_id < running.over_in:", ":"),),
        "finite-replay",
    ),
    "skipped-events-left-out": Mutant(
        "section 8: until then what is skipped behind the end belongs to the checkpoint as a range",
        (Edit(alignment, "    if (begin := _owed_from(running)) is not None:", "    if begin := None:"),),
        "eager-end-reset",
    ),
    "a-savepoint-names-what-was-skipped": Mutant(
        "section 7.9: a savepoint needs nothing of the log",
        (Edit(alignment, "    if record.savepoint and running", "    if False and running"),),
        "eager-end-savepoints",
    ),
    "inputs-end-again": Mutant(
        "section 9: a restored attempt whose state has seen the end of its inputs is not told again",
        (Edit(running, "self.told_ended = self.inputs.told_ended", "self.told_ended = False"),),
        "pair-brief",
    ),
    "ended-is-told": Mutant(
        "section 9: that the inputs have ended says nothing of whether the user has been told",
        (Edit(alignment, "inputs_ended=running.told_ended", "inputs_ended=running.inputs.ended"),),
        "pair-brief",
    ),
    # ---- the coordinator's side
    "region-is-itself": Mutant(
        "section 8: subtasks that channels connect fail together",
        (
            Edit(
                failover,
                "    return [subtask, *(s for s in connected if s != subtask and slots[s].phase is not SlotPhase.DONE)]",
                "    return [subtask]",
            ),
        ),
        "pair",
    ),
    "only-the-failed-gets-a-generation": Mutant(
        "section 8: every member of the region gets a new generation",
        (Edit(failover, "        slot.generation += 1\n", "        slot.generation += member == subtask\n"),),
        "pair",
    ),
    "start-names-no-data-positions": Mutant(
        "section 9: a Start names where each channel goes on",
        (Edit(attempts, "        if sender in named:\n", "        if False:\n"),),
        "pair-unaligned",
    ),
    "data-truncated-below-the-open-position": Mutant(
        "section 7.9: data partitions are truncated below every range that a kept checkpoint names",
        (
            Edit(
                retention,
                "needed = [s.begin for s in position.segments if s.end != OPEN_END or checkpoint.id in opens]",
                "needed = [max((s.begin for s in position.segments), default=0)] if checkpoint.id in opens else []",
            ),
            Edit(retention, "{partition: min(needed) for", "{partition: max(needed) for"),
        ),
        "pair-unaligned",
    ),
    "open-data-truncated": Mutant(
        "section 7.9: data partitions are truncated below the last completed checkpoint's positions",
        (Edit(retention, "{partition: min(needed) for", "{partition: max(needed) for"),),
        "pair",
    ),
    # ---- the end of a job that nobody was told of (section 4)
    "acknowledged-and-not-told-of-the-end": Mutant(
        "section 4: who finds that the job has ended tells each attempt that the last completed checkpoint names",
        (Edit(ended, "if subtask in here and snapshot.attempt != NO_ATTEMPT", "if False"),),
        "untold-replay",
    ),
    "hello-behind-the-end-unanswered": Mutant(
        "section 4: and every Hello behind it",
        (Edit(ended, "if isinstance(hello, Hello) and", "if False and isinstance(hello, Hello) and"),),
        "untold-stops-replay",
    ),
    # ---- another parallelism (section 5)
    "events-of-the-gone-dropped": Mutant(
        "section 5: what a subtask that is gone had sent to its coordinator is handed over",
        (
            Edit(
                inbox,
                "if owed is None or subtask.operator not in job.settings.parallelism:",
                "if owed is None or subtask not in job.current.slots:",
            ),
        ),
        "rescale-frozen",
    ),
    "derived-forgets-who-acknowledged": Mutant(
        "section 5: subtask i of n' keeps attempt, generation and sent-sequence of subtask i of n",
        (Edit(rescaling, "old[index] if index in old else _nobody(index)", "_nobody(index)"),),
        "rescale-often",
    ),
    "derived-of-a-savepoint-asks-the-log": Mutant(
        "section 5: what is derived of a savepoint asks the acks topic for nothing",
        (Edit(recovery, "job.rescaling = restored, begin.acks.end", "job.rescaling = restored, begin.acks.begin"),),
        "retention-late-rescale",
    ),
    "hello-of-the-gone-unanswered": Mutant(
        "section 5: a Hello of another layout is answered by Stop",
        (Edit(attempts, "range(max(now, job.partitions.get(hello.operator, 0)))", "range(now)"),),
        "rescale-often",
    ),
    "derived-asks-the-log-for-a-savepoints-inbox": Mutant(
        "section 5: what is derived of a savepoint holds its inbox itself, whatever is truncated late",
        (Edit(rescaling, "acks_end if header.savepoint else was.inbox_position", "was.inbox_position"),),
        "rescale-late",
    ),
    "derived-id-used-again": Mutant(
        "section 5: the id of n' is the first of the epoch's, and used once",
        (
            Edit(
                recovery,
                "first = history.reserved_through + (2 if derived else 1)",
                "first = history.reserved_through + 1",
            ),
        ),
        "rescale-often",
    ),
    **QUERY_MUTANTS,
}


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """The cores with that rule left out; as they are, without a name."""
    with edited(MUTANTS[name].edits if name is not None else ()):
        yield


@dataclass(frozen=True, slots=True)
class Notice:
    """What a mutant came to: the first seed that notices it, None where none does, and what is said."""

    mutant: str
    seed: int | None
    said: str


def notice(name: str) -> Notice:
    mutant = MUTANTS[name]
    with mutated(name):
        for seed in range(mutant.begin, mutant.begin + mutant.seeds):
            if (violation := simulate(CONFIGS[mutant.config], seed).violation) is not None:
                return Notice(name, seed, violation.splitlines()[0][:200])
    return Notice(name, None, "")
