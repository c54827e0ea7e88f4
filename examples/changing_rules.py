"""Rules are changed in running tasks, and every checkpoint has the same rule in all of them.

    penstock run examples/changing_rules.py

The coordinator sends a new rule to all subtasks in one callback, so between two cuts: what is sent before the cut of a
checkpoint is in the snapshot of every subtask, what is sent after it is in none. A job that is restored never has half
of its tasks under the old rule and half under the new one. The coordinator checks just that for every checkpoint.
"""

import penstock

RULES = 6
CHANGE_EVERY_S = 0.3
SUBTASKS = 3


class RuleMaker(penstock.OperatorCoordinator):
    """Makes a new rule now and then, until there have been enough."""

    def __init__(self):
        self.rule = 0
        self.gateways = {}
        self.snapshots = {}

    def start(self):
        self.context.call_every(CHANGE_EVERY_S, self.change_rule)

    def change_rule(self):
        if self.rule < RULES and len(self.gateways) == self.context.parallelism:
            self.rule += 1
            for gateway in self.gateways.values():
                gateway.send_event({"rule": self.rule, "multiply_by": self.rule * 10})

    def execution_attempt_ready(self, subtask, attempt, gateway):
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask, attempt, event, context):
        # Sent in snapshot_state: it comes before this coordinator is told that the checkpoint is complete.
        self.snapshots.setdefault(event["checkpoint"], {})[subtask] = event["rule"]

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete({"rule": self.rule})

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.rule = state["rule"] if state else 0
        self.gateways.clear()

    def notify_checkpoint_complete(self, checkpoint_id):
        told = self.snapshots.pop(checkpoint_id, {})
        rules = set(told.values())
        if len(rules) > 1:
            self.context.fail_job(f"checkpoint {checkpoint_id} has different rules: {told}")
        elif rules:
            print(f"checkpoint {checkpoint_id}: {len(told)} subtasks, all under rule {rules.pop()}")


class Pricer(penstock.Subtask):
    """Works on its own numbers all the time, always by the newest rule it was given."""

    def open(self, context):
        self.context = context
        self.rule, self.factor, self.number, self.sum = 0, 1, 0, 0

    def handle_operator_event(self, event):
        self.rule, self.factor = event["rule"], event["multiply_by"]

    def poll(self):
        if self.rule == RULES:
            return penstock.Finished()
        self.number += 1
        self.sum += self.number * self.factor
        return penstock.Idle(0.005)

    def snapshot_state(self, checkpoint_id):
        self.context.send_event_to_coordinator({"checkpoint": checkpoint_id, "rule": self.rule})
        return [self.rule, self.factor, self.number, self.sum]

    def restore_state(self, checkpoint_id, state):
        self.rule, self.factor, self.number, self.sum = state


job = penstock.Job("changing-rules", checkpoint=penstock.CheckpointSettings(interval=0.2))
job.operator("pricer", coordinator=RuleMaker, subtask=Pricer, parallelism=SUBTASKS, codec="json", state_codec="json")
