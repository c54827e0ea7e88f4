"""The coordinator of a sink alone: which calls it makes, whatever the order in which they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from penstock.tables.table_committer import TableCommitter


class Fake:
    """A table and its connection, which note what they are asked for; calls wait until they are run."""

    name, commit_timeout = "fake", 1.0

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.commits: list[tuple[int, list[int], bool]] = []
        self.calls: list[tuple[Callable[[], Any], Callable[[Any, Any], None]]] = []
        self.committer = TableCommitter(self)  # type: ignore[arg-type]
        context = SimpleNamespace(
            job="rows",
            operator="out",
            incarnation="abc",
            metrics=SimpleNamespace(increment=lambda *args: None),
            call_async=lambda call, then: self.calls.append((call, then)),
        )
        self.committer.context = context  # type: ignore[assignment]

    def connect(self, *, check: bool = True) -> Fake:
        return self

    def prepare(self) -> None:
        pass

    def commit(self, writer: str, through: int, files: dict[int, Any], *, look_for_files: bool) -> int:
        self.commits.append((through, sorted(files), look_for_files))
        return 0

    def run(self) -> None:
        while self.calls:
            call, then = self.calls.pop(0)
            then(call(), None)


def entry(name: str) -> dict[str, Any]:
    return {"subtask": 0, "table": "fake", "files": [{"path": name}]}


def test_restored_files_are_looked_for_also_where_a_newer_checkpoint_completes_before_the_table_is_ready() -> None:
    fake = Fake()
    state = {"version": 1, "writers": [[0, "penstock/rows/out/abc"]], "waiting": [[7, [entry("old")]]]}
    fake.committer.reset_to_checkpoint(7, state)
    fake.committer.notify_checkpoint_complete(7)
    fake.committer.handle_event_from_operator(
        0,
        3,
        {"table": "fake", "files": [{"path": "new"}]},
        SimpleNamespace(belongs_to=8),  # type: ignore[arg-type]
    )
    fake.committer.notify_checkpoint_complete(8)
    fake.run()
    assert fake.commits == [(8, [7, 8], True)]


def test_files_of_attempts_that_live_are_not_looked_for() -> None:
    fake = Fake()
    fake.committer.start()
    fake.run()
    for n in (1, 2):
        fake.committer.handle_event_from_operator(
            0,
            3,
            {"table": "fake", "files": [{"path": str(n)}]},
            SimpleNamespace(belongs_to=n),  # type: ignore[arg-type]
        )
        fake.committer.notify_checkpoint_complete(n)
        fake.run()
    assert fake.commits == [(1, [1], False), (2, [2], False)]
