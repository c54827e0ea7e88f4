"""Records of a Kafka topic, counted by a field of theirs, each exactly once.

    BROKER=broker:9092 TOPIC=flights FIELD=carrier penstock run examples/count_topic.py

It reads what the topic holds when it starts, and ends. Without ``until`` it would go on with what comes.
"""

import json
import os

import penstock

BROKER = os.environ.get("BROKER", "localhost:9092")
TOPIC = os.environ.get("TOPIC", "flights")
FIELD = os.environ.get("FIELD", "carrier")
SUBTASKS = 2


class Printer(penstock.OperatorCoordinator):
    """Prints the counts once every subtask has sent its own, and a checkpoint has them."""

    def __init__(self):
        self.counts = []

    def handle_event_from_operator(self, subtask, attempt, event, context):
        self.counts.append(event)

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete(self.counts)

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.counts = state or []

    def notify_checkpoint_complete(self, checkpoint_id):
        if len(self.counts) == self.context.parallelism:
            for key, count in sorted(pair for counts in self.counts for pair in counts):
                print(f"{key}: {count}")


class Counter(penstock.Subtask):
    """Counts the records of the keys that it owns."""

    def open(self, context):
        self.context, self.counts = context, {}

    def process(self, record, input):
        self.counts[record[FIELD]] = self.counts.get(record[FIELD], 0) + 1

    def end_inputs(self):
        self.context.send_event_to_coordinator(list(self.counts.items()))

    def snapshot_state(self, checkpoint_id):
        return list(self.counts.items())

    def restore_state(self, checkpoint_id, state):
        self.counts = dict(state)


events = penstock.sources.Kafka(TOPIC, brokers=BROKER, until="latest")
job = penstock.Job("count-topic", checkpoint=penstock.CheckpointSettings(interval=0.5))
reader = job.operator("reader", **events.read(decode=json.loads), parallelism=SUBTASKS, output_codec="json")
job.operator(
    "counts",
    subtask=Counter,
    coordinator=Printer,
    parallelism=SUBTASKS,
    inputs=[reader.keyed_by(FIELD)],
    on_failover="global",
    codec="json",
    state_codec="json",
)
