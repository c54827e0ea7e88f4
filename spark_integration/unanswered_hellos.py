"""Instances that said Hello when their coordinator had ended: nobody answers them, so their tasks never return.

An attempt that failed in its coordinator's last moments, say. No user code of theirs is open: ending them is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..schemas.acks import Hello
from ..schemas.codec import decode
from ..schemas.errors import UnreadableRecord
from ..schemas.ids import SubtaskId
from ..transport.ports import Partition, Transport

LOOK_BACK = 5_000
"""Records behind the end of the acks topic that are looked at: more than were written while the coordinator ended."""


class LateHellos:
    """Reads the acks topic of one run for Hellos behind those that its coordinator has answered.

    ``answered`` is each subtask's last attempt, that is the offset of its last Hello that counted.
    """

    def __init__(self, transport: Transport, acks: str, run: str, answered: Mapping[SubtaskId, int]) -> None:
        self._run = run
        self._answered = answered
        partition = Partition(acks, 0)
        stands = transport.offsets([partition], 5.0)[partition]
        self._reader = transport.reader({partition: max(stands.begin, stands.end - LOOK_BACK)})

    def poll(self) -> set[SubtaskId]:
        """Whose Hello has been found since the last call."""
        late = set()
        for record in self._reader.poll(0.0):
            try:
                hello = decode(record.value)
            except UnreadableRecord:
                continue
            if not isinstance(hello, Hello) or hello.run != self._run:
                continue
            if record.offset > self._answered.get(hello.subtask_id, record.offset):
                late.add(hello.subtask_id)
        return late

    def close(self) -> None:
        self._reader.close()
