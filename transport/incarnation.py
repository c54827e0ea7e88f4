"""The incarnation of a job that stands under its name: a job that was purged and recreated is another one."""

from __future__ import annotations

from ..schemas.topics import TopicNames
from .ports import Transport


def incarnation(transport: Transport, topics: TopicNames, timeout_s: float = 30.0) -> str:
    """Return the id of the job's checkpoint topic; empty if there is none, or this user may not see it."""
    found = transport.describe_topics([topics.checkpoints], timeout_s).get(topics.checkpoints)
    return "" if found is None else found.topic_id
