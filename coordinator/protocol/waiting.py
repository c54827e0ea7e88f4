"""What a checkpoint under way waits for, in words: for its status, and for the reason of its abort."""

from __future__ import annotations

from heapq import nsmallest

from .pending import Pending, Step
from .state import JobState

WAITS_FOR_SPARK = "Spark to commit its batch"
WAITS_NAMED = 8


def waits_for(job: JobState, pending: Pending) -> str:
    """Name who keeps the checkpoint from completing, at which step, since when."""
    if pending.uncut:
        names = ", ".join(sorted(pending.uncut))
        return f"the coordinator of {names} to complete its checkpoint future"
    if pending.step is Step.PREPARED:
        return WAITS_FOR_SPARK
    waits, lacking = [], pending.required.difference(pending.acks)
    for subtask in nsmallest(WAITS_NAMED, lacking):
        attempt = job.current.slots[subtask].attempt
        if attempt is None:
            waits.append(f"{subtask} (no attempt)")
        else:
            waits.append(f"{subtask} (attempt {attempt.id}: {attempt.step}, for {attempt.step_age_ms / 1000:.1f} s)")
    if len(lacking) > len(waits):
        waits.append(f"and {len(lacking) - len(waits)} more subtasks")
    if pending.storing:
        waits.append(f"coordinator state of {', '.join(sorted(pending.storing))} on its way to storage")
    return ", ".join(waits) or "its commit"
