"""The second phase of the last checkpoint of a finite job: nobody may be gone before it has been done."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.sinks import FileSink
from penstock.testing import LocalJob

RECORDS = 100
PATIENCE_S = 30.0


class Counting(penstock.Subtask):
    """Emits 0, 1, 2, ... and ends."""

    next = 0

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def poll(self) -> penstock.Progress | penstock.Finished:
        if self.next == RECORDS:
            return penstock.Finished()
        self.context.emit(self.next)
        self.next += 1
        return penstock.Progress()

    def snapshot_state(self, checkpoint_id: int) -> int:
        return self.next

    def restore_state(self, checkpoint_id: int, state: int) -> None:
        self.next = state


class Once:
    """What goes wrong in the first notice behind the last record."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()


class LosesItsLastNotice(FileSink):
    def __init__(self, once: Once, dies: bool, folder: Path) -> None:
        super().__init__(folder)
        self.once, self.dies, self.ended = once, dies, False

    def end_inputs(self) -> None:
        super().end_inputs()
        self.ended = True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self.ended and not self.once.reached.is_set():
            self.once.reached.set()
            if not self.dies:
                raise OSError("the folder cannot be reached")
            assert self.once.go_on.wait(PATIENCE_S)
            raise OSError("this process is dead by now")
        super().notify_checkpoint_complete(checkpoint_id)


def visible(folder: Path) -> list[Any]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("dies", [False, True])
def test_a_sink_that_fails_or_dies_in_its_last_notice_makes_everything_visible_all_the_same(
    tmp_path: Path, dies: bool
) -> None:
    """Section 8: a sink ends when it has been told of a checkpoint with all of its records."""
    once = Once()
    job = penstock.Job("ending", checkpoint=penstock.CheckpointSettings(interval=0.05), heartbeat_interval=0.2)
    counting = job.operator("counting", subtask=Counting, parallelism=1, output_codec="json", state_codec="json")
    make = partial(LosesItsLastNotice, once, dies, tmp_path)
    job.operator("out", subtask=make, parallelism=1, inputs=[counting.forward()])
    with LocalJob(job) as running:
        assert once.reached.wait(PATIENCE_S)
        if dies:
            running.crash_subtask("out", 0)
            once.go_on.set()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    assert sorted(visible(tmp_path)) == list(range(RECORDS))


class WritesByItself(LosesItsLastNotice):
    """Has no inputs, writes 0 to RECORDS - 1, and ends at once, whatever is visible by then."""

    next = 0

    def poll(self) -> penstock.Progress | penstock.Finished:
        if self.next == RECORDS:
            self.ended = True
            return penstock.Finished()
        self.write(self.next)
        self.next += 1
        return penstock.Progress()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"next": self.next, "sink": super().snapshot_state(checkpoint_id).decode()}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.next = state["next"]
        super().restore_state(checkpoint_id, state["sink"])


@pytest.mark.parametrize("dies", [False, True])
def test_a_sink_without_inputs_that_dies_in_its_last_notice_makes_everything_visible_all_the_same(
    tmp_path: Path, dies: bool
) -> None:
    """Section 8: it is one that emits nothing, and so ends in two steps too."""
    once = Once()
    job = penstock.Job("ending", checkpoint=penstock.CheckpointSettings(interval=0.05), heartbeat_interval=0.2)
    job.operator("out", subtask=partial(WritesByItself, once, dies, tmp_path), parallelism=1, state_codec="json")
    with LocalJob(job) as running:
        assert once.reached.wait(PATIENCE_S)
        if dies:
            running.crash_subtask("out", 0)
            once.go_on.set()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    assert sorted(visible(tmp_path)) == list(range(RECORDS))
