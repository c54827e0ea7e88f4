"""What a stranger does wrong is refused by name, the rules stay, and the job goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.testing import LocalJob
from penstock.transport.ports import Partition

from .driving import PATIENCE_S, Rule, ask, one_more_checkpoint, polling_job, require_one_version, rule

INITIAL = [Rule("first", 1.0)]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"{'set': []}", "JSON"),
        (b"", "JSON"),
        (b"[" * 100_000, ""),
        (b'{"set": [{"name": "a", "factor": "1"}]}', "rule 0, field factor of Rule"),
        (b'{"set": [{"name": "a", "factor": 1e999}]}', "not JSON"),
        (b'{"set": {"name": "a", "factor": 1}}', "the rule set: Input should be a valid array"),
        (b'{"set": null}', "the rule set: Input should be a valid array"),
        (b'{"rollback": 99}', "version 99 is not kept; kept are: 0"),
        (b'{"set": [], "rollback": 1}', "is no request about rules"),
    ],
    ids=str,
)
def test_a_request_that_is_wrong_is_refused_and_changes_nothing(payload: bytes, says: str) -> None:
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 1)) as running:
        reply = running.client.request("score", payload)
        assert not reply.accepted
        assert says in reply.outcome
        shown = ask(running, {"show": True})
        one_more_checkpoint(running)
        running.check()
    assert (shown["version"], len(shown["rules"])) == (0, 1)


def test_a_request_of_ten_megabytes_is_refused_where_it_is_made() -> None:
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 1)) as running:
        with pytest.raises(PenstockError, match="larger than"):
            running.client.request("score", json.dumps({"set": [rule("x")] * 350_000}).encode())
        one_more_checkpoint(running)
        assert ask(running, {"show": True})["version"] == 0


def test_an_empty_set_is_a_set() -> None:
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 2)) as running:
        assert ask(running, {"set": []})["version"] == 1
        one_more_checkpoint(running, 2)
    assert require_one_version(running, 2)[-1].subtasks[1]["rules"] == []


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def half(path: Path) -> None:
    path.write_text(json.dumps([rule("b")])[:-5])


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (Path.unlink, "there is no file"),
        (a_folder, "IsADirectoryError"),
        (half, "it is not JSON"),
        (lambda path: path.write_text(""), "it is not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "it is not JSON"),
        (lambda path: path.write_text('[{"name": 3, "factor": 1}]'), "rule 0, field name of Rule"),
    ],
    ids=["vanished", "folder", "half", "empty", "bytes", "type"],
)
def test_a_file_that_is_wrong_leaves_the_rules_until_it_is_mended(
    tmp_path: Path, harm: Callable[[Path], Any], says: str
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps([rule("a")]))
    with LocalJob(polling_job(penstock.Rules(Rule, source=str(file), interval=0.02), 2)) as running:
        one_more_checkpoint(running)
        harm(file)
        running.wait_for(lambda _: says in str(ask(running, {"show": True})), PATIENCE_S)
        one_more_checkpoint(running)
        running.crash_coordinator()  # a rollback neither loses the rules
        running.replace_coordinator()
        one_more_checkpoint(running, 2)
        assert [each["name"] for each in ask(running, {"show": True})["rules"]] == ["a"]
        if file.is_dir():
            file.rmdir()
        file.write_text(json.dumps([rule("c")]))
        running.wait_for(lambda _: ask(running, {"show": True})["version"] == 2, PATIENCE_S)
        assert "source_trouble" not in ask(running, {"show": True})
        one_more_checkpoint(running, 2)
    assert require_one_version(running, 2)[-1].names == ["c"]


def test_a_file_that_was_never_there_is_named_beside_the_initial_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = penstock.Rules(Rule, source=str(tmp_path / "ruels.json"), initial=INITIAL, interval=0.02)
    with LocalJob(polling_job(rules, 1)) as running:
        one_more_checkpoint(running, 3)
        assert "there is no file" in ask(running, {"show": True})["source_trouble"]
    assert sum("ruels.json" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("source", [["topic:a", "topic:b"], ("/a.json", "/b.json"), "topic:"], ids=str)
def test_one_source_is_taken_and_not_two(source: Any) -> None:
    with pytest.raises(penstock.errors.ConfigurationError, match="the source"):
        penstock.Rules(Rule, source=source, kafka={"bootstrap.servers": "a:1"})


def test_a_password_in_the_sources_url_is_in_no_topic() -> None:
    rules = penstock.Rules(Rule, source="memory://user:secret@host/rules.json", initial=INITIAL, interval=0.02)
    with LocalJob(polling_job(rules, 1)) as running:
        one_more_checkpoint(running, 2)
        transport = running._inner
        written = b"".join(
            record.value or b""
            for topic in transport.list_topics(running.settings.topics.root)
            for record in transport.read_all(Partition(topic, 0))
        )
    assert b"memory://" in written and b"secret" not in written
