"""The job of the compose file: adds up the squares of the numbers below NUMBERS, in ranges that are handed out.

    penstock coordinator squares.py --broker kafka:9094      # one container
    python main.py                                           # another one: Spark, with the subtasks

``on_failover="global"`` makes it exact whatever dies: coordinator and subtasks go back to the same checkpoint together.
"""

import os

import penstock

NUMBERS = int(os.environ.get("NUMBERS", "2000000"))
RANGE = int(os.environ.get("RANGE", "10000"))
SUBTASKS = int(os.environ.get("SUBTASKS", "4"))


class Splitter(penstock.OperatorCoordinator):
    """Hands out ranges, and keeps what comes back."""

    def __init__(self):
        self.next, self.ranges, self.sum, self.gateways = 0, 0, 0, {}

    def execution_attempt_ready(self, subtask, attempt, gateway):
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask, attempt, event, context):
        if "sum" in event:
            self.ranges += 1
            self.sum += event["sum"]
        if self.next < NUMBERS:
            self.gateways[subtask].send_event([self.next, min(self.next + RANGE, NUMBERS)])
            self.next += RANGE

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete([self.next, self.ranges, self.sum])

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.next, self.ranges, self.sum = state or (0, 0, 0)
        self.gateways.clear()

    def handle_request(self, request):
        return {"ranges": self.ranges, "sum": self.sum}


class Adder(penstock.Subtask):
    """Adds up one range after the other; the answer to one asks for the next."""

    def open(self, context):
        self.context, self.asked, self.range = context, False, None

    def handle_operator_event(self, event):
        self.range = event

    def poll(self):
        if not self.asked:
            self.asked = True
            self.context.send_event_to_coordinator({"first": True})
        if self.range is not None:
            begin, end = self.range
            self.range = None
            self.context.send_event_to_coordinator({"sum": sum(n * n for n in range(begin, end))})
        return penstock.Idle()

    def snapshot_state(self, checkpoint_id):
        return [self.asked, self.range]

    def restore_state(self, checkpoint_id, state):
        self.asked, self.range = state


job = penstock.Job("squares", checkpoint=penstock.CheckpointSettings(interval=0.5))
job.operator(
    "adder",
    coordinator=Splitter,
    subtask=Adder,
    parallelism=SUBTASKS,
    on_failover="global",
    codec="json",
    state_codec="json",
)
