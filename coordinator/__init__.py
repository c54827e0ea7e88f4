"""The coordinator's side of a job: the protocol core, its runtime, and the API that users implement."""

if __name__ != "penstock.coordinator":
    raise ImportError(f"import this package as penstock.coordinator, not as {__name__}")
