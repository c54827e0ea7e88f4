"""What drives a sink by hand, in the order of a runtime's callbacks, and looks at its folder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from penstock.schemas.user_codec import BytesCodec
from penstock.sinks import FileSink
from penstock.sinks.staging import HIDDEN
from penstock.subtask_client.api import Context, FencingToken


def context(attempt: int, epoch: int = 1, *, job: str = "flights", operator: str = "out", subtask: int = 1) -> Context:
    """As much of a context as a sink asks for."""
    who = {"job": job, "operator": operator, "subtask": subtask, "parallelism": 16, "attempt": attempt}
    return cast(Context, SimpleNamespace(**who, fencing_token=FencingToken(epoch, attempt)))


def opened(folder: Path, attempt: int = 1, epoch: int = 1, *, sink: FileSink | None = None, **who: Any) -> FileSink:
    sink = FileSink(folder) if sink is None else sink
    sink.open(context(attempt, epoch, **who))
    return sink


def restored(folder: Path, checkpoint_id: int, state: bytes | None, attempt: int, **who: Any) -> FileSink:
    sink = opened(folder, attempt, **who)
    sink.restore_state(checkpoint_id, state)
    return sink


def write(sink: FileSink, *records: Any) -> None:
    for record in records:
        sink.process(record, "reader")


def snapshot(sink: FileSink, checkpoint_id: int) -> bytes:
    """The state as a checkpoint holds it: through the codec that an operator has unless it names one."""
    return BytesCodec().encode(sink.snapshot_state(checkpoint_id))


def visible(folder: Path) -> dict[str, list[Any]]:
    """What a reader sees that passes over hidden names: the records of each file."""
    return {
        path.name: [json.loads(line) for line in path.read_bytes().splitlines()]
        for path in sorted(folder.iterdir())
        if not path.name.startswith((".", "_"))
    }


def records(folder: Path) -> list[Any]:
    return sorted(record for file in visible(folder).values() for record in file)


def hidden(folder: Path) -> list[str]:
    """Names that are not visible, wherever they lie."""
    names = [path.name for path in (folder / HIDDEN).iterdir()]
    return sorted(names + [p.name for p in folder.iterdir() if p.name.startswith((".", "_")) and p.name != HIDDEN])
