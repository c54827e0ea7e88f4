"""Payments scored by rules that change while the job runs.

    RULES=/tmp/rules.json penstock run examples/scoring_rules.py

Without that file, and without RULES, the initial rule holds. Write another set into the file, or send one from another
terminal:

    penstock request scoring-rules score '{"set": [{"field": "amount", "above": 500}]}'
    penstock request scoring-rules score '{"rollback": 0}'

Each subtask prints when it works by another version, and at its end how many payments each version has marked.
"""

import os
from dataclasses import dataclass

import penstock

PAYMENTS = int(os.environ.get("PAYMENTS", "6000"))
"""A hundred a second."""


@dataclass
class Rule:
    field: str
    above: float


class Payments(penstock.Subtask):
    """Makes payments up."""

    number = 0

    def open(self, context):
        self.context = context

    def poll(self):
        if self.number == PAYMENTS:
            return penstock.Finished()
        self.context.emit({"number": self.number, "amount": self.number * 37 % 1000})
        self.number += 1
        return penstock.Idle(0.01)

    def snapshot_state(self, checkpoint_id):
        return self.number

    def restore_state(self, checkpoint_id, state):
        self.number = state


class Score(penstock.RuleSubtask[list[Rule]]):
    """Marks a payment that a rule holds for."""

    def open(self, context):
        self.context, self.marked = context, {}

    def rules_changed(self, rules, version):
        print(f"subtask {self.context.subtask} works by version {version}: {rules}")

    def process(self, payment, input):
        if any(payment[rule.field] > rule.above for rule in self.rules):
            key = str(self.rules_version)
            self.marked[key] = self.marked.get(key, 0) + 1

    def end_inputs(self):
        print(f"subtask {self.context.subtask} has marked {self.marked}")

    def snapshot_state(self, checkpoint_id):
        return self.marked

    def restore_state(self, checkpoint_id, state):
        self.marked = state


rules = penstock.Rules(Rule, initial=[Rule("amount", above=900)], source=os.environ.get("RULES"))
job = penstock.Job("scoring-rules", checkpoint=penstock.CheckpointSettings(interval=0.5))
payments = job.operator("payments", subtask=Payments, parallelism=1, state_codec="json", output_codec="json")
score = rules.operator(Score, state_codec="json")
job.operator("score", **score, parallelism=2, inputs=[payments.rebalance()])
