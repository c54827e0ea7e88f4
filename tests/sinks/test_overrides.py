"""Subclasses of a file sink that forget ``super()``: the attempt fails by name, and nothing is lost in silence."""

from __future__ import annotations

import functools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock
from penstock.schemas.errors import ConfigurationError
from penstock.schemas.status import Ending
from penstock.sinks import FileSink
from penstock.testing import LocalJob

from .driving import context, opened, records, write

PATIENCE_S = 60.0


class ForgetsOpen(FileSink):
    def open(self, context: penstock.Context) -> None:
        self.context = context


class ForgetsRestore(FileSink):
    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.restored = state


class ForgetsSnapshot(FileSink):
    def snapshot_state(self, checkpoint_id: int) -> Any:
        return b"position 7"


class ForgetsNotice(FileSink):
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed = checkpoint_id


class ForgetsClose(FileSink):
    def close(self) -> None:
        self.closed = True


class Counted(penstock.Subtask):
    """A mixin that leaves the chain of ``super()``."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return None


class CountedSink(Counted, FileSink):
    def snapshot_state(self, checkpoint_id: int) -> Any:
        return super().snapshot_state(checkpoint_id)


class Swallows(FileSink):
    """Goes on although its sink could not take its part in the checkpoint."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        try:
            return super().snapshot_state(checkpoint_id)
        except penstock.PenstockError:
            return None


CALLS: dict[type[FileSink], Any] = {
    ForgetsRestore: lambda sink: sink.restore_state(7, None),
    ForgetsSnapshot: lambda sink: sink.snapshot_state(7),
    ForgetsNotice: lambda sink: sink.notify_checkpoint_complete(7),
    ForgetsClose: lambda sink: sink.close(),
    CountedSink: lambda sink: sink.snapshot_state(7),
}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (ForgetsRestore, "ForgetsRestore.restore_state did not call super().restore_state"),
        (ForgetsSnapshot, "ForgetsSnapshot.snapshot_state did not call super().snapshot_state"),
        (ForgetsNotice, "ForgetsNotice.notify_checkpoint_complete did not call super().notify_checkpoint_complete"),
        (ForgetsClose, "ForgetsClose.close did not call super().close"),
        (CountedSink, "one of CountedSink.snapshot_state, Counted.snapshot_state did not call super().snapshot_state"),
    ],
)
def test_an_override_without_super_raises_an_error_that_names_it_and_the_missing_call(
    tmp_path: Path, made: type[FileSink], message: str
) -> None:
    sink = opened(tmp_path, sink=made(tmp_path))
    write(sink, 1)
    for _ in range(2):  # the check holds for each call, not only for the first
        with pytest.raises(ConfigurationError, match=re.escape(message)) as raised:
            CALLS[made](sink)
        assert str(raised.value).startswith("subtask out/1 of job 'flights': ")
        assert "Call super()." in str(raised.value)


def test_an_open_without_super_names_the_subtask_although_the_sink_does_not_know_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^subtask out/1 of job 'flights': ForgetsOpen\.open did not call"):
        ForgetsOpen(tmp_path).open(context(1))


def test_an_init_without_super_is_named_when_the_sink_is_opened(tmp_path: Path) -> None:
    class ForgetsInit(FileSink):
        def __init__(self) -> None:
            self.folder = tmp_path

    with pytest.raises(ConfigurationError, match=r"ForgetsInit\.__init__ did not call super\(\)\.__init__"):
        ForgetsInit().open(context(1))


def test_a_snapshot_that_raised_below_an_override_is_not_one_that_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path, sink=Swallows(tmp_path))
    write(sink, 1)
    sink._broken = "a full disk"
    with pytest.raises(ConfigurationError, match=r"Swallows\.snapshot_state did not call"):
        sink.snapshot_state(7)


class Positioned(FileSink):
    """Calls ``super()`` from a method of its own."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.both(checkpoint_id)

    def both(self, checkpoint_id: int) -> Any:
        return super().snapshot_state(checkpoint_id)


class Notes(penstock.Subtask):
    """A mixin that calls ``super()``, in whatever class it stands."""

    noted = 0

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self.noted += 1
        return super().snapshot_state(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        self.noted += 1


class Deep(Notes, Positioned):
    def open(self, context: penstock.Context) -> None:
        super().open(context)
        self.context = context

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return super().snapshot_state(checkpoint_id=checkpoint_id)

    def close(self) -> None:
        super().close()


def test_super_may_be_called_through_any_number_of_classes_and_mixins(tmp_path: Path) -> None:
    """Also where the class travels by value, as one of a driver's main module does."""

    class Local(Deep):
        def snapshot_state(self, checkpoint_id: int) -> Any:
            return super().snapshot_state(checkpoint_id)

    for n, made in enumerate((Deep, Local, pickle.loads(cloudpickle.dumps(Local)))):
        folder = tmp_path / str(n)
        sink: Any = opened(folder, sink=made(folder))
        write(sink, 1)
        state = sink.snapshot_state(7)
        sink.notify_checkpoint_complete(7)
        sink.close()
        assert (records(folder), sink.noted) == ([1], 2)
        opened(folder, 2, sink=made(folder)).restore_state(7, state)


def test_a_job_whose_sink_forgets_its_snapshot_fails_and_completes_no_checkpoint(tmp_path: Path) -> None:
    class Numbers(penstock.Subtask):
        position = 0

        def open(self, context: penstock.Context) -> None:
            self.context = context

        def poll(self) -> penstock.Idle:
            self.context.emit(self.position)
            self.position += 1
            return penstock.Idle(0.01)

        def snapshot_state(self, checkpoint_id: int) -> Any:
            return self.position

        def restore_state(self, checkpoint_id: int, state: Any) -> None:
            self.position = state

    job = penstock.Job(
        "forgetful",
        checkpoint=penstock.CheckpointSettings(interval=0.05),
        restart=penstock.RestartStrategy(budget=0),
    )
    numbers = job.operator("numbers", subtask=Numbers, parallelism=1, state_codec="json", output_codec="json")
    sink = functools.partial(ForgetsSnapshot, tmp_path)
    job.operator("out", subtask=sink, parallelism=1, inputs=[numbers.rebalance()])
    with LocalJob(job) as running:
        outcome = running.wait(PATIENCE_S)
        status = running.service.status() if running.service is not None else None
    assert outcome.ending is Ending.FAILED
    assert re.search(r"out/0 .*ForgetsSnapshot\.snapshot_state did not call super", outcome.cause)
    assert status is not None and status.checkpoints_completed == 0
