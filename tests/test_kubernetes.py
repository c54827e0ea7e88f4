"""The manifests for Kubernetes: by its schemas, by Spark's settings, and by the command line that they run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from penstock.cli import main
from penstock.cli.doctor_spark import spark_findings

FILE = Path(__file__).parents[1] / "docker" / "kubernetes" / "job.yaml"
MANIFESTS: dict[str, dict[str, Any]] = {
    f"{document['kind']}/{document['metadata']['name']}": document
    for document in yaml.safe_load_all(FILE.read_text(encoding="utf-8"))
}
VERSIONS = ("1.30", "1.34")


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any] = MANIFESTS[name]["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_each_manifest_is_what_the_schema_of_kubernetes_wants(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_a_misspelt_field_would_be_refused() -> None:
    wrong = copy.deepcopy(MANIFESTS["Deployment/penstock-coordinator"])
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_the_driver_has_the_settings_that_doctor_wants() -> None:
    arguments = [word.removeprefix("--conf=") for word in container("Job/penstock-driver")["args"]]
    settings = dict(word.split("=", 1) for word in arguments if word.startswith("spark."))
    settings["spark.master"] = next(word.partition("=")[2] for word in arguments if word.startswith("--master="))
    found = {check: state for check, state, _, _ in spark_findings(settings, 8) if not check.endswith("Spark")}
    assert set(found.values()) == {"ok"}, found


def test_executors_reach_the_driver_by_its_service_and_ports() -> None:
    service = MANIFESTS["Service/penstock-driver"]
    arguments = container("Job/penstock-driver")["args"]
    assert f"--conf=spark.driver.host={service['metadata']['name']}" in arguments
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert f"--conf=spark.driver.port={ports['rpc']}" in arguments
    assert f"--conf=spark.driver.blockManager.port={ports['blocks']}" in arguments
    labels = MANIFESTS["Job/penstock-driver"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_coordinators_command_has_these_options_and_serves_the_probes_port() -> None:
    coordinator = container("Deployment/penstock-coordinator")
    words = [*coordinator["command"], *coordinator["args"]]
    assert words[1:4] == ["-m", "penstock", "coordinator"]
    assert main([*words[3:], "--help"]) == 0, "each option is known"
    port = coordinator["ports"][0]
    assert words[words.index("--metrics-port") + 1] == str(port["containerPort"])
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz"), ("startupProbe", "/livez")):
        assert coordinator[probe]["httpGet"] == {"path": path, "port": port["name"]}
