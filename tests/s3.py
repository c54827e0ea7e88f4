"""An S3 server on loopback with faults: moto's, behind a filter that counts requests, delays and refuses them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Request = tuple[str, str]
"""A method and a path."""

_DENIED = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'
_RELEASED = "503 Service Unavailable"


class S3Server:
    """One server in threads of this process. Every fault holds until it is taken back."""

    def __init__(self) -> None:
        from moto.s3.models import s3_backends
        from moto.server import create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log_request(self, *_: object) -> None: ...

        s3_backends.reset()  # moto keeps its buckets in this process
        self._application = create_backend_app("s3")
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3-server", daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.requests: Counter[Request] = Counter()
        self.denied: Callable[[str, str], bool] = lambda method, path: False
        """Which requests, by method and path with query, are answered with AccessDenied."""
        self.delay_s = 0.0
        """How long each answer takes."""
        self._answers = threading.Event()
        self._answers.set()
        self._closing = threading.Event()
        self._silent_for: Callable[[str], bool] = lambda method: False
        self._asked_in_vain = threading.Event()

    @property
    def environment(self) -> dict[str, str]:
        """What makes s3fs, here and in other processes, use this server."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    @contextmanager
    def silent(self, method: str | None = None) -> Iterator[threading.Event]:
        """Accept requests, those of one method or all, and answer none; the event is set once one has come."""
        self._asked_in_vain.clear()
        self._silent_for = lambda asked: method is None or asked == method
        self._answers.clear()
        try:
            yield self._asked_in_vain
        finally:
            self._answers.set()

    def object_rights_only(self) -> None:
        """Allow to get, put and delete objects; where one is missing, answer as S3 does without the right to list."""

        def denied(method: str, path: str) -> bool:
            of_bucket = path.split("?")[0].strip("/").count("/") == 0
            return of_bucket or (method in ("GET", "HEAD") and not self.holds(path.split("?")[0]))

        self.denied = denied

    def holds(self, path: str) -> bool:
        """Whether there is an object at a path such as /bucket/key."""
        bucket, _, key = path.strip("/").partition("/")
        return bucket in self._buckets and key in self._buckets[bucket].keys

    @property
    def buckets(self) -> set[str]:
        return set(self._buckets)

    def make_bucket(self, name: str) -> None:
        self._backend.create_bucket(name, "us-east-1")

    def lose_bucket(self, name: str) -> None:
        """Delete a bucket with all it holds."""
        from moto.s3.models import s3_backends

        del self._buckets[name]
        s3_backends.bucket_accounts.pop(name, None)

    @property
    def _backend(self) -> Any:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]

    @property
    def _buckets(self) -> dict[str, Any]:
        return self._backend.buckets  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop listening: from now on connections are refused."""
        self._answers.set()
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ["QUERY_STRING"]
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        self.requests[method, path] += 1
        if not self._answers.is_set() and self._silent_for(method):
            self._asked_in_vain.set()
            self._answers.wait()
            start_response(_RELEASED, [])
            return [b""]
        self._closing.wait(self.delay_s)
        if self.denied(method, path):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"" if method == "HEAD" else _DENIED]
        return self._application(environ, start_response)  # type: ignore[no-any-return]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server that s3fs uses in the body, here and in processes that are started there."""
    import s3fs

    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # it keeps those of an endpoint before
        try:
            yield server
        finally:
            server.close()
            s3fs.S3FileSystem.clear_instance_cache()
