"""Several brokers that are one cluster, each in a process of its own: for tests of what happens when one is lost."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from .embedded import EmbeddedBroker
from .errors import BrokerStartFailed, PortInUse
from .jars import Progress, kafka_jars
from .node import new_id
from .ports import free_port
from .settings import Member

_TRIES = 3
_SHARED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # Kafka's own: how long a broker may be silent before its partitions get another leader.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}


class EmbeddedCluster(Sequence[EmbeddedBroker]):
    """Real Apache Kafka nodes (KRaft) on loopback, each broker and controller at once, each with 256 MB of heap.

        with EmbeddedCluster(folder) as cluster:
            client = connect(cluster.bootstrap)
            cluster[0].kill()

    A majority of them must run for the cluster to work. Node i is broker i + 1. Like EmbeddedBroker it dies with its
    parent, keeps its data, and can be started again.
    """

    def __init__(
        self,
        data_dir: Path | str,
        nodes: int = 3,
        extra_properties: Mapping[str, str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Nothing is started or written yet.

        `extra_properties`: for the server.properties of every node, over the defaults here: topics have three copies,
        two of which must have a record, and a broker that is silent for 9 s is taken for lost, as Kafka's own are.
        """
        if nodes < 3:
            raise ValueError(f"a cluster of {nodes} nodes does not survive the loss of one: use 3 or more")
        self._data_dir, self._count, self._progress = Path(data_dir).absolute(), nodes, progress
        self._properties = {**_SHARED, **(extra_properties or {})}
        self._cluster_id = new_id()
        self._placed = False
        self._brokers = self._made()

    def _made(self) -> list[EmbeddedBroker]:
        ports: set[int] = set()
        while len(ports) < 2 * self._count:
            ports.add(free_port())
        clients, controllers = sorted(ports)[: self._count], sorted(ports)[self._count :]
        at = dict(enumerate(controllers, 1))
        return [
            EmbeddedBroker(
                self._data_dir / f"broker-{node}",
                port,
                self._properties,
                progress=self._progress,
                member=Member(self._cluster_id, node, at),
            )
            for node, port in enumerate(clients, 1)
        ]

    def __len__(self) -> int:
        return len(self._brokers)

    def __getitem__(self, index: int) -> EmbeddedBroker:  # type: ignore[override]  # no slices
        return self._brokers[index]

    def __iter__(self) -> Iterator[EmbeddedBroker]:
        return iter(self._brokers)

    @property
    def bootstrap(self) -> str:
        """For `bootstrap.servers`: every node."""
        return ",".join(broker.bootstrap for broker in self._brokers)

    def start(self, timeout_s: float = 90.0) -> Self:
        """Start every node that does not run; return when each answers, which takes about 5 s.

        Raises what EmbeddedBroker.start raises; no node runs then.
        """
        kafka_jars(self._progress)  # once
        for attempt in range(1, _TRIES + 1):
            failure = self._start_all(timeout_s)
            if failure is None:
                self._placed = True
                return self
            self.stop()
            taken = isinstance(failure, PortInUse | BrokerStartFailed)  # between our choice and a broker's bind
            if not taken or self._placed or attempt == _TRIES:
                raise failure
            self._brokers = self._made()
        raise AssertionError("unreachable: the last try returns or raises")

    def _start_all(self, timeout_s: float) -> BaseException | None:
        with ThreadPoolExecutor(len(self._brokers)) as threads:
            starts = [threads.submit(broker.start, timeout_s) for broker in self._brokers if not broker.running]
            failures = [started.exception() for started in starts]
        return next((failure for failure in failures if failure is not None), None)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End every node in order, or with SIGKILL after `timeout_s` seconds.

        At once, and so the last one may not find a majority any more: it is killed.
        """
        with ThreadPoolExecutor(len(self._brokers)) as threads:
            for ended in [threads.submit(broker.stop, timeout_s) for broker in self._brokers]:
                ended.result()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
