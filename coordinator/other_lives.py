"""Words from another life of the job: it was purged and made anew, and somebody who was frozen meanwhile still speaks.

A record of a higher epoch says that a successor is at work (protocol, section 4). But a successor stands in the
checkpoint log before anybody can speak in its epoch. So an epoch that the log does not know is of another life.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ..schemas.acks import CoordinatorHeartbeat, FromAttempt
from ..schemas.errors import TransportError
from ..transport.ports import Partition, Transport
from .opening import read_log
from .protocol.history import History
from .protocol.inputs import AckRead

_log = logging.getLogger(__name__)

_LOOK_TIMEOUT_S = 5.0


class OtherLives:
    """Keeps out what is not of this life of the job; ``checkpoints`` is its log."""

    def __init__(self, job: str, transport: Transport, checkpoints: Partition) -> None:
        self._job, self._transport, self._checkpoints = job, transport, checkpoints
        self._foreign_through = 0
        """Up to here higher epochs than its own are not looked for again: commits tell of a successor too."""

    def without(self, read: AckRead, epoch: int) -> AckRead:
        """The record as a coordinator of ``epoch`` is to judge it: as unreadable where it is of another life."""
        record = read.record
        if isinstance(record, CoordinatorHeartbeat):
            said = record.epoch
        elif isinstance(record, FromAttempt):
            said = record.sender.epoch
        else:
            return read
        if said <= epoch or (said > self._foreign_through and self._has_begun(said, epoch, read.offset)):
            return read
        self._foreign_through = max(said, self._foreign_through)
        return replace(read, record=None)

    def _has_begun(self, said: int, epoch: int, offset: int) -> bool:
        """Whether there is a successor, or may be one: that cannot be told where the log cannot be read."""
        try:
            newest = History.of(read_log(self._job, self._transport, self._checkpoints, _LOOK_TIMEOUT_S)).epoch
        except TransportError:
            return True
        if newest <= epoch:
            _log.warning(
                "job=%s: record %d of the acks topic is of epoch %d, which the checkpoint log does not know: the job"
                " was purged, and somebody of before still runs. What it says is kept out",
                self._job, offset, said,
            )  # fmt: skip
        return newest > epoch
