"""A broker that belongs to this process: for tests, demonstrations and notebooks."""

import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from . import processes
from .errors import BrokerStateError
from .jars import Progress
from .launch import Spawn, launch
from .node import Node, java_environment
from .parent_death import GuardedProcess
from .ports import HOST
from .settings import Member

logger = logging.getLogger(__name__)


class EmbeddedBroker:
    """A real one-node Apache Kafka (KRaft) in a child process, on loopback.

        with EmbeddedBroker(folder) as broker:
            client = connect(broker.bootstrap)

    It dies with its parent, SIGKILL of the parent included. Its data stays in `data_dir`: the same object can be
    started again, after kill() too, and answers on the same port; another object can be started on the same folder
    once this one is stopped. Not to be used from two threads at once.
    """

    def __init__(
        self,
        data_dir: Path | str,
        port: int | None = None,
        extra_properties: Mapping[str, str] | None = None,
        *,
        format_arguments: Sequence[str] = (),
        progress: Progress | None = None,
        member: Member | None = None,
    ) -> None:
        """Nothing is started or written yet.

        `port`: where clients connect; None takes a free one at the first start and keeps it.
        `extra_properties`: for Kafka's server.properties; the clients' listener is named BROKER there.
        `format_arguments`: for `kafka-storage format` when the data folder is new, such as `--add-scram`.
        `progress`: told what is fetched at the first start of all (about 44 MB).
        `member`: what an EmbeddedCluster tells each of its nodes.
        """
        self._node = Node(Path(data_dir).absolute(), dict(extra_properties or {}), tuple(format_arguments), member)
        self._port = port
        self._progress = progress
        self._process: GuardedProcess | None = None

    @property
    def data_dir(self) -> Path:
        """The folder of its data, settings and logs."""
        return self._node.data_dir

    @property
    def log_file(self) -> Path:
        """The broker's own log; what the JVM itself says is beside it, in broker.err."""
        return self._node.log_file

    @property
    def port(self) -> int:
        """The clients' port on 127.0.0.1. Raises BrokerStateError before it is known, at the first start."""
        if self._port is None:
            raise BrokerStateError("the broker has no port before its first start: call start(), or give it a port")
        return self._port

    @property
    def bootstrap(self) -> str:
        """For `bootstrap.servers`. Raises BrokerStateError like `port`."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether its process lives; a paused one does."""
        return self._process is not None and self._process.alive()

    @property
    def pid(self) -> int:
        """The process id of the JVM. Raises BrokerStateError when it does not run."""
        return self._running_process("has no process id").pid

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start it and return when Kafka answers, which takes 2 to 3 s.

        `timeout_s` (seconds) does not include fetching Kafka's jars, which has its own deadline of 300 s.
        Raises JavaNotFound, JarsUnavailable, InvalidDataPath, InvalidProperty, DataDirInUse, PortInUse,
        BrokerStartFailed with the end of the broker's log, or BrokerStateError when it runs already.
        """
        if self.running:
            raise BrokerStateError(f"the broker at {self.bootstrap} runs already: stop it before starting it again")
        launched = launch(self._node, self._port, _spawn, timeout_s, self._progress)
        self._process, self._port = launched.process, launched.port
        logger.info("embedded broker at %s, process %d, data in %s", self.bootstrap, self.pid, self.data_dir)
        return self

    def stop(self, timeout_s: float = 30.0) -> None:
        """End it in order, or with SIGKILL after `timeout_s` seconds; nothing happens when it does not run.

        Raises BrokerStopTimeout when not even SIGKILL ended it.
        """
        process = self._process
        if process is None or not process.is_ours:
            return
        if not processes.end(process, timeout_s):
            logger.warning("the embedded broker at %s did not stop within %.0f s: killed", self.bootstrap, timeout_s)
        self._forget(process)

    def kill(self) -> None:
        """SIGKILL, as a crash would; returns when the process is gone.

        Raises BrokerStateError when it does not run, BrokerStopTimeout when SIGKILL did not end it.
        """
        process = self._running_process("cannot be killed")
        processes.kill(process)
        self._forget(process)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, from the moment that this returns.

        Raises BrokerStateError when it does not run or did not pause within 10 s.
        """
        processes.pause(self._running_process("cannot be paused"))

    def resume(self) -> None:
        """SIGCONT: undo pause(). Raises BrokerStateError when it does not run."""
        processes.send_signal(self._running_process("cannot be resumed"), signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _running_process(self, cannot: str) -> GuardedProcess:
        if self._process is None or not self._process.alive():
            raise BrokerStateError(f"the broker with data in {self.data_dir} does not run and {cannot}: start it first")
        return self._process

    def _forget(self, process: GuardedProcess) -> None:
        process.release()
        self._process = None


def _spawn(wanted: Spawn) -> GuardedProcess:
    with wanted.output.open("wb") as output:
        return GuardedProcess(wanted.command, stderr=output, env=java_environment(), pass_fds=[wanted.lock_descriptor])
