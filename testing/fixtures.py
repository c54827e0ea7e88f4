"""What the pytest plugin's fixtures hand out; loaded when the first of them is used."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from ..coordinator.options import CoordinatorOptions
from ..job import Job
from ..transport.ports import Transport
from .faults import Faults
from .local import LocalJob
from .transport import FaultyTransport

if TYPE_CHECKING:
    from ..broker import EmbeddedBroker


class LocalJobs:
    """The fixture ``local_job``: call it with a job, and it runs until the test ends.

    ``transport`` is where its logs are, memory by default; jobs of one test that are to share logs share a transport.
    With ``broker`` (the fixture ``embedded_broker``, or ``"host:port"``) they are on that Kafka, under a prefix of the
    test's own. What else :class:`LocalJob` takes goes through.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.started: list[LocalJob] = []
        self._prefix = f"test-{uuid.uuid4().hex[:12]}"
        self._transports: dict[str, Transport] = {}

    def __call__(
        self,
        job: Job,
        transport: Transport | None = None,
        *,
        broker: EmbeddedBroker | str | None = None,
        options: CoordinatorOptions | None = None,
        **settings: Any,
    ) -> LocalJob:
        if broker is not None:
            transport = self._kafka(broker if isinstance(broker, str) else broker.bootstrap)
            job = job.renamed(job.name, prefix=self._prefix)
        if not isinstance(transport, FaultyTransport):
            settings.setdefault("faults", self.faults)
        running = LocalJob(job, transport, options, **settings)
        self.started.append(running)
        return running.start()

    def _kafka(self, bootstrap: str) -> Transport:
        from ..transport.kafka import KafkaTransport

        if bootstrap not in self._transports:
            self._transports[bootstrap] = KafkaTransport(bootstrap)
        return self._transports[bootstrap]

    def close(self) -> None:
        """Ends every job that was started, the last one first; raises what the first to fail raised."""
        errors: list[Exception] = []
        for running in reversed(self.started):
            try:
                running.close()
            except Exception as error:
                errors.append(error)
        for transport in self._transports.values():
            transport.close()
        if errors:
            raise errors[0]
