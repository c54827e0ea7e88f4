"""A coordinator says hello to every subtask, and every subtask answers. The smallest whole job.

    penstock run examples/hello_events.py

Kill a worker meanwhile: each greeting is still heard exactly once, because what a subtask has heard is in its
checkpointed state, and what it was sent since the last checkpoint comes again from the log.
"""

import penstock

GREETINGS = 20
SUBTASKS = 2


class Greeter(penstock.OperatorCoordinator):
    """One instance, beside the driver."""

    def __init__(self):
        self.greeted = set()
        self.answers = []

    def execution_attempt_ready(self, subtask, attempt, gateway):
        if subtask in self.greeted:
            return  # a new attempt of a subtask that was greeted before: the log tells it
        self.greeted.add(subtask)
        for number in range(GREETINGS):
            gateway.send_event(f"hello {number}")

    def handle_event_from_operator(self, subtask, attempt, event, context):
        self.answers.append([subtask, event])

    def subtask_reset(self, subtask, checkpoint_id):
        # What an undone attempt answered is undone with it. (A checkpoint that contains an answer contains the end of
        # its subtask, which is never reset then.)
        self.answers = [answer for answer in self.answers if answer[0] != subtask]

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete({"greeted": sorted(self.greeted), "answers": self.answers})

    def reset_to_checkpoint(self, checkpoint_id, state):
        state = state or {"greeted": [], "answers": []}
        self.greeted, self.answers = set(state["greeted"]), state["answers"]

    def notify_checkpoint_complete(self, checkpoint_id):
        if len(self.answers) == self.context.parallelism:
            for subtask, heard in sorted(self.answers):
                print(f"subtask {subtask} heard {len(heard)} greetings, from {heard[0]!r} to {heard[-1]!r}")


class Listener(penstock.Subtask):
    """One instance per attempt, each in a Spark task of its own."""

    def open(self, context):
        self.context = context
        self.heard = []

    def handle_operator_event(self, event):
        self.heard.append(event)

    def poll(self):
        if len(self.heard) < GREETINGS:
            return penstock.Idle()
        self.context.send_event_to_coordinator(self.heard)
        return penstock.Finished()

    def snapshot_state(self, checkpoint_id):
        return self.heard

    def restore_state(self, checkpoint_id, state):
        self.heard = state


job = penstock.Job("hello-events", checkpoint=penstock.CheckpointSettings(interval=0.5))
job.operator("greeter", coordinator=Greeter, subtask=Listener, parallelism=SUBTASKS, codec="json", state_codec="json")
