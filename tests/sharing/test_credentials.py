"""A password reaches no log, no error and no output, however a client fails; nor does one in a storage's URL."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.job_client import JobClient
from penstock.schemas.plan import Plan as Needs
from penstock.schemas.plan import Role
from penstock.transport import Partition
from penstock.transport.kafka import KafkaConfig, KafkaTransport
from penstock.transport.requirements import require
from tests.coordinator.jobs import Plan, make_job

from .secured import PATIENCE_S, SecuredBroker, make_certificate, password_of

pytestmark = pytest.mark.kafka

USER = "dave"
WRONG = "not-the-secret-91c4"
NOBODY = "127.0.0.1:1"
SHORT_S = 1.0
JOB = """
import penstock

job = penstock.Job("secretive")
job.operator("op", coordinator=penstock.OperatorCoordinator, subtask=penstock.Subtask, parallelism=1)
"""


@pytest.fixture(scope="module")
def configs(secured_broker: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, KafkaConfig]:
    """Ways to fail: each knows a password, the right one or a wrong one."""
    other_ca, _ = make_certificate(tmp_path_factory.mktemp("other-ca"))
    right = secured_broker.client_settings(USER)
    return {
        "wrong password": KafkaConfig(secured_broker.bootstrap, secured_broker.client_settings(USER, WRONG)),
        "unreachable": KafkaConfig(NOBODY, right),
        "wrong certificate": KafkaConfig(secured_broker.bootstrap, {**right, "ssl.ca.location": str(other_ca)}),
        "no rights": KafkaConfig(secured_broker.bootstrap, right),
        "refused setting": KafkaConfig(secured_broker.bootstrap, {**right, "security.protocol": password_of(USER)}),
    }


MODES = ["wrong password", "unreachable", "wrong certificate", "no rights", "refused setting"]


def assert_silent(text: str) -> None:
    for secret in (password_of(USER), WRONG):
        at = text.find(secret)
        assert at < 0, f"a password stands in: {text[max(0, at - 200) : at]}***"


def all_of(error: BaseException) -> str:
    """Everything that an error can be asked for: its own words, its arguments, and the errors behind it."""
    told, seen, waiting = [], set(), [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        told += [repr(one), str(one), repr(one.args), repr(vars(one)), *traceback.format_exception(one)]
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += [argument for argument in one.args if isinstance(argument, BaseException)]
    return "\n".join(told)


@pytest.mark.parametrize("mode", MODES)
def test_no_error_and_no_log_line_has_the_password(
    mode: str, configs: dict[str, KafkaConfig], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = make_job(Plan(), "secretive").settings
    partition = Partition(settings.topics.acks, 0)
    transport = KafkaTransport.from_config(configs[mode])
    attempts: list[Callable[[], Any]] = [
        lambda: transport.describe_topics([partition.topic], SHORT_S),
        lambda: require(settings, transport, list(Role), SHORT_S, creates=True),
        lambda: transport.truncate({partition: 0}, SHORT_S),
        lambda: transport.claim_log(settings.topics.checkpoints, settings.topics.transactional_id, SHORT_S),
        lambda: transport.read_all(partition, SHORT_S),
    ]
    failed = 0
    for attempt in attempts:
        try:
            attempt()
        except Exception as error:
            failed += 1
            assert_silent(all_of(error))
    assert failed >= 4, "the ways to fail do fail"
    for thing in (transport, transport.config, JobClient(transport, "secretive"), dataclasses.replace(configs[mode])):
        assert_silent(repr(thing))
        assert_silent(str(thing))
    heard = capfd.readouterr()
    assert_silent(caplog.text)
    assert_silent(heard.out + heard.err)


def test_a_writer_that_may_not_write_does_not_tell_it_either(configs: dict[str, KafkaConfig]) -> None:
    writer = KafkaTransport.from_config(configs["no rights"]).writer()
    outcomes: list[Exception | None] = []
    writer.append(Partition("penstock.secretive.acks", 0), b"x", None, lambda _, error: outcomes.append(error))
    writer.flush(PATIENCE_S)
    writer.close(0.0)
    (error,) = outcomes
    assert error is not None
    assert_silent(all_of(error))


def client_file(config: KafkaConfig, folder: Path) -> Path:
    path = folder / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.client_settings.items()))
    return path


def test_no_command_prints_the_password(configs: dict[str, KafkaConfig], tmp_path: Path) -> None:
    """With --debug and --json, in processes of their own: standard output, errors and logs of each."""
    file = tmp_path / "secretive_job.py"
    file.write_text(JOB)
    started = []
    for mode in MODES:
        folder = tmp_path / mode.replace(" ", "-")
        folder.mkdir()
        where = ["--broker", configs[mode].bootstrap, "--client-config", str(client_file(configs[mode], folder))]
        for command in (["doctor", "secretive"], ["coordinator", str(file)]):
            arguments = [sys.executable, "-m", "penstock.cli", *command, *where, "--debug", "--json"]
            started.append(
                subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
    failed = 0
    for process in started:
        out, _ = process.communicate(timeout=120)
        assert_silent(out)
        failed += process.returncode != 0
    assert failed >= len(started) // 2, "the ways to fail do fail"


def test_a_plan_says_nothing_of_the_clients_own_settings() -> None:
    needs = Needs(make_job(Plan(), "secretive").settings)
    told = json.dumps([dict(needs.client_settings(role)) for role in Role])
    assert "sasl" not in told and "ssl" not in told


def test_a_password_in_a_storages_url_shows_in_no_repr() -> None:
    job = make_job(Plan(), "secretive", state_storage=f"s3://me:{password_of(USER)}@bucket/states")
    for thing in (job, job.settings, Needs(job.settings)):
        assert_silent(repr(thing))


@pytest.mark.spark
def test_spark_tells_nobody(secured_broker: SecuredBroker) -> None:
    """Its configuration, its own log, and the errors of its tasks, where the client settings travel to executors."""
    settings = make_job(Plan(), "secretive-on-spark").settings
    secured_broker.grant(USER, Needs(settings).grants())
    told = {
        "job": settings.name,
        "broker": secured_broker.bootstrap,
        "client_settings": secured_broker.client_settings(USER),
    }
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("spark_run.py"))],
        input=json.dumps(told), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert "ended:" in ran.stdout, ran.stderr[-3000:]
    assert "told to fail" in ran.stdout + ran.stderr
    assert_silent(ran.stdout)
    assert_silent(ran.stderr)
