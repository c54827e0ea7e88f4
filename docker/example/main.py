"""The Spark side of the compose file: runs the subtasks of squares.py, and compares the result with the formula.

The coordinator runs in another container, and may be away for a while: whoever asks it asks again. The exit code is 0
only where the sum is exact.
"""

import os
import sys
import time

import squares

import penstock
from penstock.spark_integration import local_session, run

DEADLINE_S = float(os.environ.get("DEADLINE_S", "240"))


def result(handle, wanted):
    """What the coordinator has when all ranges have come back."""
    deadline = time.monotonic() + DEADLINE_S
    told = -1
    while time.monotonic() < deadline:
        try:
            found = handle.request("adder", "result", timeout=5.0)
        except penstock.errors.JobError as error:
            if handle.done:
                raise
            print(f"the coordinator does not answer: {error}")
            continue
        if found["ranges"] != told:
            told = found["ranges"]
            print(f"{told} of {wanted} ranges")
        if told >= wanted:
            return found
        time.sleep(0.2)
    raise TimeoutError(f"not within {DEADLINE_S:g} s: {handle.status()}")


def main():
    spark = local_session(squares.SUBTASKS)
    with run(spark, squares.job, broker=os.environ["PENSTOCK_BROKER"], coordinator="elsewhere") as handle:
        wanted = -(-squares.NUMBERS // squares.RANGE)
        found = result(handle, wanted)
    spark.stop()
    n = squares.NUMBERS
    exact = (n - 1) * n * (2 * n - 1) // 6
    equal = found == {"ranges": wanted, "sum": exact}
    print(f"the squares of the numbers below {n}: {found['sum']}, and by the formula: {exact}")
    print("exact" if equal else "NOT EXACT")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
