"""A real one-node Apache Kafka in a child process."""

if __name__ != "penstock.broker":
    raise ImportError(f"import this package as penstock.broker, not as {__name__}")
