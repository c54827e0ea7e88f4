"""A job's status over HTTP: Prometheus metrics, and probes of liveness and readiness.

All is read when it is asked for: nothing is counted a second time.

Labels: job everywhere, operator and subtask where they apply. Counters count since the coordinator instance started;
those of events since the epoch began, which Prometheus takes for a restart of the counter.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..schemas.status import AT_WORK, Ending, JobStatus, SubtaskStatus
from .http_guard import is_ours
from .probes import not_alive, not_ready

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Numbers = Callable[[], Mapping[str, Mapping[str, float]]]
"""The users' own numbers, by operator and name: ``CoordinatorRuntime.numbers``."""

STATES = (*AT_WORK, *Ending)

_JOB_COUNTERS: dict[str, tuple[str, Callable[[JobStatus], float]]] = {
    "checkpoints_completed": ("Checkpoints completed.", lambda s: s.checkpoints_completed),
    "checkpoints_aborted": ("Checkpoints aborted.", lambda s: s.checkpoints_aborted),
}
_JOB_GAUGES: dict[str, tuple[str, Callable[[JobStatus], float]]] = {
    "epoch": ("Current epoch.", lambda s: s.epoch),
    "checkpoint_last_completed": ("Id of the last completed checkpoint, or -1.", lambda s: s.last_completed),
    "checkpoint_last_duration_seconds": ("From trigger to completion of the last one.", lambda s: s.last_duration_s),
    "checkpoints_pending": ("Checkpoints under way.", lambda s: len(s.pending)),
    "checkpoint_oldest_pending_seconds": (
        "Age of the oldest checkpoint under way.",
        lambda s: max((p.age_s for p in s.pending), default=0.0),
    ),
    "status_timestamp_seconds": ("When the coordinator last wrote its status.", lambda s: s.at_ms / 1000),
}
_SUBTASK_COUNTERS: dict[str, tuple[str, Callable[[SubtaskStatus], float]]] = {
    "events_sent": ("Events appended for the subtask.", lambda s: s.sent),
    "events_handled": ("Events that the subtask reported handled.", lambda s: s.handled),
    "events_received": ("Events received from the subtask.", lambda s: s.received),
    "subtask_failures": ("Failed attempts.", lambda s: s.failures),
}
_SUBTASK_GAUGES: dict[str, tuple[str, Callable[[SubtaskStatus], float]]] = {
    "subtask_up": ("1 while an attempt runs.", lambda s: float(s.phase == "running")),
    "subtask_attempt": ("Current attempt, or -1.", lambda s: s.attempt),
    "subtask_silent_seconds": ("Log time since its last record.", lambda s: s.silent_s),
    "events_held": ("Events held by the subtask's gateway.", lambda s: s.held),
    "gateway_open": ("0 while the subtask's gateway is closed for a checkpoint.", lambda s: float(s.gateway == "open")),
}


class JobCollector(Collector):
    """One job's metrics; ``status`` may return None before there is one."""

    def __init__(self, status: Callable[[], JobStatus | None], numbers: Numbers | None = None) -> None:
        self._status, self._numbers = status, numbers

    def describe(self) -> Iterable[Metric]:
        return []  # what there is depends on the job

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        if status is None:
            return
        yield from _job_metrics(status)
        yield from _subtask_metrics(status)
        yield from _own_metrics(status.job, self._numbers() if self._numbers is not None else {})


def _job_metrics(status: JobStatus) -> Iterable[Metric]:
    for name, (text, value) in _JOB_COUNTERS.items():
        counter = CounterMetricFamily(f"penstock_{name}", text, labels=["job"])
        counter.add_metric([status.job], value(status))
        yield counter
    for name, (text, value) in _JOB_GAUGES.items():
        gauge = GaugeMetricFamily(f"penstock_{name}", text, labels=["job"])
        gauge.add_metric([status.job], value(status))
        yield gauge
    failovers = CounterMetricFamily("penstock_failovers", "Failovers, by kind.", labels=["job", "kind"])
    failovers.add_metric([status.job, "region"], status.failovers_region)
    failovers.add_metric([status.job, "global"], status.failovers_global)
    yield failovers
    state = GaugeMetricFamily("penstock_job_state", "1 for the state that the job is in.", labels=["job", "state"])
    for each in STATES:
        state.add_metric([status.job, each], float(status.state == each))
    yield state
    dropped = CounterMetricFamily("penstock_records_dropped", "Records that did not count.", labels=["job", "reason"])
    for reason, count in status.dropped.items():
        dropped.add_metric([status.job, reason], count)
    yield dropped


def _subtask_metrics(status: JobStatus) -> Iterable[Metric]:
    labels = ["job", "operator", "subtask"]
    rows = [([status.job, o.operator, str(s.subtask)], s) for o in status.operators for s in o.subtasks]
    for name, (text, value) in _SUBTASK_COUNTERS.items():
        counter = CounterMetricFamily(f"penstock_{name}", text, labels=labels)
        for row, subtask in rows:
            counter.add_metric(row, value(subtask))
        yield counter
    for name, (text, value) in _SUBTASK_GAUGES.items():
        gauge = GaugeMetricFamily(f"penstock_{name}", text, labels=labels)
        for row, subtask in rows:
            gauge.add_metric(row, value(subtask))
        yield gauge


def _own_metrics(job: str, numbers: Mapping[str, Mapping[str, float]]) -> Iterable[Metric]:
    """Users choose any names: what Prometheus cannot spell is replaced, and the prefix keeps them apart from ours."""
    families: dict[str, GaugeMetricFamily] = {}
    for operator, own in numbers.items():
        for name, value in list(own.items()):
            spelled = "penstock_user_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            family = families.setdefault(
                spelled, GaugeMetricFamily(spelled, "A number of a user's coordinator.", labels=["job", "operator"])
            )
            family.add_metric([job, operator], value)
    yield from families.values()


class MetricsServer:
    """Serves ``/metrics``, ``/livez`` and ``/readyz`` of one job until ``close``. Raises OSError if the port is taken.

    The probes answer 200, or 503 with the reason (:mod:`.probes`); ``stands_by`` says that a process without a
    coordinator is ready to take over. A request must name ``host``, this machine or an address in digits: see
    :mod:`.http_guard`.
    """

    def __init__(
        self,
        status: Callable[[], JobStatus | None],
        port: int,
        host: str = "127.0.0.1",
        *,
        numbers: Numbers | None = None,
        stands_by: bool = False,
    ) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(JobCollector(status, numbers))
        self._server, self._thread = start_http_server(port, host, registry)
        names = frozenset(name.lower() for name in (host, "localhost", socket.gethostname()))
        app = self._server.get_app()
        assert app is not None
        self._server.set_app(_guarded(_with_probes(app, status, stands_by), names))
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


def _with_probes(app: WSGIApplication, status: Callable[[], JobStatus | None], stands_by: bool) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/livez", "/readyz"):
            return app(environ, start_response)
        newest, now_ms = status(), time.time() * 1000
        wrong = not_alive(newest, now_ms) if path == "/livez" else not_ready(newest, now_ms, stands_by=stands_by)
        start_response(
            "503 Service Unavailable" if wrong else "200 OK", [("content-type", "text/plain; charset=utf-8")]
        )
        return [(wrong or "ok").encode() + b"\n"]

    return answer


def _guarded(app: WSGIApplication, names: Collection[str]) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if is_ours(environ.get("HTTP_HOST", ""), names):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("content-type", "text/plain; charset=utf-8")])
        return [b"this is not the host that you asked for"]

    return answer
