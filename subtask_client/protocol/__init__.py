"""The subtask's pure core: no IO, no clock, no threads. It imports penstock.schemas only."""

if __name__ != "penstock.subtask_client.protocol":
    raise ImportError(f"import this package as penstock.subtask_client.protocol, not as {__name__}")
