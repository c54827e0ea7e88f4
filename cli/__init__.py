"""The command line."""

if __name__ != "penstock.cli":
    raise ImportError(f"import this package as penstock.cli, not as {__name__}")
