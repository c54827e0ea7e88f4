"""Both protocol cores under a seeded scheduler: ``python -m tests.simulation --config NAME --seeds A:B``.

One process, one thread, virtual time. The cores are the real ones, the logs are the in-memory broker's, every record is
encoded and decoded; only the shells around the cores are simulated (:mod:`.coordinator_process`,
:mod:`.subtask_process`), so that each of their steps is a choice of the scheduler (:mod:`.world`). What must hold is in
:mod:`.checks`; which faults happen how often is in :mod:`.configs`.
"""
