"""A YARN cluster of one process: Hadoop's MiniYARNCluster, from Maven Central, on the jars that PySpark ships.

It has a resource manager and two node managers, and starts containers as processes: their signals, restarts and
working folders are YARN's own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from benchmarks.spark_jars import cached_jars
from penstock.broker import ivy
from penstock.broker.java import find_java
from penstock.broker.pinned_jars import Pin

NODES_MS = 240_000
END_S = 60.0
_OPENED = ("java.lang", "java.util", "java.net", "java.nio", "java.io")
_QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
QUICK_JVM = {"JAVA_TOOL_OPTIONS": " ".join(_QUICK)}
"""Of JVMs that live for seconds, containers' and others: with these options a start costs half the processor time."""
_SETTINGS = {
    "fs.defaultFS": "file:///",
    "yarn.nodemanager.disk-health-checker.enable": "false",  # a CI machine's disk may be nearly full
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.admin-env": "JAVA_TOOL_OPTIONS=" + QUICK_JVM["JAVA_TOOL_OPTIONS"],  # of containers
    "yarn.resourcemanager.am.max-attempts": "4",
    "yarn.scheduler.minimum-allocation-mb": "64",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}


class MiniYarn:
    """A cluster that runs: where its settings are, and what runs in its containers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "conf"

    def processes(self, words: str) -> list[int]:
        """Return the JVMs below the cluster's folder whose command has these words; launching shells are none."""
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                inside = Path(os.readlink(process / "cwd")).is_relative_to(self.folder)
            except OSError:  # it has ended
                continue
            if inside and command[0].endswith("java") and words in " ".join(command):
                found.append(int(process.name))
        return sorted(found)

    def said(self) -> str:
        """Return what all containers have written so far."""
        logs = [path for name in ("stdout", "stderr") for path in self.folder.rglob(f"container_*/{name}")]
        return "\n".join(path.read_text(errors="replace") for path in logs)


@contextmanager
def mini_yarn(folder: Path) -> Iterator[MiniYarn]:
    """Start a cluster in ``folder``; at the end its containers are killed with it."""
    folder.mkdir()
    cluster = MiniYarn(folder)
    spark_jars = ivy.pyspark_jars()
    with (folder / "yarn.log").open("w") as log:
        port, process = launch_gateway(
            jarpath=str(ivy.pyspark_jar("py4j")),
            classpath=":".join([*map(str, _jars()), f"{spark_jars}/*"]),
            javaopts=["-Xmx512m", *_QUICK, *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)],
            java_path=str(find_java()),
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            cwd=str(folder),
            return_proc=True,
        )
        try:
            gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
            _start(gateway, cluster)
            yield cluster
        finally:
            process.terminate()  # an orderly end: its hook stops the containers
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()
            for left in cluster.processes(""):
                os.kill(left, 9)


def _start(gateway: JavaGateway, cluster: MiniYarn) -> None:
    yarn = gateway.jvm.org.apache.hadoop.yarn
    settings = yarn.conf.YarnConfiguration()
    for name, value in _SETTINGS.items():
        settings.set(name, value)
    server = yarn.server.MiniYARNCluster("penstock", 2, 1, 1)
    server.init(settings)
    server.start()
    if not server.waitForNodeManagersToConnect(NODES_MS):
        raise TimeoutError(f"no node manager connected: {(cluster.folder / 'yarn.log').read_text()[-4000:]}")
    cluster.conf.mkdir()
    for name in ("yarn-site.xml", "core-site.xml"):
        file = gateway.jvm.java.io.FileOutputStream(str(cluster.conf / name))
        server.getConfig().writeXml(file)
        file.close()


def _jars() -> list[Path]:
    """Return the pinned jars (66 MB), fetched where the user's cache lacks them."""
    rows = Path(__file__).with_name("mini-yarn.jars").read_text(encoding="utf-8").splitlines()
    split = [row.split() for row in rows if not row.startswith("#")]
    pins = [Pin(*coordinates.split(":"), sha256, int(size)) for coordinates, sha256, size in split]
    return cached_jars("mini-yarn", pins)
