"""Pictures are drawn of what a document has, and of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import Figure, Goal
from benchmarks.plots import PICTURES, draw

FIGURES = {
    "events": [
        Figure("events, 1 subtask, at most 4,096 unhandled", "all", 4e5, "events/s", 3e5, "raw, one record per event"),
        Figure("events, 1 subtask, unbounded", "all", 6e5, "events/s", 3e5, "raw, one record per event"),
        Figure("events, 1 subtask, unbounded, a checkpoint every 100 ms", "all", 5e5, "events/s", 6e5, "ours without"),
        Figure("events, 4 subtasks, unbounded", "all", 6e5, "events/s", 3e5, "raw, one record per event"),
    ],
    "latency": [Figure("send to handled, p50", "one", 0.7, "ms", 0.5, "raw, produce to consumed")],
    "checkpoints": [
        Figure("checkpoint, 1 subtask", "all", 8.0, "ms", 4.0, "raw", Goal("<= 10 ms", at_most=10)),
        Figure("checkpoint, 1,000 subtasks", "all", 250.0, "ms", goal=Goal("<= 300 ms", at_most=300)),
        Figure("checkpoint time, growth", "steepest", 0.8, "", goal=Goal("no worse than linear", at_most=1)),
    ],
    "channels": [Figure("data channel, 4 to 4 by key", "all", 6e5, "records/s", 8e5, "raw, frames of 600, packed")],
    "streaming": [
        Figure("micro-batch of one event, 1 partition", "whole", 257.0, "ms", 161.0, "Kafka"),
        Figure("micro-batch of one event, 1 partition: addBatch", "median", 100.0, "ms", 40.0, "Kafka"),
        Figure("micro-batch of one event, 1 partition: walCommit", "median", 50.0, "ms", 50.0, "Kafka"),
    ],
    "idle": [Figure("idle, 16 subtasks", "all", 3.0, "% of a core")],
}


def document(*parts: str) -> dict[str, Any]:
    return {"figures": [{"part": part, **figure.as_json()} for part in parts for figure in FIGURES[part]]}


PEERS = {
    "figures": [
        {"part": "events", "figure": "events, 1 subtask, at most 4,096 unhandled", "peer": "Flink", "value": 7e3},
        {"part": "checkpoints", "figure": "checkpoint, 1 subtask", "peer": "Flink", "value": 3.0},
        {"part": "checkpoints", "figure": "checkpoint, 1 subtask", "peer": "Flink, in files", "value": 12.0},
    ]
}


@pytest.mark.parametrize("peers", [None, PEERS], ids=["alone", "beside peers"])
def test_a_document_of_all_parts_has_all_pictures(peers: dict[str, Any] | None, tmp_path: Path) -> None:
    drawn = draw(document(*FIGURES), tmp_path, peers)
    assert [path.name for path in drawn] == [f"benchmark-{name}.png" for name in PICTURES]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_peers_stand_in_the_picture_that_compares(tmp_path: Path) -> None:
    alone, beside = (draw(document(*FIGURES), tmp_path / name, p) for name, p in (("alone", None), ("beside", PEERS)))
    differ = [a.name for a, b in zip(alone, beside, strict=True) if a.read_bytes() != b.read_bytes()]
    assert differ == ["benchmark-overview.png"]


@pytest.mark.parametrize("part", FIGURES)
def test_a_part_has_the_pictures_that_show_it(part: str, tmp_path: Path) -> None:
    drawn = draw(document(part), tmp_path / "new")
    assert len(drawn) == ((part,) in {shown.parts for shown in PICTURES.values()})
