"""The process that Spark's Python workers are forked from, with everything imported that a subtask needs.

Named by ``spark.python.daemon.module``. A worker that replaces a killed one begins in half the time, because it finds
the modules loaded. Nothing here opens a client or starts a thread: neither survives a fork.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401  # what every worker runs
from pyspark.daemon import manager

from . import task  # noqa: F401  # the subtask client, confluent-kafka and fastavro with it

if __name__ == "__main__":
    gc.freeze()  # what is loaded by now stays shared between the workers
    manager()
