"""Which HTTP requests are answered: those that name this machine, and come from no page of another site.

A page of another site whose name was made to point here (DNS rebinding) names that site in its Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::\d+)?")


def is_ours(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header names one of ``names``, or an address in digits: no other site is called so."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["address"] or found["name"]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".") in names
    return True


def is_cross_site(origin: str, fetch_site: str, host: str) -> bool:
    """Return whether a page of another site asks, by the headers Origin, Sec-Fetch-Site and Host; empty: not sent.

    Browsers send them, and a page cannot change them; programs such as curl send neither of the first two.
    """
    elsewhere = bool(origin) and urlsplit(origin).netloc.lower() != host.lower()
    return elsewhere or fetch_site.lower() in ("cross-site", "same-site")
