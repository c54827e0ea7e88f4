"""A real Apache Kafka in child processes: one node, or a cluster of several."""

if __name__ != "penstock.broker":
    raise ImportError(f"import this package as penstock.broker, not as {__name__}")

from .cluster import EmbeddedCluster
from .detached import DetachedBroker, detached_status, start_detached, stop_detached
from .embedded import EmbeddedBroker
from .errors import (
    AnotherBrokerRuns,
    BrokerError,
    BrokerStartFailed,
    BrokerStartTimeout,
    BrokerStateError,
    BrokerStopTimeout,
    DataDirInUse,
    InvalidDataPath,
    InvalidProperty,
    JarChecksumMismatch,
    JarsUnavailable,
    JavaNotFound,
    JavaTooOld,
    LockTimeout,
    PortInUse,
)
from .jars import Progress, jar_cache, kafka_jars
from .java import find_java

__all__ = [
    "AnotherBrokerRuns",
    "BrokerError",
    "BrokerStartFailed",
    "BrokerStartTimeout",
    "BrokerStateError",
    "BrokerStopTimeout",
    "DataDirInUse",
    "DetachedBroker",
    "EmbeddedBroker",
    "EmbeddedCluster",
    "InvalidDataPath",
    "InvalidProperty",
    "JarChecksumMismatch",
    "JarsUnavailable",
    "JavaNotFound",
    "JavaTooOld",
    "LockTimeout",
    "PortInUse",
    "Progress",
    "detached_status",
    "find_java",
    "jar_cache",
    "kafka_jars",
    "start_detached",
    "stop_detached",
]
