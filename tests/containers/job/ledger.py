"""A job that keeps books: every number below NUMBERS is dealt to one subtask, which must answer for it once.

It is copied into the coordinator's container alone, so it imports nothing but penstock. How far it may deal is said by
request ({"open_to": n}): so a test knows that there is work left when it lets something die.
"""

import os
import time

import penstock

NUMBERS = int(os.environ.get("LEDGER_NUMBERS", "1200"))
OPEN_TO = int(os.environ.get("LEDGER_OPEN_TO", str(NUMBERS // 2)))
SUBTASKS = 3
WINDOW = 8
"""Events under way to one subtask at a time."""
PACE_S = 0.005


class Dealer(penstock.OperatorCoordinator):
    """Deals, and writes down each answer."""

    def __init__(self):
        self.open_to = OPEN_TO
        self.gateways = {}
        self.dealt = 0
        self.sent = [0] * SUBTASKS
        self.answers = [[] for _ in range(SUBTASKS)]

    def deal(self):
        for subtask, gateway in self.gateways.items():
            while self.sent[subtask] - len(self.answers[subtask]) < WINDOW and self.dealt < self.open_to:
                gateway.send_event({"number": self.dealt, "serial": self.sent[subtask]})
                self.sent[subtask] += 1
                self.dealt += 1

    def execution_attempt_ready(self, subtask, attempt, gateway):
        self.gateways[subtask] = gateway
        self.deal()

    def handle_event_from_operator(self, subtask, attempt, event, context):
        assert event["serial"] == len(self.answers[subtask]), f"{event}, {len(self.answers[subtask])} answers before"
        self.answers[subtask].append(event["number"])
        self.deal()

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete([self.open_to, self.dealt, list(self.sent), [list(answers) for answers in self.answers]])

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.__init__()
        if state:
            self.open_to, self.dealt, self.sent, self.answers = state

    def handle_request(self, request):
        if "open_to" in request:
            self.open_to = max(self.open_to, request["open_to"])
            self.deal()
        return self.answers


class Clerk(penstock.Subtask):
    """Answers each number once, in the order that they were dealt to it."""

    def open(self, context):
        self.context, self.handled = context, 0

    def handle_operator_event(self, event):
        assert event["serial"] == self.handled, f"expected serial {self.handled}, got {event}"
        time.sleep(PACE_S)
        self.handled += 1
        self.context.send_event_to_coordinator(event)

    def snapshot_state(self, checkpoint_id):
        return self.handled

    def restore_state(self, checkpoint_id, state):
        self.handled = state


job = penstock.Job(
    "ledger",
    checkpoint=penstock.CheckpointSettings(interval=0.3),
    restart=penstock.RestartStrategy(budget=100),
    heartbeat_interval=0.3,
    heartbeat_timeout=3.0,
)
job.operator(
    "clerks",
    coordinator=Dealer,
    subtask=Clerk,
    parallelism=SUBTASKS,
    on_failover="global",
    codec="json",
    state_codec="json",
)
