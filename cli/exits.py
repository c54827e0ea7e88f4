"""Exit codes, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum

from ..broker import BrokerError
from ..schemas.errors import BrokerUnreachable, ConfigurationError, Fenced, PenstockError, RunReplaced


class Exit(IntEnum):
    """What `penstock` exits with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_BROKER = 3
    REPLACED = 4
    UNSAFE = 5
    DAMAGED = 6
    UNEXPECTED = 70
    INTERRUPTED = 130


MEANINGS = {
    Exit.DONE: "done; coordinator --standby: or asked to leave, and the job goes on; demo: the result is equal to the"
    " one computed directly",
    Exit.FAILED: "the job failed or was refused, a request was refused or not answered, the demo's results differ,"
    " or doctor found something missing",
    Exit.USAGE: "wrong usage, setting, input or job name: nothing was started",
    Exit.NO_BROKER: "no broker: not reachable, not started, or none known",
    Exit.REPLACED: "another coordinator or a newer run of the job has taken over",
    Exit.UNSAFE: "compat: not safe; what was written cannot all be read, or not by all who have to",
    Exit.DAMAGED: "audit: the job's logs are damaged; the report says where",
    Exit.UNEXPECTED: "an unexpected error: --debug shows where",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; the job was stopped and resumes when it is run again",
}


class UsageError(ConfigurationError):
    """What was asked for on the command line cannot be."""


class NoBrokerKnown(BrokerUnreachable):
    """No broker was named, and none is registered."""


class Failed(PenstockError):
    """The command did what it could, and the answer is no."""


def exit_of(error: BaseException) -> Exit:
    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case ConfigurationError():
            return Exit.USAGE
        case BrokerUnreachable() | BrokerError():
            return Exit.NO_BROKER
        case Fenced() | RunReplaced():
            return Exit.REPLACED
        case PenstockError():
            return Exit.FAILED
        case _:
            return Exit.UNEXPECTED


def table() -> str:
    """For `penstock --help`."""
    return "\n".join(f"{code.value:>4}  {meaning}" for code, meaning in MEANINGS.items())
