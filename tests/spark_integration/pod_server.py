"""Kubernetes as Spark's client of it needs it: an API server whose pods are processes of this machine.

It keeps pods, starts the container of each as Spark's own image does, reports how it ended, and streams changes to
watches. It has no scheduler, kubelet, network, rights or volumes.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock.broker.java import find_java

Pod = dict[str, Any]
IP = "127.0.0.1"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
BACKEND_OPTIONS = {  # what the entry point of Spark's image passes
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


class Pods:
    """Pods of one namespace, a process each."""

    def __init__(self, folder: Path, image: Mapping[str, str]) -> None:
        self._folder, self._image = folder, image
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._changed = threading.Condition()
        self.pods: dict[str, Pod] = {}
        self.created: list[str] = []
        self.changes: list[tuple[str, Pod]] = []
        self.closed = False

    def create(self, pod: Pod) -> Pod:
        name = pod["metadata"]["name"]
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        pod["status"] = {"phase": "Running", "podIP": IP, "containerStatuses": [self._container(pod, {"running": {}})]}
        with self._changed:
            assert not self.closed and name not in self.pods
            self.created.append(name)
            self._processes[name] = process = self._start(pod)
            self._change("ADDED", pod)
        threading.Thread(target=self._await_end, args=(name, process), daemon=True).start()
        return pod

    def delete(self, name: str) -> None:
        with self._changed:
            if name in self.pods:
                self._processes[name].kill()
                self._change("DELETED", self.pods[name])

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
            for process in self._processes.values():
                process.kill()
        for process in self._processes.values():
            process.wait(60)

    def change(self, n: int) -> tuple[str, Pod] | None:
        """Return the ``n``-th change, as soon as there is one; None once the server is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self.changes) > n)
            return None if self.closed else self.changes[n]

    def _await_end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._changed:
            if name in self.pods:
                ended = json.loads(json.dumps(self.pods[name]))
                ended["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
                ended["status"]["containerStatuses"] = [self._container(ended, {"terminated": {"exitCode": abs(code)}})]
                self._change("MODIFIED", ended)

    def _change(self, kind: str, pod: Pod) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self.changes) + 1)
        if kind == "DELETED":
            del self.pods[pod["metadata"]["name"]]
        else:
            self.pods[pod["metadata"]["name"]] = pod
        self.changes.append((kind, pod))
        self._changed.notify_all()

    @staticmethod
    def _container(pod: Pod, state: dict[str, Any]) -> dict[str, Any]:
        return {"name": pod["spec"]["containers"][0]["name"], "state": state}

    def _start(self, pod: Pod) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        assert container["args"] == ["executor"]
        fields = {"status.podIP": IP, "metadata.name": pod["metadata"]["name"]}
        given = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
            if each.get("value") is not None or "valueFrom" in each
        }
        environment = {**self._image, **given}
        java_options = [value for name, value in sorted(given.items()) if name.startswith("SPARK_JAVA_OPT_")]
        folder = self._folder / fields["metadata.name"]
        folder.mkdir()
        with (folder / "stderr").open("wb") as log:
            return subprocess.Popen(
                [
                    str(find_java()),
                    *java_options,
                    f"-Xmx{environment['SPARK_EXECUTOR_MEMORY']}",
                    *("-cp", f"{environment['SPARK_HOME']}/jars/*", BACKEND),
                    *(word for option, name in BACKEND_OPTIONS.items() for word in (option, environment[name])),
                ],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pods: Pods

    def do_GET(self) -> None:
        path, query = self._asked()
        if self.headers.get("Upgrade"):  # no web socket: the client falls back to a stream of lines
            self._answer(503, {"kind": "Status", "code": 503})
        elif path[-1:] != ["pods"]:
            self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        elif query.get("watch") == ["true"]:
            self._stream(int(query.get("resourceVersion", ["0"])[0] or 0))
        else:
            items = list(self.pods.pods.values())
            version = str(len(self.pods.changes))
            self._answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version},
                               "items": items})  # fmt: skip

    def do_POST(self) -> None:
        path, _ = self._asked()
        sent = self._body()
        self._answer(201, self.pods.create(sent) if path[-1] == "pods" else sent)

    def do_PATCH(self) -> None:
        path, _ = self._asked()
        self._body()
        self._answer(200, self.pods.pods.get(path[-1], {"kind": "Status", "status": "Success"}))

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        self._body()
        for name in list(self.pods.pods) if path[-1] == "pods" else path[-1:] if path[-2] == "pods" else []:
            self.pods.delete(name)
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def log_message(self, format: str, *args: Any) -> None:
        print(format % args, flush=True)

    def _asked(self) -> tuple[list[str], dict[str, list[str]]]:
        asked = urlsplit(self.path)
        return asked.path.strip("/").split("/"), parse_qs(asked.query)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")

    def _answer(self, code: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, since: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            while (change := self.pods.change(since)) is not None:
                since += 1
                kind, pod = change
                line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
        except OSError:  # the client has gone
            return


@contextmanager
def pod_server(folder: Path, spark_home: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, Pods]]:
    """Start the server; give its URL, and the pods. At the end all their processes are killed."""
    folder.mkdir()
    pods = Pods(folder, {"PATH": os.environ["PATH"], "SPARK_HOME": str(spark_home), **environment})
    handler = type("Handler", (_Handler,), {"pods": pods})
    server = ThreadingHTTPServer((IP, 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{IP}:{server.server_address[1]}", pods
    finally:
        pods.close()
        server.shutdown()
        server.server_close()
