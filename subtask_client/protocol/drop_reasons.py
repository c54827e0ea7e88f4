"""Why records that a subtask reads have no effect."""

from __future__ import annotations

from enum import StrEnum


class Dropped(StrEnum):
    """Why a record had no effect; the keys of ``SubtaskCore.dropped``."""

    UNREADABLE = "unreadable"
    OLDER_EPOCH = "older_epoch"
    OTHER_EPOCH = "other_epoch"
    OTHER_ATTEMPT = "other_attempt"
    OTHER_GENERATION = "other_generation"
    OTHER_SENDER = "other_sender"
    BLOCKED = "blocked"
    VOID_CONTROL = "void_control"
    OUTSIDE_RANGES = "outside_ranges"
    BEFORE_START = "before_start"
    ALREADY_READ = "already_read"
    REPEATED = "repeated"
    DEAD_MARKER = "dead_marker"
    STALE_NOTICE = "stale_notice"
    STALE_RESET = "stale_reset"
    STALE_START = "stale_start"
    BEHIND_STOP = "behind_stop"
    BEHIND_END = "behind_end"
    POSITION_LOST = "position_lost"
