"""Drop records of a previous incarnation of the job, which was purged and recreated under the same name.

A record of a higher epoch says that a successor is at work (protocol, section 4). But a successor stands in the
checkpoint log before anybody can write in its epoch. So an epoch that the log does not know is of another incarnation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

from ..checkpoint_log.history import History
from ..client.log_reader import read_log
from ..schemas.acks import CoordinatorHeartbeat, FromAttempt
from ..schemas.errors import JobRefused, TransportError
from ..transport.ports import Partition, Transport
from .protocol.inputs import AckRead

_log = logging.getLogger(__name__)

_LOOK_TIMEOUT_S = 5.0
LOOK_INTERVAL_S = 1.0
"""The log is read again at most so often. A successor says more, and the next commit tells of it too."""


class EpochFilter:
    """Filter for records of epochs that the job's checkpoint log does not know; ``checkpoints`` is its partition."""

    def __init__(
        self, job: str, transport: Transport, checkpoints: Partition, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._transport, self._checkpoints, self._clock = job, transport, checkpoints, clock
        self._look_at = -inf
        """Monotonic seconds: not before then is the log looked at again, whatever epochs records are of."""
        self._unjudged = 0
        """Records kept out since it was last looked at."""
        self._foreign_through = 0
        """Up to here higher epochs than its own are not looked for again: commits tell of a successor too."""

    def without(self, read: AckRead, epoch: int) -> AckRead:
        """Return the record as a coordinator of ``epoch`` must judge it: unreadable if it is of another incarnation."""
        record = read.record
        if isinstance(record, CoordinatorHeartbeat):
            said = record.epoch
        elif isinstance(record, FromAttempt):
            said = record.sender.epoch
        else:
            return read
        if said <= epoch:
            return read
        if said > self._foreign_through and self._clock() < self._look_at:
            self._unjudged += 1
        elif said > self._foreign_through:
            if self._has_begun(said, epoch, read.offset):
                return read
            self._foreign_through = max(said, self._foreign_through)
            self._look_at, self._unjudged = self._clock() + LOOK_INTERVAL_S, 0
        return replace(read, record=None)

    def _has_begun(self, said: int, epoch: int, offset: int) -> bool:
        """Whether there is a successor, or may be one: that cannot be told where the log cannot be read."""
        try:
            newest = History.of(read_log(self._job, self._transport, self._checkpoints, _LOOK_TIMEOUT_S)).epoch
        except TransportError:
            return True
        except JobRefused as refused:  # damaged, or a newer release's: the next commit tells whose the log is
            _log.warning("job=%s: record %d of the acks topic is kept out: %s", self._job, offset, refused)
            return False
        if newest <= epoch:
            _log.warning(
                "job=%s: record %d of the acks topic is of epoch %d, which the checkpoint log does not know: the job"
                " was purged, and a process of it still runs. Its records are dropped, as were %d more records of"
                " such epochs before it",
                self._job, offset, said, self._unjudged,
            )  # fmt: skip
        return newest > epoch
