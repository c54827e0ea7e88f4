"""What can go wrong with the embedded broker.

    BrokerError
    ├── JavaNotFound             no usable java command
    │   └── JavaTooOld           one was found, but Kafka cannot run on it
    ├── JarsUnavailable          Kafka's jars could not be fetched, or PySpark's lack what is needed
    │   └── JarChecksumMismatch  a fetched jar is not the pinned one
    ├── InvalidDataPath          Kafka cannot keep data under this path
    ├── InvalidProperty          an extra property that only the broker package may set
    ├── DataDirInUse             another broker works on the same data
    ├── PortInUse                another process listens on the wanted port
    ├── BrokerStartFailed        the broker's process ended before Kafka answered
    │   └── BrokerStartTimeout   it lives, but Kafka did not answer in time
    ├── BrokerStopTimeout        the process survived SIGKILL for the whole deadline
    ├── BrokerStateError         the call makes no sense now: start when running, pause when stopped
    ├── AnotherBrokerRuns        a detached broker runs already, with another port or other data than asked for
    └── LockTimeout              another process held a lock for the whole deadline

Each message says what happened, where, and what to do about it.
"""


class BrokerError(Exception):
    """The root: catch this for anything that the embedded broker raises on purpose."""


class JavaNotFound(BrokerError):
    """There is no java command, or the one that was named does not work."""


class JavaTooOld(JavaNotFound):
    """The java command that was found is older than Kafka needs."""


class JarsUnavailable(BrokerError):
    """The jars that the broker runs from are not there and could not be fetched."""


class JarChecksumMismatch(JarsUnavailable):
    """A fetched jar does not have the pinned SHA-256; it was thrown away."""


class InvalidDataPath(BrokerError):
    """Kafka cannot keep its data under the given path."""


class InvalidProperty(BrokerError):
    """An extra broker property that would contradict what the broker package sets itself."""


class DataDirInUse(BrokerError):
    """Another broker's process holds the data folder."""


class PortInUse(BrokerError):
    """The port that was asked for is taken."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"port {port} on 127.0.0.1 is taken by another process: stop that one, choose another port, "
            "or leave the port out to get a free one"
        )
        self.port = port

    def __reduce__(self) -> tuple[type["PortInUse"], tuple[int]]:
        return PortInUse, (self.port,)


class BrokerStartFailed(BrokerError):
    """The broker's process ended before Kafka answered; the message holds the end of its log."""


class BrokerStartTimeout(BrokerStartFailed):
    """Kafka did not answer within the deadline; the message holds the end of its log."""


class BrokerStopTimeout(BrokerError):
    """The broker's process was still there at the end of the deadline, SIGKILL included."""


class BrokerStateError(BrokerError):
    """The call does not fit the broker's state, such as pausing one that does not run."""


class AnotherBrokerRuns(BrokerError):
    """A detached broker runs already, and it is not the one that was asked for."""


class LockTimeout(BrokerError):
    """Another process held a lock file for the whole deadline."""
