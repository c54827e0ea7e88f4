"""Finding Java, with scripts in place of real ones."""

from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker, JavaNotFound, JavaTooOld, find_java


def fake_java(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def says(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2021-01-19' >&2"""


def test_without_any_java_the_error_says_what_is_needed_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFound, match=r"no java command on the PATH.*Java 17 or newer.*install") as caught:
        EmbeddedBroker(tmp_path / "data").start()
    assert not isinstance(caught.value, JavaTooOld)


def test_a_wrong_java_home_is_an_error_although_the_path_has_a_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "good", says("17.0.9"))
    monkeypatch.setenv("PATH", str(tmp_path / "good" / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "wrong"))
    with pytest.raises(JavaNotFound, match=rf"JAVA_HOME is {tmp_path}/wrong"):
        find_java()


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("1.8.0_402", 8), ("16-ea", 16)])
def test_a_java_that_is_too_old_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    java = fake_java(tmp_path, says(version))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaTooOld, match=rf"{java} \(from JAVA_HOME\) is Java {major}, .*17 or newer"):
        find_java()


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.1"])
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java = fake_java(tmp_path, f"echo 'Picked up JAVA_TOOL_OPTIONS: -Da=b' >&2; {says(version)}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


@pytest.mark.parametrize("script", ["echo 'Unable to locate a Java Runtime.' >&2; exit 1", "echo hello"])
def test_a_command_that_is_no_java_is_not_found_and_its_words_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match=r"Unable to locate|hello"):
        find_java()
