"""Logs as Penstock needs them: small ports, implemented in memory and over Kafka."""

if __name__ != "penstock.transport":
    raise ImportError(f"import this package as penstock.transport, not as {__name__}")
