"""Schemas are for ever: every published one has golden bytes that today's code reads as it always did."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from penstock.schemas import codec, publish
from penstock.schemas.compat import incompatibilities
from penstock.schemas.errors import UnreadableRecord, WrittenByNewer
from penstock.schemas.events import Reset, Stop
from tests.schemas.golden_files import FOLDER, golden, meaning, published, schema_header, write_missing
from tests.schemas.values import example, plain

SCHEMAS = published()
NEWEST = sorted({s.rsplit(".", 1)[0]: s for s in sorted(SCHEMAS, key=lambda s: int(s.rsplit(".", 1)[1]))}.values())


def assert_still_means(expected: Any, found: Any, where: str) -> None:
    """``found`` says all that ``expected`` says; fields added since then may stand beside it."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert expected.keys() <= found.keys(), f"{where} has lost {expected.keys() - found.keys()}"
        for key, value in expected.items():
            assert_still_means(value, found[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        assert len(found) == len(expected), where
        for at, (then, now) in enumerate(zip(expected, found, strict=True)):
            assert_still_means(then, now, f"{where}[{at}]")
    else:
        assert found == expected, where


def documented(schema: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every record and field within a schema, with its doc."""
    match schema:
        case {"type": "record", "name": name, "fields": fields}:
            yield f"{where} ({name})", schema.get("doc", "")
            for field in fields:
                yield f"{name}.{field['name']}", field.get("doc", "")
                yield from documented(field["type"], f"{name}.{field['name']}")
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            yield from documented(inner, where)
        case list():
            for branch in schema:
                yield from documented(branch, where)


def test_every_record_class_has_a_published_schema() -> None:
    assert publish.unpublished() == [], "run: python -m penstock.schemas.publish"


def test_every_published_schema_has_golden_bytes_and_no_golden_bytes_lack_their_schema() -> None:
    assert sorted(path.name.removesuffix(".hex") for path in FOLDER.glob("*.hex")) == SCHEMAS, (
        "run: python -m tests.schemas.golden_files (as soon as a schema is published: older versions cannot be written)"
    )
    assert sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json")) == SCHEMAS


def test_versions_of_a_record_count_from_one_without_a_hole() -> None:
    versions: dict[str, list[int]] = {}
    for schema in SCHEMAS:
        name, version = schema.rsplit(".", 1)
        versions.setdefault(name, []).append(int(version))
    assert {name: sorted(found) for name, found in versions.items()} == {
        name: list(range(1, len(found) + 1)) for name, found in versions.items()
    }


def test_no_two_published_schemas_share_a_fingerprint() -> None:
    shared = [header.hex() for header, n in Counter(map(schema_header, SCHEMAS)).items() if n > 1]
    assert shared == []


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_published_schema_is_the_one_its_golden_bytes_were_written_under(schema: str) -> None:
    assert golden(schema)[:10] == schema_header(schema), f"{schema}.avsc was changed after it was published"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_golden_bytes_mean_today_what_they_meant_when_they_were_written(schema: str) -> None:
    record = codec.decode(golden(schema))
    assert type(record) is codec.record_classes()[schema.rsplit(".", 1)[0]]
    assert_still_means(meaning(schema), plain(record), schema)


@pytest.mark.parametrize("schema", NEWEST)
def test_todays_code_writes_the_newest_golden_bytes(schema: str) -> None:
    assert codec.encode(codec.decode(golden(schema))).hex() == golden(schema).hex()


@pytest.mark.parametrize("schema", NEWEST)
def test_the_newest_golden_record_has_every_field_filled(schema: str) -> None:
    """An absent optional field or an empty array would leave what is inside it untested."""
    record = codec.decode(golden(schema))
    assert plain(record) == plain(example(type(record)))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_todays_class_can_read_whatever_a_published_schema_can_write(schema: str) -> None:
    writer = next(s for n, s in codec.published_schemas() if codec.header_of(s) == schema_header(schema))
    assert incompatibilities(reader=codec.current_schema(schema.rsplit(".", 1)[0]), writer=writer) == []


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_record_and_every_field_of_a_schema_says_what_it_is(schema: str) -> None:
    by_header = {codec.header_of(s): s for _, s in codec.published_schemas()}
    silent = [where for where, doc in documented(by_header[schema_header(schema)], schema) if not doc.strip()]
    assert silent == []


def test_the_format_on_the_wire_is_marker_fingerprint_and_body() -> None:
    """Assembled by hand: a zigzag varint of 1 is 02, of -2 it is 03."""
    header = bytes.fromhex("c301") + schema_header("events.Reset.1")[2:]
    assert codec.encode(Reset(epoch=1, generation=-2)) == header + b"\x02\x03"


def test_writing_the_golden_files_again_changes_nothing() -> None:
    before = {path: path.read_bytes() for path in FOLDER.iterdir()}
    assert write_missing() == []
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before


@dataclasses.dataclass(frozen=True, slots=True)
class StopWithGrace:
    """Addressed to one attempt: a second version of Stop, as a later release might have it."""

    epoch: Annotated[int, "epoch of the coordinator"]
    attempt: Annotated[int, "the attempt that is to leave"]
    nonce: Annotated[str, "nonce of its Hello"]
    reason: Annotated[str, "why, for people"]
    superseded: Annotated[bool, "whether another attempt has taken its place"] = False
    grace_ms: Annotated[int, "how long it may take"] = 250
    tags: Annotated[tuple[str, ...], "words for people"] = ()


StopWithGrace.__name__ = "Stop"


class Release:
    """The codec of a release that knows the given classes and published schemas, in place of today's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def becomes(self, classes: dict[str, type], schemas: list[tuple[str, dict[str, Any]]]) -> None:
        for module in (codec, publish):
            self._patch.setattr(module, "record_classes", lambda: classes)
            self._patch.setattr(module, "published_schemas", lambda: schemas)
        forget()


def forget() -> None:
    codec._writers.cache_clear()
    codec._readers.cache_clear()


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    yield Release(monkeypatch)
    monkeypatch.undo()
    forget()


STOP_1 = codec.current_schema("events.Stop")
STOP = Stop(epoch=1, attempt=2, nonce="n", reason="r")


def test_a_field_added_with_a_default_reads_as_that_default_from_records_written_before(release: Release) -> None:
    written_before = codec.encode(STOP)
    release.becomes({"events.Stop": StopWithGrace}, [("events.Stop", STOP_1)])
    stop_2 = codec.current_schema("events.Stop")
    release.becomes({"events.Stop": StopWithGrace}, [("events.Stop", STOP_1), ("events.Stop", stop_2)])
    old: Any = codec.decode(written_before)
    assert old == StopWithGrace(1, 2, "n", "r", False, grace_ms=250, tags=())
    assert codec.decode(golden("events.Stop.1")) == StopWithGrace(**meaning("events.Stop.1"), grace_ms=250, tags=())  # type: ignore[arg-type]
    new: Any = StopWithGrace(1, 2, "n", "r", False, grace_ms=7, tags=("a", "b"))
    assert codec.encode(new)[:10] == codec.header_of(stop_2) != codec.header_of(STOP_1)
    assert codec.decode(codec.encode(new)) == new


def test_a_record_of_a_newer_release_is_unreadable_and_says_so(release: Release) -> None:
    release.becomes({"events.Stop": StopWithGrace}, [])
    new: Any = StopWithGrace(1, 2, "n", "r")
    written_later = codec.encode(new)
    release.becomes({"events.Stop": Stop}, [("events.Stop", STOP_1)])
    with pytest.raises(WrittenByNewer, match=r"unknown schema .*: written by a newer Penstock than this"):
        codec.decode(written_later)


def test_a_changed_class_is_published_as_the_next_version_beside_the_old_file(release: Release, tmp_path: Path) -> None:
    release.becomes({"events.Stop": StopWithGrace}, [("events.Stop", STOP_1)])
    assert publish.unpublished() == [("events.Stop", 2)]
    assert publish.publish(tmp_path) == [tmp_path / "events.Stop.2.avsc"]
    assert json.loads((tmp_path / "events.Stop.2.avsc").read_text()) == codec.current_schema("events.Stop")


def test_a_class_that_is_no_longer_written_leaves_its_records_unreadable_but_harmless(release: Release) -> None:
    written_before = codec.encode(STOP)
    release.becomes({"events.Reset": Reset}, codec.published_schemas())
    with pytest.raises(UnreadableRecord):
        codec.decode(written_before)
