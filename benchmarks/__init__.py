"""What Penstock costs, each figure beside raw confluent-kafka in the same run: ``python -m benchmarks``."""
