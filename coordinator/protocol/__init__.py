"""The coordinator's pure core: no IO, no clock, no threads. It imports schemas and checkpoint_log only."""

if __name__ != "penstock.coordinator.protocol":
    raise ImportError(f"import this package as penstock.coordinator.protocol, not as {__name__}")
