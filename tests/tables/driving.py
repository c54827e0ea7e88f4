"""Drives a writer by hand, and commits what it wrote, as a coordinator does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.schemas.user_codec import JsonCodec
from penstock.subtask_client.api import Context, FencingToken
from penstock.tables import Table


class Driven:
    """A writer with a context that keeps its events."""

    def __init__(self, table: Table, encode: Any = None) -> None:
        self.table, self.events = table, list[Any]()
        self.writer = table.sink(encode, dataframe=True)["subtask"]()
        codec = JsonCodec()
        context = SimpleNamespace(
            job="rows", operator="out", subtask=1, fencing_token=FencingToken(2, 17),
            send_event_to_coordinator=lambda event: self.events.append(codec.decode(codec.encode(event))),
        )  # fmt: skip
        self.writer.open(cast(Context, context))

    @property
    def files(self) -> list[Any]:
        return [file for event in self.events for file in event["files"]]

    def write(self, *rows: Any) -> None:
        """Write rows, and close their files."""
        for row in rows:
            self.writer.process(row, "numbers")
        self.writer.snapshot_state(1)

    def commit(self, checkpoint_id: int = 1) -> int:
        """Close everything and commit it; return how many rows that were."""
        self.writer.snapshot_state(checkpoint_id)
        connection = self.table.connect()
        connection.prepare()
        rows = connection.commit("penstock/rows/out/x", checkpoint_id, {checkpoint_id: self.files})
        self.events.clear()
        return rows


def written(table: Table, *rows: Any, checkpoint_id: int = 1) -> int:
    """Write rows and commit them."""
    driven = Driven(table)
    for row in rows:
        driven.writer.process(row, "numbers")
    return driven.commit(checkpoint_id)
