"""The fold over the checkpoint log (protocol, sections 2, 3 and 7.9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.checkpoint_log.history import History, Keyed, keyed
from penstock.coordinator.protocol.checkpoints import IDS_RESERVED
from penstock.schemas.acks import CommandKind
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPart,
    CommandExecuted,
    EpochClaimed,
    JobFinished,
    RunClaimed,
    checkpoint_key,
)
from penstock.schemas.errors import JobRefused
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.state import StateHandle

from .driver import Script


def compacted(log: list[Keyed], end: int) -> list[Keyed]:
    """What a broker may leave of the log when it has compacted its first ``end`` records."""
    newest = {key: at for at, (key, _) in enumerate(log[:end])}
    return [entry for at, entry in enumerate(log) if at >= end or newest[entry[0]] == at]


def without_tombstones(log: list[Keyed], end: int) -> list[Keyed]:
    """The same, when tombstones have had their time too."""
    kept = compacted(log, end)
    gone = end - (len(log) - len(kept))
    return [entry for at, entry in enumerate(kept) if at >= gone or entry[1] is not None]


def told(history: History) -> tuple[object, ...]:
    """All that a start goes by."""
    return (
        history.epoch,
        history.last_id,
        sorted(history.checkpoints),
        {n: c.subtasks for n, c in history.checkpoints.items()},
        history.reserved_through,
        history.run,
        history.executed,
        history.commands_position,
        history.finished,
    )


def eventful() -> Script:
    """Checkpoints of several parts, a savepoint, a way back, a fresh start, commands: everything a log may hold."""
    script = Script.running(OperatorSettings("op", 4))
    large = StateHandle(200_000, inline=bytes(200_000))
    checkpoints = [script.checkpoint(state=large) for _ in range(3)]
    script.command(CommandKind.REQUEST, "nobody")
    script.acknowledge(script.savepoint())
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=checkpoints[-1])
    script.hello_all()
    for _ in range(3):
        script.checkpoint(state=large)
    script.restart(restore=Restore.FRESH)
    script.hello_all()
    script.checkpoint(state=large)
    script.command(CommandKind.REQUEST, "nobody")
    script.command(CommandKind.STOP)
    return script


LOG = eventful().log


def test_the_log_of_this_module_holds_every_kind_of_record() -> None:
    """Or the tests below would prove little."""
    kinds = {type(record).__name__ for _, record in LOG}
    assert kinds == {
        "EpochClaimed", "RunClaimed", "CheckpointPart", "CheckpointCompleted", "CommandExecuted", "JobFinished",
        "NoneType",
    }  # fmt: skip


@pytest.mark.parametrize("compact", [compacted, without_tombstones])
def test_a_log_compacted_up_to_any_record_tells_the_same(compact: object) -> None:
    """Section 3: the checkpoint log is compacted, and a broker may stop in the middle of a transaction."""
    assert callable(compact)
    whole = told(History.of(LOG))
    for end in range(len(LOG) + 1):
        assert told(History.of(compact(LOG, end))) == whole, f"compacted up to {end}"


def test_the_coordinators_own_fold_is_what_a_successor_reads() -> None:
    """Recovery is the same call as normal work."""
    script = eventful()
    assert told(script.job.history) == told(History.of(script.log))


def test_a_header_without_its_parts_is_refused() -> None:
    """Section 4: never overlook a checkpoint, never invent one."""
    script = Script.running()
    n = script.checkpoint()
    log = [entry for entry in script.log if not isinstance(entry[1], CheckpointPart)]
    with pytest.raises(JobRefused, match=rf"checkpoint {n} names 1 parts .* holds \[\]"):
        History.of(log)


def test_each_completed_checkpoint_reserves_further_ids() -> None:
    """Section 7.1: ids come from the newest block that a claim or a completed checkpoint reserved."""
    script = Script.running()
    script.checkpoint()
    n = script.checkpoint()
    header = script.committed(CheckpointCompleted)[-1]
    (claimed,) = script.committed(EpochClaimed)
    assert header.reserved_through == n + IDS_RESERVED > claimed.reserved_through
    assert History.of(script.log).reserved_through == header.reserved_through
    script.restart()
    assert script.committed(EpochClaimed)[-1].first_checkpoint_id == header.reserved_through + 1


def test_a_tombstone_discards_a_checkpoint() -> None:
    """Section 7.9: its committed discard."""
    script = Script.running()
    older, newer = script.checkpoint(), script.checkpoint()
    history = History.of([*script.log, (checkpoint_key(older), None)])
    assert list(history.checkpoints) == [newer]
    assert history.lineage == [newer]


def test_the_last_completed_is_what_the_epoch_completed_else_what_it_restored() -> None:
    """Section 2."""
    script = Script.running()
    first, second = script.checkpoint(), script.checkpoint()
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=first)
    assert History.of(script.log).last_id == first
    script.hello_all()
    third = script.checkpoint()
    assert History.of(script.log).last_id == third > second


def test_a_checkpoint_of_an_abandoned_line_can_still_be_named() -> None:
    """Section 2; section 11, last row."""
    script = Script.running()
    first, second = script.checkpoint(), script.checkpoint()
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=first)
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=second)
    assert script.last_id == second
    script.restart()
    assert script.last_id == second


def test_an_empty_log_tells_of_nothing() -> None:
    """Section 4."""
    history = History.of([])
    assert (history.epoch, history.last, history.last_id, history.run) == (0, None, NO_CHECKPOINT, None)


def test_a_job_that_ended_is_not_ended_any_more_once_an_epoch_begins() -> None:
    """Section 3, JobFinished."""
    script = Script.running()
    script.command(CommandKind.STOP)
    assert isinstance(History.of(script.log).finished, JobFinished)
    script.restart()
    assert History.of(script.log).finished is None


def test_the_newest_run_is_the_claimed_one() -> None:
    """Section 4, Run."""
    history = History.of(keyed(RunClaimed("run-1", 3), RunClaimed("run-2", 9)))
    assert history.run == RunClaimed("run-2", 9)


def test_a_command_at_the_commands_position_is_remembered() -> None:
    """Section 8: the position is the first offset that a successor reads again."""
    script = Script.running()
    script.checkpoint()
    (header,) = script.committed(CheckpointCompleted)
    executed = keyed(CommandExecuted(4, "a", True, "done"), CommandExecuted(5, "b", True, "done"))
    log = [(key, replace(header, commands_position=5) if record is header else record) for key, record in script.log]
    assert list(History.of([*executed, *log]).executed) == [5]


def test_commands_below_the_commands_position_are_forgotten_by_tombstones_too() -> None:
    """Section 8: a command's offset is committed; G7: what is committed does not grow for ever."""
    script = Script.running()
    script.command(CommandKind.REQUEST, "nobody")
    assert len(script.job.history.executed) == 1
    script.checkpoint()
    assert script.job.history.executed == {}
    assert History.of(compacted(script.log, len(script.log))).executed == {}
    assert not any(isinstance(r, CommandExecuted) for _, r in compacted(script.log, len(script.log)))
