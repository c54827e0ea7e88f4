"""`penstock demo`: real data, real Kafka, real Spark, real faults, and sums that are right to the last digit."""

if __name__ != "penstock.cli.demo":
    raise ImportError(f"import this package as penstock.cli.demo, not as {__name__}")
