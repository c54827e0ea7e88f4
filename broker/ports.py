"""Free ports on loopback."""

import random
import socket
from pathlib import Path

from .errors import BrokerStartFailed, PortInUse

HOST = "127.0.0.1"
_LOWEST = 20_000
_TRIES = 200


def free_port() -> int:
    """A port that nothing listens on now.

    It is taken from below the range that the kernel gives to outgoing connections. From within it, an outgoing
    connection could take the port while the broker is down; one that tries to reach the dead broker can even connect
    to itself, and hold the port against the broker's return.
    """
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, _first_outgoing())
        if _is_free(port):
            return port
    raise BrokerStartFailed(f"none of {_TRIES} ports tried on {HOST} is free: end what listens on them")


def require_free(port: int) -> None:
    """Raise PortInUse unless the port can be listened on."""
    if not _is_free(port):
        raise PortInUse(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka does: connections of an earlier broker that are still winding down do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _first_outgoing() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _LOWEST + 1_000 else 60_000
