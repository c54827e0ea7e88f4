"""What a page may ask of a job where control is allowed: a savepoint, or its end. It must have the token."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from hashlib import sha256

from ..client.job_client import JobClient
from ..schemas.errors import ConfigurationError, JobRefused
from ..schemas.status import CommandReply

TOKEN_CHARS_MIN = 16
ANSWER_TIMEOUT_S = 120.0


class Busy(Exception):
    """The job has not answered the request before."""


class Control:
    """Who has the token may ask. One request at a time for each job."""

    def __init__(self, token: str) -> None:
        if len(token) < TOKEN_CHARS_MIN:
            raise ConfigurationError(
                f"the dashboard's control token has {len(token)} characters: at least {TOKEN_CHARS_MIN} are needed"
            )
        self._digest = _digest(token)
        self._lock = threading.Lock()
        self._asking: set[str] = set()

    def admits(self, authorization: str) -> bool:
        """Return whether an Authorization header has the token."""
        kind, _, token = authorization.partition(" ")
        return hmac.compare_digest(_digest(token), self._digest) and kind.lower() == "bearer"

    def ask(self, client: JobClient, action: str) -> CommandReply:
        """Ask a job that runs, and return its reply; a refusal is a reply.

        Raises ConfigurationError for another action than those of ``ACTIONS``, Busy while another request is open,
        JobRefused where no coordinator would answer, JobError where none answers within 120 s.
        """
        if action not in ACTIONS:
            raise ConfigurationError(f"{action!r} cannot be asked of a job here; there is: {', '.join(ACTIONS)}")
        job = client.topics.root
        with self._lock:
            if job in self._asking:
                raise Busy
            self._asking.add(job)
        try:
            if not client.running(within_s=10.0):
                raise JobRefused(f"job {client.topics.job} does not run: no coordinator would answer")
            return ACTIONS[action](client)
        finally:
            with self._lock:
                self._asking.discard(job)


ACTIONS: dict[str, Callable[[JobClient], CommandReply]] = {
    "savepoint": lambda client: client.savepoint(ANSWER_TIMEOUT_S),
    "stop": lambda client: client.stop(timeout_s=ANSWER_TIMEOUT_S),
    "stop-with-savepoint": lambda client: client.stop(savepoint=True, timeout_s=ANSWER_TIMEOUT_S),
}


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
