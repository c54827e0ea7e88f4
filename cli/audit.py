"""`penstock audit`: whether a job's topics say one consistent history, and exactly where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.markup import escape
from rich.progress import Progress as Bar
from rich.table import Table

from ..audit import Report
from ..audit import audit as audited
from ..audit.reading import Progress
from ..schemas.errors import JobRefused
from ..schemas.topics import DEFAULT_PREFIX, TopicNames
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, connected
from .console import Console
from .exits import Exit, UsageError
from .to_json import plain

LONG_LOG = 50_000
"""Records of a partition from which on its reading is shown."""


def audit(
    job: JobArgument,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check a job's logs from its topics alone, and say exactly where they are damaged; the job may run meanwhile."""
    console = Console(as_json=as_json)
    TopicNames(prefix, job)
    with connected(broker, client_config) as transport, _shown(console) as tell:
        try:
            report = audited(transport, job, prefix, progress=tell)
        except JobRefused as error:
            raise UsageError(str(error)) from None
    if as_json:
        console.data(as_plain(report))
    else:
        _show(console, report)
    return Exit.DONE if report.healthy else Exit.DAMAGED


@contextmanager
def _shown(console: Console) -> Iterator[Progress]:
    """Takes what is being read, and shows long partitions as they are, where there is a terminal."""
    if not console.live:
        yield lambda *_: None
        return
    tasks: dict[str, Any] = {}
    with Bar(console=console.rich, transient=True) as bar:

        def tell(partition: str, done: int, of: int) -> None:
            if of >= LONG_LOG and partition not in tasks:
                tasks[partition] = bar.add_task(escape(partition), total=of)
            if partition in tasks:
                bar.update(tasks[partition], completed=done, visible=done < of)

        yield tell


def as_plain(report: Report) -> dict[str, Any]:
    """For programs."""
    return {
        "job": report.job,
        "healthy": report.healthy,
        "checked": dict(report.checked),
        "void": dict(report.void),
        "unjudged": dict(report.unjudged),
        "findings": [plain(finding) for finding in report.findings],
        "more_findings": report.more,
    }


def _show(console: Console, report: Report) -> None:
    if report.healthy:
        console.show(f"{report.job}: healthy")
    else:
        found = len(report.findings) + report.more
        console.show(f"{report.job}: DAMAGED, {found} {'place' if found == 1 else 'places'}")
        for finding in report.findings:
            console.show(f"  {finding.topic}[{finding.partition}] offset {finding.offset}: {finding.kind.value}")
            console.show(f"    expected  {finding.expected}")
            console.show(f"    found     {finding.found}")
        if report.more:
            console.show(f"  and {report.more} more")
    for what, counts in (
        ("checked", report.checked),
        ("of no effect, and no damage", report.void),
        ("not judged", report.unjudged),
    ):
        if counts:
            table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
            table.add_column(justify="right")
            table.add_column()
            for name, count in sorted(counts.items()):
                table.add_row(f"{count:,}", escape(name))
            console.show(f"{what}:")
            console.show(table)
