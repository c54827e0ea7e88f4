"""The subtask's side of a job: the protocol core, its runtime, and the API that users implement."""

if __name__ != "penstock.subtask_client":
    raise ImportError(f"import this package as penstock.subtask_client, not as {__name__}")
