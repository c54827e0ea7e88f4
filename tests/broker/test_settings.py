"""The settings file and what may be added to it."""

import stat
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker, InvalidDataPath, InvalidProperty
from penstock.broker.node import Node
from penstock.broker.settings import render, server_properties


def test_the_file_is_ascii_whatever_the_path_holds() -> None:
    text = render({"log.dirs": "/data/é \U0001f600\\x", "a key": " value"})
    assert text == "log.dirs=/data/\\u00e9 \\ud83d\\ude00\\\\x\na\\ key=\\ value\n"


def test_extra_properties_win_over_defaults(tmp_path: Path) -> None:
    settings = server_properties(tmp_path, 1, 2, {"auto.create.topics.enable": "true", "message.max.bytes": "5"})
    assert settings["auto.create.topics.enable"] == "true"
    assert settings["message.max.bytes"] == "5"


def test_no_data_goes_by_itself(tmp_path: Path) -> None:
    settings = server_properties(tmp_path, 1, 2, {})
    assert settings["log.retention.ms"] == settings["log.retention.bytes"] == "-1"


def test_an_extra_property_for_the_brokers_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProperty, match=r"listeners, log\.dirs"):
        server_properties(tmp_path, 1, 2, {"log.dirs": "/elsewhere", "listeners": "X://:1"})


def test_a_data_path_with_a_comma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataPath, match=r"comma.*a,b"):
        EmbeddedBroker(tmp_path / "a,b").start()
    assert not (tmp_path / "a,b").exists()


def test_a_data_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidDataPath, match="choose another"):
        EmbeddedBroker(tmp_path / "file").start()


def test_the_data_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    node = Node(tmp_path / "above" / "data")
    node.create()
    assert stat.S_IMODE(node.data_dir.stat().st_mode) == 0o700
    (node.data_dir / "topics").chmod(0o755)  # as earlier releases left it
    node.create()
    assert stat.S_IMODE((node.data_dir / "topics").stat().st_mode) == 0o700
