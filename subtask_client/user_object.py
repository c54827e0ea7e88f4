"""The user's object of one attempt: made, opened, restored, called, closed; its values through the codecs."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..schemas.acks import SchemaDigest
from ..schemas.errors import ConfigurationError, PenstockError, StateError, UnreadableRecord
from ..schemas.events import Start
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from ..schemas.sanitize import recordable, told
from ..schemas.settings import JobSettings
from ..schemas.state import StateHandle
from ..schemas.user_codec import BytesCodec, Codec, CodecSpec, codec_for, learn, recorded_as
from ..schemas.user_schemas import JSON, Subject, digest_of
from ..transport.state_storage import load_state
from .activity import Steps
from .api import Context, FencingToken, Finished, Idle, PollResult, Progress, Subtask
from .metrics import Metrics
from .rows import RowFeed, RowSource, refuse_position
from .uploads import Storage

_FRAMES_MAX = 8


def _decoder(codec: Codec) -> Callable[[bytes], Any] | None:
    """None where there is nothing to decode."""
    return None if isinstance(codec, BytesCodec) else codec.decode


def digests_of(codec: CodecSpec, state_codec: CodecSpec, output_codec: CodecSpec) -> tuple[SchemaDigest, ...]:
    """The Avro schemas that these write under, by name; what has none is left out."""
    codecs = {Subject.EVENTS: codec, Subject.STATE: state_codec, Subject.OUTPUT: output_codec}
    texts = {subject: recorded_as(codec_for(spec)) for subject, spec in codecs.items()}
    return tuple(SchemaDigest(s, digest_of(text)) for s, text in texts.items() if text not in (None, JSON))


def cause_of(error: BaseException) -> str:
    """An error as one text for people: what, and the last few places it came through."""
    if isinstance(error, PenstockError):
        places = ""
    else:
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_MAX:]
        places = "".join(f"\n  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames)
    return recordable(told(error) + places)


class Host:
    """Holds at most one object of the user's at a time. Its methods raise whatever user code raises."""

    def __init__(
        self,
        settings: JobSettings,
        subtask: SubtaskId,
        factory: Callable[[], Subtask],
        *,
        codec: Codec,
        state_codec: Codec,
        input_codecs: Mapping[str, Codec],
        storage: Storage,
        send: Callable[[bytes], None],
        emit: Callable[[Any, str | None], None],
        log: logging.LoggerAdapter[Any],
        rows: RowSource | None = None,
        emit_many: Callable[[Sequence[Any], str | None], None] | None = None,
    ) -> None:
        self._settings, self._subtask, self._factory = settings, subtask, factory
        self._codec, self._state_codec, self._storage = codec, state_codec, storage
        self._send_bytes, self._emit, self._emit_many, self._log = send, emit, emit_many, log
        self._input_codecs = input_codecs
        self._decode = _decoder(codec)
        self._decode_record = {upstream: _decoder(codec) for upstream, codec in input_codecs.items()}
        self._feed = None if rows is None else RowFeed(rows)
        self._object: Subtask | None = None
        self._context: Context | None = None
        self.metrics = Metrics()
        """Of the present attempt."""
        self.has_poll = False
        """Whether the object has work of its own."""
        self.may_begin = False
        """Whether the object takes polls, records and rows; it has said so in this attempt."""
        self.takes_batches = self._processes_batches = False
        """Whether its class handles lists of events, and lists of records."""

    @property
    def _user(self) -> Subtask:
        assert self._object is not None
        return self._object

    def open(self, start: Start) -> None:
        state = self._load(start)
        self._object = self._factory()
        if not isinstance(self._object, Subtask):
            what, self._object = type(self._object).__name__, None
            raise ConfigurationError(
                f"operator {self._subtask.operator!r}: its subtask factory made a {what}; it must make a"
                " penstock.Subtask"
            )
        if self._feed is not None:
            self._feed.begin(self._object, self._who)
        self.may_begin = False
        cls = type(self._object)
        self.takes_batches = cls.handle_operator_events is not Subtask.handle_operator_events
        self._processes_batches = cls.process_many is not Subtask.process_many
        self.has_poll = self._feed is not None or cls.poll is not Subtask.poll
        if self.has_poll and self._decode_record:
            raise ConfigurationError(
                f"operator {self._subtask.operator!r} has inputs, and its {cls.__name__} a poll: the"
                " work of such an operator comes as records, to process; give the poll to an operator of its own"
            )
        self.metrics = Metrics()
        encode = self._codec.encode
        send_bytes = self._send_bytes
        self._context = Context(
            job=self._settings.name,
            operator=self._subtask.operator,
            subtask=self._subtask.index,
            parallelism=self._settings.operator(self._subtask.operator).parallelism,
            fencing_token=FencingToken(start.epoch, start.attempt),
            metrics=self.metrics,
            send=lambda event: send_bytes(encode(event)),
            emit=self._emit,
            emit_many=self._emit_many,
        )
        self._object.open(self._context)
        if start.checkpoint_id != NO_CHECKPOINT:
            self._object.restore_state(start.checkpoint_id, state)
        self.may_begin = self._object.may_begin()

    def learn(self, operator: str, subject: str, schema: str) -> None:
        """Reads from now on what was written under that schema, where a codec of this subtask's is meant."""
        own: dict[str, Codec] = {Subject.EVENTS: self._codec, Subject.STATE: self._state_codec}
        codec = self._input_codecs.get(operator) if subject == Subject.OUTPUT else own.get(subject)
        if codec is not None:
            learn(codec, schema)

    def handle(self, events: list[bytes], steps: Steps) -> None:
        """The one hot loop: beside the user's handler it does nothing but count (in ``steps.done``)."""
        user, decode = self._user, self._decode
        if self.takes_batches:
            count = len(events)  # before user code has the list
            user.handle_operator_events(events if decode is None else list(map(decode, events)))
            steps.done = count
        else:
            handle = user.handle_operator_event
            for done, event in enumerate(events if decode is None else map(decode, events), 1):
                handle(event)
                steps.done = done
        if not self.may_begin:
            self.may_begin = user.may_begin()

    def process(self, upstream: str, records: list[bytes]) -> None:
        """As hot as :meth:`handle`."""
        user, decode = self._user, self._decode_record[upstream]
        if self._processes_batches:
            user.process_many(records if decode is None else list(map(decode, records)), upstream)
            return
        process = user.process
        for record in records if decode is None else map(decode, records):
            process(record, upstream)

    def end_inputs(self) -> None:
        self._user.end_inputs()

    def poll(self) -> PollResult:
        result = self._user.poll() if self._feed is None else self._feed.poll(self._user)
        if not isinstance(result, Progress | Idle | Finished):
            raise ConfigurationError(
                f"{self._who}: poll returned {result!r}; it must return Progress(), Idle(seconds) or Finished()"
            )
        return result

    def snapshot(self, checkpoint_id: int) -> bytes | None:
        state = self._encoded_state(checkpoint_id)
        return state if self._feed is None else self._feed.wrapped(checkpoint_id, state)

    def _encoded_state(self, checkpoint_id: int) -> bytes | None:
        state = self._user.snapshot_state(checkpoint_id)
        if state is None:
            return None
        try:
            return self._state_codec.encode(state)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self._who}: snapshot_state({checkpoint_id}) returned a {type(state).__name__} that its state codec"
                f" {self._state_codec!r} does not take: {error}. Return bytes, or give operator"
                f" {self._subtask.operator!r} a state codec that fits"
            ) from error

    def notify_completed(self, checkpoint_id: int) -> None:
        self._user.notify_checkpoint_complete(checkpoint_id)
        if self._feed is not None:
            self._feed.completed(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int, reason: str) -> None:
        self._user.notify_checkpoint_aborted(checkpoint_id, reason)

    def close(self) -> None:
        """Closes the object, if there is one; what that raises is logged."""
        user, self._object = self._object, None
        if self._context is not None:
            self._context.end()
            self._context = None
        self.has_poll = self.may_begin = False
        if user is None:
            return
        try:
            user.close()
        except Exception:
            self._log.exception("close() raised; the attempt is over anyway")

    def _load(self, start: Start) -> Any:
        n, handle = start.checkpoint_id, start.state
        data = None if n == NO_CHECKPOINT or handle is None else self._bytes_of(start, handle)
        if self._feed is not None:
            data = self._feed.unwrapped(self._who, n, data)
        elif data is not None:
            refuse_position(self._who, n, data)
        if data is None:
            return None
        try:
            return self._state_codec.decode(data)
        except UnreadableRecord as error:
            raise StateError(
                f"{self._who}: its state in checkpoint {start.checkpoint_id} cannot be read: {error}. Name the version"
                " that wrote it to the codec, or go back to an older checkpoint"
            ) from error

    def _bytes_of(self, start: Start, handle: StateHandle) -> bytes:
        try:
            return load_state(self._storage, handle)
        except StateError as error:
            raise StateError(
                f"{self._who}: its state in checkpoint {start.checkpoint_id} cannot be read back: {error}; an older"
                " retained checkpoint can be named on the command line"
            ) from error

    @property
    def _who(self) -> str:
        return f"subtask {self._subtask} of job {self._settings.name!r}"
