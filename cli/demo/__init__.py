"""`penstock demo`: real data, real Kafka, real Spark, real faults, and sums that are right to the last digit."""
