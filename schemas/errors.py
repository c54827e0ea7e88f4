"""Every error that Penstock raises, as one tree.

::

    PenstockError
    ├── ConfigurationError            what the user asked for cannot be: a name, a number, a type
    ├── UnreadableRecord              bytes on a topic that no published schema explains
    │   ├── ForeignRecord             not in our format: no Penstock wrote it
    │   └── WrittenByNewer            in our format, under a schema of a later release
    ├── TransportError                the broker, or a log on it
    │   ├── BrokerUnreachable         no answer within the deadline
    │   ├── TopicMissing              a topic (or partition) that must exist does not
    │   ├── NotAuthorized             this user lacks a right; names the command that grants it
    │   ├── PositionUnavailable       a wanted offset has been truncated or never existed
    │   ├── AppendFailed              a record that the broker may not have taken
    │   │   └── AppendNotAuthorized   because this user may not write there (a NotAuthorized too)
    │   └── Fenced                    a newer owner has taken over: leave, touch nothing
    │       └── OutcomeUnknown        a commit whose answer never came: leave, touch nothing
    ├── StateError                    state that cannot be stored or read back
    ├── JobError
    │   ├── JobRefused                the job may not start like this
    │   │   └── JobHasFinished        all its work has been done, so there is nothing to resume
    │   ├── JobFailed                 the restart budget is used up, or a user's code failed the job
    │   └── RunReplaced               a newer run of the same job has taken over
    ├── SubtaskError
    │   ├── Superseded                a newer attempt of this subtask runs
    │   ├── SequenceGap               events are missing in the log
    │   └── StartTimeout              no answer to Hello
    ├── EventTooLarge                 one event is larger than the broker takes
    ├── Backpressure                  a bound is reached; ``context.on_writable`` says when to go on
    └── EventNotHandled               what an event's future raises when it was not handled
        ├── TaskNotRunning            its attempt failed first (policy ``reset``)
        ├── TaskFinished              its subtask has finished for good
        ├── RolledBack                a global failover has rolled back the send
        └── CoordinatorClosed         the coordinator ended first

Each message says what happened, to which job, operator, subtask, attempt or checkpoint, and what to do.
"""

from __future__ import annotations


class PenstockError(Exception):
    """The root of all errors raised by this package."""


class ConfigurationError(PenstockError, ValueError):
    """What the user asked for cannot be; the message names the setting, its value and what is allowed."""


class UnreadableRecord(PenstockError):
    """Bytes that no published schema explains. On a shared topic it is counted and kept out, never a crash."""


class ForeignRecord(UnreadableRecord):
    """A record that is not in our format: no Penstock wrote it."""


class WrittenByNewer(UnreadableRecord):
    """A record in our format under a schema that this release does not know: a newer Penstock wrote it."""


class TransportError(PenstockError):
    """The broker refused, or could not be asked."""


class BrokerUnreachable(TransportError):
    """No broker answered within the deadline."""


class TopicMissing(TransportError):
    """A topic or partition that must exist does not."""


class NotAuthorized(TransportError):
    """The broker refuses this user a right. Waiting does not help; the message has the command that grants it."""


class PositionUnavailable(TransportError):
    """A wanted offset lies outside what the partition still holds."""

    def __init__(self, message: str, partition: tuple[str, int] | None = None) -> None:
        super().__init__(message)
        self.partition = partition
        """The topic and the index of the partition concerned, where one is known."""


class AppendFailed(TransportError):
    """A record that the broker may not have taken: nothing may follow it."""


class AppendNotAuthorized(AppendFailed, NotAuthorized):
    """A record that this user may not append."""


class Fenced(TransportError):
    """A newer owner has taken over. Not a failure: the fenced process leaves and touches nothing."""


class OutcomeUnknown(Fenced):
    """A commit was sent and no answer came. The successor sees whether it is durable (protocol, section 7.7)."""


class StateError(PenstockError):
    """State that cannot be stored, or that cannot be read back."""


class JobError(PenstockError):
    """Concerns a whole job."""


class JobRefused(JobError):
    """The job may not start like this; nothing was changed."""


class JobHasFinished(JobRefused):
    """There is nothing to resume: every subtask's end is in a completed checkpoint, or the run has ended meanwhile."""

    def __init__(self, message: str, outcome: str = "finished", cause: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        """finished, stopped or failed."""
        self.cause = cause


class JobFailed(JobError):
    """The job ended because it could not go on; carries the last cause."""


class RunReplaced(JobError):
    """A newer run of the same job has taken over; this one leaves quietly."""


class SubtaskError(PenstockError):
    """Concerns one attempt of one subtask."""


class Superseded(SubtaskError):
    """A newer attempt of this subtask runs; this one leaves and does not say Hello again (protocol, section 4)."""


class SequenceGap(SubtaskError):
    """The log skips or repeats an event: lost log, or a foreign writer."""


class StartTimeout(SubtaskError):
    """No coordinator answered this instance's Hello within the deadline."""


class EventTooLarge(PenstockError, ValueError):
    """One event is larger than the broker takes."""


class Backpressure(PenstockError):
    """A bound on unsent or unhandled events is reached; ``context.on_writable`` says when to go on."""


class BatchRefused(PenstockError):
    """Raise it in ``handle_batch``, before anything has changed: the batch is refused, and nothing else happens."""


class EventNotHandled(PenstockError):
    """Why an event will not be handled; raised by its future."""


class TaskNotRunning(EventNotHandled):
    """The attempt that the event was sent to failed first (policy ``reset``)."""


class TaskFinished(EventNotHandled):
    """The subtask has finished for good: it will not handle another event."""


class RolledBack(EventNotHandled):
    """A global failover has rolled back the send; the coordinator was reset to before it, or will send it again."""


class CoordinatorClosed(EventNotHandled):
    """The coordinator ended before the event was reported handled. The event itself may still be handled."""
