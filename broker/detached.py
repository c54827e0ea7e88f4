"""A broker that outlives the terminal it was started from: what `penstock broker start|stop|status` do.

There is one per user. Its data and its registration are in the user's data folder. A lock file there puts starts and
stops in a row; the registration is believed only while the very process that it names is alive.
"""

import logging
import subprocess
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import processes
from .errors import AnotherBrokerRuns, BrokerStartFailed, BrokerStartTimeout, InvalidDataPath, LockTimeout, PortInUse
from .folders import data_folder
from .jars import Progress, kafka_jars
from .java import find_java
from .launch import Launched, Spawn, launch
from .locks import file_lock
from .node import Node, java_environment
from .ports import HOST
from .probe import Answer, ask
from .registration import Registration, read_registration

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 120.0

# The shell ends at once, so that the broker is no child of ours: nobody here would see it end and reap it.
_DETACH = '"$@" </dev/null >&2 & echo $!'


@dataclass(frozen=True, slots=True)
class DetachedBroker:
    """A detached broker: its address for `bootstrap.servers`, its process id, and the folder of its data."""

    bootstrap: str
    pid: int
    data_dir: Path


def start_detached(
    data_dir: Path | str | None = None,
    port: int | None = None,
    progress: Progress | None = None,
    timeout_s: float = 60.0,
) -> DetachedBroker:
    """Start the user's detached broker, or return the one that runs; Kafka answers when this returns.

    `data_dir` is `$XDG_DATA_HOME/penstock/broker/data` by default, `port` the one that these data were served at the
    last time, so that jobs that have lost the broker find it again, or a free one. `timeout_s` (seconds) does not
    include fetching Kafka's jars. Two calls at once, from two terminals, start one broker, and both return it.
    Raises what EmbeddedBroker.start() raises, AnotherBrokerRuns when the running one has other data or another port
    than asked for, or LockTimeout.
    """
    # Before the lock: it may take minutes, and a stop in another terminal need not wait for it.
    find_java()
    kafka_jars(progress)
    folder = _folder()
    with _lock(_LOCK_TIMEOUT_S):
        running = _live_registration()
        if running is not None:
            _require_the_same(running, data_dir, port)
            _wait_until_answering(running, timeout_s)
            return _public(running)
        node = Node(Path(data_dir).absolute() if data_dir is not None else folder / "data")
        try:
            launched = _launched(node, port, timeout_s, progress)
        except BaseException:
            _registration_file().unlink(missing_ok=True)
            raise
        return _public(launched.process)


def stop_detached(timeout_s: float = 30.0) -> DetachedBroker | None:
    """Stop the detached broker: SIGTERM, and SIGKILL after `timeout_s` seconds.

    Returns the one that was stopped, or None when none was running. Its data stays.
    Raises BrokerStopTimeout, or LockTimeout while another process is starting one.
    """
    with _lock(_LOCK_TIMEOUT_S):
        running = _live_registration()
        if running is not None and not processes.end(running, timeout_s):
            logger.warning("the broker at %s did not stop within %.0f s: killed", running.bootstrap, timeout_s)
        _registration_file().unlink(missing_ok=True)
        return _public(running) if running is not None else None


def detached_status() -> DetachedBroker | None:
    """The detached broker, which may still be starting, or None; a registration whose process is gone is removed."""
    running = _live_registration()
    if running is not None:
        return _public(running)
    if _registration_file().exists():
        # Only under the lock, lest a registration goes that a start is just writing; if one is, it cleans up itself.
        with suppress(LockTimeout), _lock(0):
            if (running := _live_registration()) is not None:
                return _public(running)
            _registration_file().unlink(missing_ok=True)
    return None


def _launched(node: Node, port: int | None, timeout_s: float, progress: Progress | None) -> Launched[Registration]:
    def spawn(wanted: Spawn) -> Registration:
        return _spawn(wanted, node)

    if port is None and (last := node.last_port) is not None:
        with suppress(PortInUse):
            return launch(node, last, spawn, timeout_s, progress)
    return launch(node, port, spawn, timeout_s, progress)


def _folder() -> Path:
    return data_folder() / "broker"


def _lock(timeout_s: float) -> AbstractContextManager[int]:
    try:
        _folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidDataPath(
            f"the detached broker's folder cannot be made at {_folder()}: {error}; name another in XDG_DATA_HOME"
        ) from error
    return file_lock(_folder() / "broker.lock", timeout_s)


def _registration_file() -> Path:
    return _folder() / "broker.json"


def _live_registration() -> Registration | None:
    found = read_registration(_registration_file())
    return found if found is not None and found.alive() else None


def _public(registration: Registration) -> DetachedBroker:
    return DetachedBroker(registration.bootstrap, registration.pid, registration.data_dir)


def _require_the_same(running: Registration, data_dir: Path | str | None, port: int | None) -> None:
    other_data = data_dir is not None and Path(data_dir).resolve() != running.data_dir.resolve()
    other_port = port is not None and running.bootstrap != f"{HOST}:{port}"
    if other_data or other_port:
        raise AnotherBrokerRuns(
            f"a detached broker runs already, at {running.bootstrap} with data in {running.data_dir}: use that one, or "
            "stop it first (penstock broker stop)"
        )


def _wait_until_answering(running: Registration, timeout_s: float) -> None:
    """For the broker of a start that was interrupted between registering and answering; at once for any other."""
    deadline = time.monotonic() + timeout_s
    port = int(running.bootstrap.rpartition(":")[2])
    cluster_id = Node(running.data_dir).cluster_id
    while ask(port, cluster_id) is not Answer.READY:
        if not running.alive():
            raise BrokerStartFailed(
                f"the detached broker at {running.bootstrap} ended while it was waited for; start it again, and see "
                f"{Node(running.data_dir).log_file}"
            )
        if time.monotonic() >= deadline:
            raise BrokerStartTimeout(
                f"the detached broker at {running.bootstrap} (process {running.pid}) runs but does not answer: stop it "
                f"(penstock broker stop) and start it again, and see {Node(running.data_dir).log_file}"
            )
        time.sleep(processes.POLL_S)


def _spawn(wanted: Spawn, node: Node) -> Registration:
    """Start it, and register it at once: if this process is killed while it waits, the broker is found all the same."""
    with wanted.output.open("wb") as output:
        shell = subprocess.run(
            ["/bin/sh", "-c", _DETACH, "penstock-broker-detach", *wanted.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=java_environment(),
            cwd=node.data_dir,  # not the caller's folder, which may be unmounted or removed later
            pass_fds=[wanted.lock_descriptor],
            start_new_session=True,
            check=True,
            timeout=30,
        )
    pid = int(shell.stdout)
    registration = Registration(
        bootstrap=f"{HOST}:{wanted.port}",
        pid=pid,
        data_dir=node.data_dir,
        process_identity=processes.identity(pid) or "gone",
    )
    registration.write(_registration_file())
    return registration
