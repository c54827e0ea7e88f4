"""What Spark stores for a batch: a checkpoint, and where its events stand. It is all that reading the batch needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import JobRefused
from ...schemas.ids import NO_CHECKPOINT
from ...schemas.status import BatchPartition, BatchPlanned

_WAYS_OUT = (
    "Give the query the Spark checkpoint that belongs to this job; or begin anew: a new checkpointLocation, and"
    " .option('fresh', 'true') for as long as the job has checkpoints of its own"
)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a batch, and so the start of the next one."""

    job: str
    """``<prefix>.<job>``."""
    operator: str
    history: str
    """Id of the job's checkpoint topic: another one after the job has been purged."""
    checkpoint: int = NO_CHECKPOINT
    previous: int = NO_CHECKPOINT
    """Checkpoint of the batch before."""
    epoch: int = 0
    partitions: tuple[BatchPartition, ...] = ()
    """By subtask."""

    def to_dict(self) -> dict[str, Any]:
        """As Spark stores it, in JSON."""
        return {
            "job": self.job,
            "operator": self.operator,
            "history": self.history,
            "checkpoint": self.checkpoint,
            "previous": self.previous,
            "epoch": self.epoch,
            "partitions": [[part.begin, part.end, part.sequence] for part in self.partitions],
        }

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """What ``to_dict`` made. Raises JobRefused for anything else."""
        try:
            return cls(
                job=_typed(stored["job"], str),
                operator=_typed(stored["operator"], str),
                history=_typed(stored["history"], str),
                checkpoint=_typed(stored["checkpoint"], int),
                previous=_typed(stored["previous"], int),
                epoch=_typed(stored["epoch"], int),
                partitions=tuple(BatchPartition(*(_typed(n, int) for n in part)) for part in stored["partitions"]),
            )
        except (KeyError, TypeError) as error:
            raise JobRefused(
                f"Spark's checkpoint has an offset that is none of a penstock source ({type(error).__name__}: {error})."
                f" {_WAYS_OUT}"
            ) from None

    def followed_by(self, planned: BatchPlanned) -> StreamOffset:
        """The end of the batch that has been planned behind this one."""
        return StreamOffset(
            self.job,
            self.operator,
            self.history,
            planned.checkpoint_id,
            self.checkpoint,
            planned.epoch,
            planned.partitions,
        )

    def require(self, job: str, operator: str, history: str) -> None:
        """Raises JobRefused where Spark's checkpoint belongs to another job, or to another life of it."""
        if (self.job, self.operator) != (job, operator):
            raise JobRefused(
                f"the query reads operator {operator!r} of job {job}, and its Spark checkpoint was made by operator"
                f" {self.operator!r} of job {self.job}. {_WAYS_OUT}"
            )
        if self.history != history:
            raise JobRefused(
                f"the query's Spark checkpoint names checkpoint {self.checkpoint} of job {job}, and that job's topics"
                f" have been deleted since (its history was {self.history} and is {history}). {_WAYS_OUT}"
            )

    def require_predecessor(self, start: StreamOffset) -> None:
        """Raises JobRefused where the batch from ``start`` to here is not the one that was planned."""
        if self.previous != start.checkpoint:
            raise JobRefused(
                f"the batch that ends with checkpoint {self.checkpoint} of job {self.job} was planned behind checkpoint"
                f" {self.previous}, and Spark runs it behind checkpoint {start.checkpoint}: offsets in Spark's"
                f" checkpoint are missing or were changed. {_WAYS_OUT}"
            )


def _typed(value: object, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
