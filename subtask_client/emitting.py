"""What user code gives away, to its coordinator and to other operators: encoded, routed, framed, written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..schemas.data import RecordFrame
from ..schemas.errors import AppendFailed
from ..schemas.user_codec import BytesCodec, Codec
from ..transport.ports import Partition
from .outgoing import Outgoing
from .protocol import effects as do
from .protocol.core import SubtaskCore
from .routing import Router


class Emitter:
    """Frames are the core's: it numbers them and closes them before whatever speaks of them.

    ``topics`` are the data topics, by receiving operator.
    """

    def __init__(
        self,
        core: SubtaskCore,
        outgoing: Outgoing,
        router: Router,
        codec: Codec,
        topics: Mapping[str, str],
    ) -> None:
        self._core, self._outgoing, self._router = core, outgoing, router
        self._encode_record, self._topics = codec.encode, dict(topics)
        self._as_they_are = type(codec) is BytesCodec

    def send(self, event: bytes) -> None:
        """``context.send_event_to_coordinator``, behind the codec."""
        for effect in self._core.send(event):
            assert isinstance(effect, do.Write)
            self._outgoing.wait_for_room()
            self._outgoing.write(effect.record)
        self._check()

    def emit(self, record: Any, output: str | None) -> None:
        """``context.emit``."""
        receivers = self._router.route(record, output)
        data = self._encode_record(record)
        for receiver in receivers:
            if (frame := self._core.emit_record(receiver, data)) is not None:
                self.write(frame)
                self._check()

    def emit_many(self, records: Sequence[Any], output: str | None) -> None:
        """``context.emit_many``: nothing is taken before all have been encoded and routed."""
        encode = self._encode_record
        data = records if self._as_they_are and set(map(type, records)) == {bytes} else list(map(encode, records))
        for frame in self._core.emit_records(self._router.deal(records, data, output)):
            self.write(frame)
            self._check()

    def write(self, effect: do.WriteData) -> None:
        receiver, record = effect.receiver, effect.record
        if isinstance(record, RecordFrame):
            self._outgoing.wait_for_room()
        self._outgoing.write_data(Partition(self._topics[receiver.operator], receiver.index), record)

    def _check(self) -> None:
        if (failure := self._outgoing.failure) is not None:
            raise AppendFailed(f"a record of this attempt may not have been written: {failure}")
