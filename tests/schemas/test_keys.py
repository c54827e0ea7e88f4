"""Which subtask owns a key never changes: neither the bytes of a key, nor their group, nor who owns the group."""

from __future__ import annotations

import io
import subprocess
import sys
import zlib
from collections.abc import Callable
from itertools import groupby
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.errors import ConfigurationError
from penstock.schemas.keys import Key, key_bytes, key_group, subtask_of_group
from tests.machines import check
from tests.rounds import rounds

STABLE: list[tuple[Key, str, int]] = [
    (None, "00", 13),
    (False, "0200", 125),
    (True, "0201", 107),
    (0, "0400", 123),
    (1, "0402", 87),
    (-1, "0401", 109),
    (63, "047e", 64),
    (64, "048001", 19),
    (-65, "048101", 82),
    (128, "048002", 41),
    (2**31, "048080808010", 51),
    (2**63 - 1, "04feffffffffffffffff01", 97),
    (-(2**63), "04ffffffffffffffffff01", 95),
    (0.0, "060000000000000000", 36),
    (1.0, "06000000000000f03f", 36),
    (-2.5, "0600000000000004c0", 16),
    (float("inf"), "06000000000000f07f", 52),
    (b"", "0800", 119),
    (b"AA", "08044141", 109),
    (b"\x00\xff", "080400ff", 34),
    ("", "0a00", 117),
    ("AA", "0a044141", 102),
    ("LaGuardia", "0a124c6147756172646961", 56),
    ("Zürich", "0a0e5ac3bc72696368", 66),
    ("東京", "0a0ce69db1e4baac", 25),
    ("x" * 64, "0a8001" + "78" * 64, 58),
    ((), "0c00", 115),
    (("AA",), "0c020a04414100", 68),
    (("AA", 17), "0c040a044141042200", 69),
    ((None, True, -1, 2.5, b"z", "z", ()), "0c0e000201040106000000000000044008027a0a027a0c0000", 15),
    ((("a",), ("b", 1)), "0c040c020a0261000c040a026204020000", 92),
]
"""Key, its bytes in hexadecimal, its group among 128. Never changed: records of users lie where it says."""

SCALARS = ["null", "boolean", "long", "double", "bytes", "string"]
NESTED_TWICE = [*SCALARS, {"type": "array", "items": [*SCALARS, {"type": "array", "items": SCALARS}]}]
"""The union as a schema; Avro cannot name it, so it ends somewhere."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=80),
    st.text(max_size=80),
)
keys = st.one_of(scalars, st.lists(scalars, max_size=4).map(tuple))
splits = st.integers(1, 2000).flatmap(lambda groups: st.tuples(st.just(groups), st.integers(1, groups)))

examples = pytest.mark.parametrize("round_", rounds())


@pytest.mark.parametrize("length", [*range(70), 127, 128, 200])
def test_the_group_of_a_text_is_that_of_its_bytes_whatever_its_length(length: int) -> None:
    """Section 9: the CRC of a key's bytes, however it is come by."""
    for key in ("k" * length, b"k" * length, "ü" * (length // 2)):
        assert key_group(key, 128) == zlib.crc32(key_bytes(key)) % 128


def crc_32(data: bytes) -> int:
    """The CRC-32 of ISO 3309, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def owners(groups: int, parallelism: int) -> list[int]:
    return [subtask_of_group(group, groups, parallelism) for group in range(groups)]


def as_lists(key: Any) -> Any:
    return [as_lists(part) for part in key] if isinstance(key, tuple) else key


@pytest.mark.parametrize(("key", "encoded", "group"), STABLE, ids=lambda value: repr(value)[:40])
def test_the_group_of_a_key_never_changes(key: Key, encoded: str, group: int) -> None:
    assert key_bytes(key).hex() == encoded
    assert key_group(key, 128) == group
    assert crc_32(bytes.fromhex(encoded)) % 128 == group, "the table itself does not follow the documented format"


@pytest.mark.parametrize(("key", "encoded"), [(key, encoded) for key, encoded, _ in STABLE])
def test_an_avro_library_reads_the_bytes_of_a_key(key: Key, encoded: str) -> None:
    data = io.BytesIO(bytes.fromhex(encoded))
    read = fastavro.schemaless_reader(data, fastavro.parse_schema(NESTED_TWICE), None)
    assert (read, data.read()) == (as_lists(key), b"")
    assert repr(read) == repr(as_lists(key)), "equal, and of another type"


def test_both_zeros_are_one_key() -> None:
    """They are equal, and one of them may come of a calculation."""
    assert key_bytes(-0.0) == key_bytes(0.0)
    assert key_bytes((1, -0.0)) == key_bytes((1, 0.0))


@pytest.mark.soak
@examples
def test_any_key_comes_through_an_avro_library_and_its_group_is_the_crc_of_its_bytes(round_: int) -> None:
    schema = fastavro.parse_schema(NESTED_TWICE)

    @given(keys, st.integers(1, 10_000))
    def holds(key: Key, groups: int) -> None:
        encoded = key_bytes(key)
        assert repr(fastavro.schemaless_reader(io.BytesIO(encoded), schema, None)) == repr(as_lists(key))
        assert key_group(key, groups) == crc_32(encoded) % groups

    check(holds, round_, examples=200)


def test_the_group_of_a_key_is_the_same_in_a_process_with_another_hash_seed() -> None:
    code = "from penstock.schemas.keys import key_group; print([key_group(k, 128) for k in ('AA', ('AA', 17), b'AA')])"
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.stdout.strip() == "[102, 69, 109]", ran.stderr


def test_a_subclass_of_a_key_type_is_the_same_key() -> None:
    class Carrier(str):
        __slots__ = ()

    assert key_bytes(Carrier("AA")) == key_bytes("AA")


@pytest.mark.parametrize("key", [[], ["AA"], {}, {"AA"}, object(), 1j, bytearray(b"AA"), ("AA", ["17"])])
def test_what_cannot_be_a_key_is_refused_with_what_can(key: Any) -> None:
    wrong = type(key[1] if isinstance(key, tuple) else key).__name__
    with pytest.raises(ConfigurationError, match=f"a {wrong} cannot be a key: use None, bool, int, .* or a tuple"):
        key_group(key, 128)


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, ("AA", 2**64)])
def test_a_number_beyond_64_bits_is_refused(key: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the key -?\d+ does not fit 64 bits; use a str"):
        key_group(key, 128)


@pytest.mark.parametrize(
    ("groups", "parallelism", "owned"),
    [
        (8, 1, [0, 0, 0, 0, 0, 0, 0, 0]),
        (8, 2, [0, 0, 0, 0, 1, 1, 1, 1]),
        (8, 3, [0, 0, 0, 1, 1, 1, 2, 2]),
        (8, 5, [0, 0, 1, 1, 2, 3, 3, 4]),
        (8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (1, 1, [0]),
    ],
)
def test_who_owns_a_group_never_changes(groups: int, parallelism: int, owned: list[int]) -> None:
    assert owners(groups, parallelism) == owned


@pytest.mark.soak
@examples
def test_every_subtask_owns_one_run_of_groups_and_no_run_is_longer_than_another_by_more_than_one(round_: int) -> None:
    @given(splits)
    def holds(split: tuple[int, int]) -> None:
        groups, parallelism = split
        runs = [(owner, len(list(run))) for owner, run in groupby(owners(groups, parallelism))]
        assert [owner for owner, _ in runs] == list(range(parallelism))
        lengths = {length for _, length in runs}
        assert max(lengths) - min(lengths) <= 1

    check(holds, round_, examples=200)


@pytest.mark.soak
@examples
def test_another_parallelism_moves_whole_groups(round_: int) -> None:
    """Keys that share a group stay together, whatever the parallelism; with twice as many subtasks each one splits."""

    @given(keys, keys, st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
    def holds(one: Key, other: Key, parallelism: int) -> None:
        def owner(key: Key, of: int) -> int:
            return subtask_of_group(key_group(key, 128), 128, of)

        assert owner(one, 2 * parallelism) // 2 == owner(one, parallelism)
        if key_group(one, 128) == key_group(other, 128):
            assert owner(one, parallelism) == owner(other, parallelism)

    check(holds, round_, examples=200)


@pytest.mark.parametrize(
    "many",
    [lambda n: n, lambda n: f"key-{n}", lambda n: ("AA", n), lambda n: n / 2],
    ids=["int", "str", "tuple", "float"],
)
def test_many_keys_spread_over_all_subtasks(many: Callable[[int], Key]) -> None:
    shares = [0] * 4
    for n in range(10_000):
        shares[subtask_of_group(key_group(many(n), 128), 128, 4)] += 1
    assert min(shares) > 0.8 * 10_000 / 4, shares
