"""A running job for people: one model of what to show, and the web page that shows it.

:mod:`.model` and :mod:`.messages` need nothing but the standard library; the page needs the extra ``dashboard``.
"""

if __name__ != "penstock.dashboard":
    raise ImportError(f"import this package as penstock.dashboard, not as {__name__}")
