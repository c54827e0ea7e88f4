"""What travels and what it is called: ids, records, Avro codec, topic names, settings, errors."""

if __name__ != "penstock.schemas":
    raise ImportError(f"import this package as penstock.schemas, not as {__name__}")
