"""Rules are changed in a running query, and each of its batches is made by exactly one version of the rules.

    python examples/rules_in_a_query.py

The coordinator sends each new rule to all subtasks in one callback, so between two cuts; a batch of the query is what
lies between two cuts. So a batch has a new rule from every subtask or from none, and all rows that Spark has put into
that batch, from a source that knows nothing of rules, are priced by the newest rule there is up to its end.

A batch that runs again must use the same version. Its events are the same ones, from the log; a batch without any uses
the rule of the batch before it, which that one has written down before it ended. At the end a reader that knows the
files alone checks all of it. Kill it in the middle, and look again:

    FOLDER=$HOME/rules KILL_IN_BATCH=4 python examples/rules_in_a_query.py
    FOLDER=$HOME/rules python examples/rules_in_a_query.py
"""

import contextlib
import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import functions as F

import penstock
from penstock.broker import EmbeddedBroker

RULES = 6
CHANGE_EVERY_S = 1.5
SUBTASKS = 2
ROWS_PER_S = 50
DEADLINE_S = 240
BATCHES_REMEMBERED = 100
FIRST = {"rule": 0, "multiply_by": 1}


class RuleMaker(penstock.OperatorCoordinator):
    """Makes a new rule now and then, until there have been enough."""

    def __init__(self):
        self.rule = 0
        self.gateways = {}
        self.rule_at_cut = 0
        self.next_change = None

    def change_rule_later(self):
        """One timer at most: one rule for each batch is wanted, and a notice may come again."""
        if self.next_change is None:
            self.next_change = self.context.call_later(CHANGE_EVERY_S, self.change_rule)

    def change_rule(self):
        self.next_change = None
        if self.rule < RULES:
            self.rule += 1
            for gateway in self.gateways.values():
                gateway.send_event({"rule": self.rule, "multiply_by": self.rule * 10})

    def execution_attempt_ready(self, subtask, attempt, gateway):
        self.gateways[subtask] = gateway
        if len(self.gateways) == self.context.parallelism:
            self.change_rule_later()

    def execution_attempt_failed(self, subtask, attempt, reason):
        self.gateways.pop(subtask, None)

    def notify_checkpoint_complete(self, checkpoint_id):
        if self.rule_at_cut == self.rule:
            self.change_rule_later()  # some batch has the rule: now the next one

    def checkpoint_coordinator(self, checkpoint_id, result):
        self.rule_at_cut = self.rule
        result.complete({"rule": self.rule})

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.rule = self.rule_at_cut = state["rule"] if state else 0
        self.gateways.clear()
        self.next_change = None  # the one of before is dropped


job = penstock.Job("rules-in-a-query")
job.operator(
    "rules",
    coordinator=RuleMaker,
    subtask=penstock.Subtask,
    parallelism=SUBTASKS,
    codec="json",
    state_codec="json",
)


class Rules:
    """The rule of each batch, in a file of its own: written again by a batch that runs again, with the same rule."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, batch, batch_id):
        return self.folder / f"{batch.token.stream}.b{batch_id}.json"

    def for_batch(self, events, batch):
        """The newest rule in the batch; without one, that of the batch before."""
        sent = {}
        for row in events.collect():
            sent.setdefault(row["subtask"], []).append(json.loads(row["rule"]))
        if sent:
            told = list(sent.values())
            assert len(told) == SUBTASKS and all(one == told[0] for one in told), f"half of the rules: {sent}"
            rule = told[0][-1]
        elif batch.batch_id > 0:
            rule = json.loads(self.path(batch, batch.batch_id - 1).read_text())
        else:
            rule = FIRST
        self.remember(rule, batch)
        return rule

    def remember(self, rule, batch):
        path = self.path(batch, batch.batch_id)
        draft = path.with_suffix(".draft")
        with draft.open("w") as file:
            json.dump(rule, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)  # from here on the next batch may rely on it
        self.path(batch, batch.batch_id - BATCHES_REMEMBERED).unlink(missing_ok=True)

    def newest(self):
        return max((json.loads(path.read_text())["rule"] for path in self.folder.glob("*.json")), default=0)


def priced(spark, handle, folder):
    """The query: prices rows of Spark's rate source."""
    events = handle.read_stream(maxWait=0.1).select(
        "subtask", "sequence", F.col("event").cast("string").alias("rule"), F.lit(None).cast("long").alias("value")
    )
    rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_S).load()
    rows = rows.select(
        *(F.lit(None).cast(kind).alias(name) for name, kind in (("subtask", "int"), ("sequence", "long"))),
        F.lit(None).cast("string").alias("rule"),
        "value",
    )
    rules = Rules(folder / "rules")

    def price(both, batch):
        rule = rules.for_batch(both.where("rule is not null").orderBy("sequence"), batch)
        prices = both.where("value is not null").select(
            "value",
            (F.col("value") * rule["multiply_by"]).alias("price"),
            F.lit(rule["rule"]).alias("rule"),
            F.lit(batch.batch_id).alias("batch_id"),
        )
        batch.write_files(prices, folder / "prices")
        if os.environ.get("KILL_IN_BATCH") == str(batch.batch_id):
            os.kill(os.getpid(), signal.SIGKILL)  # the files are there, and Spark does not know

    query = events.union(rows).writeStream.foreachBatch(penstock.spark_integration.exactly_once(price))
    return query.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        processingTime="500 milliseconds"
    ), rules


def proven(folder):
    """What the files say by themselves: one rule in each batch, and each row once."""
    rows = ds.dataset(folder / "prices", format="parquet").to_table().to_pylist()
    rule_of = {}
    for row in rows:
        assert rule_of.setdefault(row["batch_id"], row["rule"]) == row["rule"], f"two rules in batch {row['batch_id']}"
        assert row["price"] == row["value"] * (row["rule"] * 10 or 1), row
    in_order = [rule for _, rule in sorted(rule_of.items())]
    assert in_order == sorted(in_order), f"an older rule after a newer one: {in_order}"
    assert sorted(row["value"] for row in rows) == list(range(len(rows))), "a row is missing, or there twice"
    return rule_of, len(rows)


def main():
    folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="rules-in-a-query-"))
    with contextlib.ExitStack() as stack:
        address = os.environ.get("BROKER")
        if address is None:
            address = stack.enter_context(EmbeddedBroker(folder / "broker")).bootstrap
        spark = penstock.spark_integration.local_session(slots=2)
        stack.callback(spark.stop)
        handle = stack.enter_context(penstock.spark_integration.stream(spark, job, broker=address))
        writer, rules = priced(spark, handle, folder)
        query = writer.start()
        deadline = time.monotonic() + DEADLINE_S
        while rules.newest() < RULES or query.lastProgress is None:
            if not query.isActive or time.monotonic() > deadline:
                raise SystemExit(f"the query has not come to rule {RULES}: {query.exception() or query.status}")
            time.sleep(0.1)
    rule_of, count = proven(folder)
    for rule in sorted(set(rule_of.values())):
        print(f"rule {rule}: batches {', '.join(str(b) for b, r in sorted(rule_of.items()) if r == rule)}")
    print(f"{count} rows, each once; {len(rule_of)} batches, each by one rule; the last one is rule {rules.newest()}")


if __name__ == "__main__":
    main()
