"""A job as its topics show it: the client that asks and stops it, its status, its checkpoint log, what it costs."""

if __name__ != "penstock.client":
    raise ImportError(f"import this package as penstock.client, not as {__name__}")
