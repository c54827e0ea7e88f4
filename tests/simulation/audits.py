"""What an audit says of a simulated history: as it stands, and as it would stand had nothing been truncated."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.audit import Report, audit
from penstock.schemas.settings import JobSettings
from penstock.schemas.topics import TopicSpec
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import LogRecord, Partition

from .violations import Violation


class KeepingBroker(MemoryBroker):
    """Truncates, and keeps for an audit what that takes away."""

    _gone: dict[Partition, list[LogRecord]]

    def truncate(self, positions: Mapping[Partition, int]) -> None:
        if not hasattr(self, "_gone"):
            self._gone = {}
        before = {partition: list(self._log(partition).records) for partition in positions}
        super().truncate(positions)
        for partition, records in before.items():
            begin = self._log(partition).begin
            self._gone.setdefault(partition, []).extend(record for record in records if record.offset < begin)

    def purge(self, prefix: str) -> None:
        """Delete every topic below ``prefix``, with what was kept of it."""
        self.delete_topics(self.list_topics(prefix))
        self._gone = {}

    def whole(self) -> MemoryBroker:
        """The same logs from their beginnings."""
        broker = MemoryBroker()
        for name, topic in self._topics.items():
            broker._topics[name] = type(topic)(TopicSpec(name, len(topic.logs)), topic.topic_id)
            for log, ours in zip(topic.logs, broker._topics[name].logs, strict=True):
                ours.records = [*getattr(self, "_gone", {}).get(log.partition, []), *log.records]
        return broker


def check_logs_of(broker: KeepingBroker, settings: JobSettings) -> None:
    """Raises Violation where an audit calls these logs damaged: no fault of a simulation loses a record that stood."""
    for transport, what in ((MemoryTransport(broker), "as they stand"), (MemoryTransport(broker.whole()), "whole")):
        report: Report = audit(transport, settings.name, settings.prefix)
        if not report.healthy:
            raise Violation(f"audit: of the logs {what}, {report}")
