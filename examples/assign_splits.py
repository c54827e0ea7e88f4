"""Files of a folder are handed out to whoever asks for one; each is counted exactly once.

    FOLDER=/some/folder penstock run examples/assign_splits.py

Subtasks ask, the coordinator answers. ``on_failover="global"`` makes that exactly-once both ways without any care in
here: whatever fails, coordinator and subtasks go back to the same checkpoint together. (With the default, ``replay``,
the coordinator would keep its state, and would have to expect a question of an undone attempt a second time.)
"""

import os
from pathlib import Path

import penstock

FOLDER = Path(os.environ.get("FOLDER") or Path(__file__).resolve().parent)
SUBTASKS = 3


class FileAssigner(penstock.OperatorCoordinator):
    """Knows which files are left."""

    def __init__(self):
        self.gateways = {}
        self.counts = []
        self.left = sorted(str(path) for path in FOLDER.iterdir() if path.is_file())

    def execution_attempt_ready(self, subtask, attempt, gateway):
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask, attempt, event, context):
        if "counts" in event:
            self.counts.append(event["counts"])
        else:
            self.gateways[subtask].send_event({"file": self.left.pop(0) if self.left else None})

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete({"left": self.left, "counts": self.counts})

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.gateways.clear()
        if state:
            self.left, self.counts = state["left"], state["counts"]
        else:
            self.__init__()

    def notify_checkpoint_complete(self, checkpoint_id):
        if len(self.counts) == self.context.parallelism:
            files, lines = (sum(column) for column in zip(*self.counts, strict=True))
            print(f"{files} files with {lines} lines in {FOLDER}")


class LineCounter(penstock.Subtask):
    """Asks for a file, counts its lines, asks for the next one."""

    def open(self, context):
        self.context = context
        self.asked, self.file, self.files, self.lines, self.ended = False, None, 0, 0, False

    def handle_operator_event(self, event):
        self.asked, self.file, self.ended = False, event["file"], event["file"] is None

    def poll(self):
        if self.file is not None:
            self.lines += Path(self.file).read_bytes().count(b"\n")
            self.files += 1
            self.file = None
        if self.ended:
            self.context.send_event_to_coordinator({"counts": [self.files, self.lines]})
            return penstock.Finished()
        if not self.asked:
            self.context.send_event_to_coordinator({"next": True})
            self.asked = True
        return penstock.Idle()

    def snapshot_state(self, checkpoint_id):
        return [self.asked, self.file, self.files, self.lines, self.ended]

    def restore_state(self, checkpoint_id, state):
        self.asked, self.file, self.files, self.lines, self.ended = state


job = penstock.Job("assign-splits", checkpoint=penstock.CheckpointSettings(interval=0.5))
job.operator(
    "reader",
    coordinator=FileAssigner,
    subtask=LineCounter,
    parallelism=SUBTASKS,
    on_failover="global",
    codec="json",
    state_codec="json",
)
