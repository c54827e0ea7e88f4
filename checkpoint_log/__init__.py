"""A job's checkpoint log: its fold, what can be restored, and where a restored subtask begins. Pure.

The coordinator folds the log as it commits; tools, dashboard, Spark and audit fold it as they read it.
"""

if __name__ != "penstock.checkpoint_log":
    raise ImportError(f"import this package as penstock.checkpoint_log, not as {__name__}")
