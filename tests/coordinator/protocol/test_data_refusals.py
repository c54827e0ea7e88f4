"""Data channels that keep a job from starting: clear errors, and nothing changed (protocol, sections 4, 9 and 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.checkpoint_log.restorability import Offsets
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.schemas.errors import JobRefused
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.settings import JobSettings, OperatorSettings, Restore

from .data_jobs import (
    A0,
    A1,
    B0,
    B1,
    FOREVER,
    RANGE,
    TO_B0,
    TO_B1,
    at,
    floors,
    hello_all,
    operator,
    pair,
    replace_coordinator,
    started,
    unaligned,
)  # fmt: skip
from .driver import Script, channel, job_settings, open_from

# ---- what refuses a start


def refused(script: Script, match: str, **changes: Any) -> None:
    """A core that starts now is refused; the error says what is wrong, and nothing has been committed."""
    log = list(script.log)
    core = CoordinatorCore(script.settings, "second")
    with pytest.raises(JobRefused, match=match):
        core.handle(script.beginning(**changes), script.now)
    assert script.log == log
    assert not core.job.began


def test_a_range_that_was_truncated_away_refuses() -> None:
    """Section 11: error names topic, partition, wanted and available offsets, and the way out."""
    script = pair()
    n = unaligned(script)
    script.data[TO_B0] = Offsets(5, 12)
    refused(
        script,
        rf"checkpoint {n} of job job needs penstock\.job\.a\.b\.data\[0\] from offset 4, and it holds offsets 5 to 12"
        r"\. No other checkpoint can be restored either: start with --fresh",
    )


def test_a_range_of_the_second_partition_is_looked_for_there() -> None:
    """Section 11: the error names the partition."""
    script = pair()
    script.emit_data("a", B1, 12)
    script.positions[B1] = (channel(A0, *at(12)), channel(A1, *at(12, RANGE)))
    script.checkpoint()
    script.data[TO_B1] = Offsets(12, 12)
    refused(script, r"needs penstock\.job\.a\.b\.data\[1\] from offset 4, and it holds offsets 12 to 12")


def test_a_range_that_begins_behind_the_end_refuses() -> None:
    """Section 11: the log was lost."""
    script = pair()
    unaligned(script)
    script.data[TO_B0] = Offsets(0, 2)
    refused(script, r"a\.b\.data\[0\] from offset 4, and it holds offsets 0 to 2")


@pytest.mark.parametrize("end", [4, 8])
def test_a_range_whose_end_is_gone_refuses(end: int) -> None:
    """Section 11: the log lost its tail; G5."""
    script = pair()
    unaligned(script)
    script.data[TO_B0] = Offsets(0, end)
    refused(script, rf"a\.b\.data\[0\].*offsets 0 to {end}")


def test_an_open_position_behind_the_end_refuses() -> None:
    """Section 11: the log lost its tail; G5. Unlike events, data channels go on from it in the new epoch."""
    script = pair()
    script.emit_data("a", B0, 12)
    script.checkpoint()
    script.data[TO_B0] = Offsets(0, 7)
    refused(script, r"a\.b\.data\[0\].*12.*offsets 0 to 7")


def test_an_open_position_that_was_truncated_away_need_not_be_there() -> None:
    """Section 7.9: what stands behind it is void in the new epoch."""
    script = pair()
    script.emit_data("a", B0, 12)
    script.checkpoint()
    script.data[TO_B0] = Offsets(20, 20)
    replace_coordinator(script)
    assert set(started(script).values()) == {(open_from(20, (1, 0)),)}


def test_a_data_topic_that_was_deleted_and_created_again_refuses() -> None:
    """Section 4: changed topic ids."""
    script = Script(operator("a", 2), operator("b", 2, "a"))
    script.topic_ids["penstock.job.a.b.data"] = "id-7"
    script.begin()
    refused(
        script,
        r"topic penstock\.job\.a\.b\.data is not the one that job job used .*\(id id-8, was id-7\).*penstock purge",
        topic_ids={**script.topic_ids, "penstock.job.a.b.data": "id-8"},
    )


def test_an_empty_checkpoint_log_beside_data_refuses() -> None:
    """Section 4: the log was lost; the events topics may be as empty as it."""
    script = Script(operator("a", 2), operator("b", 2, "a"))
    script.emit_data("a", B1, 1)
    refused(script, r"checkpoint log of job job is empty.*\(a to b/1\).*penstock purge")


def test_a_fresh_start_needs_no_data() -> None:
    """Section 11: the way out."""
    script = pair()
    unaligned(script)
    script.data[TO_B0] = Offsets(30, 30)
    script.restart(restore=Restore.FRESH)
    hello_all(script)
    assert set(started(script).values()) == {(open_from(30, (2, 0)),)}


# ---- a graph that does not fit the checkpoint


@pytest.mark.parametrize(("a", "b"), [(3, 2), (1, 2), (2, 3), (2, 1)])
def test_another_parallelism_of_sender_or_receiver_refuses(a: int, b: int) -> None:
    """Section 5: nobody has said what becomes of their states."""
    script = pair()
    unaligned(script)
    script.settings = job_settings(operator("a", a), operator("b", b, "a"))
    refused(
        script,
        "the operator does not say how they are redistributed",
        events={s: Offsets(0, 0) for s in script.settings.subtasks()},
    )


def no_edge() -> list[OperatorSettings]:
    return [operator("a", 2), operator("b", 2)]


def no_sender() -> list[OperatorSettings]:
    return [operator("b", 2)]


def forward_now() -> list[OperatorSettings]:
    return [operator("a", 2), operator("b", 2, "a", by=Partitioning.FORWARD)]


@pytest.mark.parametrize("now", [no_edge, no_sender, forward_now])
def test_a_range_of_a_channel_that_the_job_no_longer_has_refuses(now: Callable[[], list[OperatorSettings]]) -> None:
    """G2, G5: what the range holds belongs to the checkpoint and would never be handled."""
    script = pair(Partitioning.REBALANCE)
    script.emit_data("a", B0, 12)
    script.positions[B0] = (channel(A0, *at(12)), channel(A1, *at(12, RANGE)))
    n = script.checkpoint()
    script.settings = job_settings(*now())
    refused(script, rf"checkpoint {n} .*a/1.*b/0", events={s: Offsets(0, 9) for s in script.settings.subtasks()})


def test_an_operator_that_is_gone_takes_its_own_ranges_along() -> None:
    """Section 8: what belonged to it alone is dropped; its senders go on."""
    script = pair()
    n = unaligned(script)
    script.restart(job_settings(operator("a", 2), restart=FOREVER))
    script.hello_all()
    assert script.task(A0).start.checkpoint_id == n
    assert script.checkpoint() > n
    assert floors(script) == {}


# ---- which subtask holds what of a key


def now(by: Partitioning, **changes: Any) -> JobSettings:
    return job_settings(operator("a", 2), operator("b", 2, "a", by=by), **changes)


@pytest.mark.parametrize("groups", [127, 256])
def test_another_number_of_key_groups_refuses(groups: int) -> None:
    """Section 9: it would send keys past the subtasks that hold their states, and nothing else would say so."""
    script = pair()
    n = script.checkpoint()
    script.settings = now(Partitioning.KEYED, max_parallelism=groups)
    refused(
        script,
        rf"checkpoint {n} of job job holds the states of operator b by 128 key groups \(max_parallelism\), the job now"
        rf" has {groups}: .* Start with max_parallelism 128, or with --fresh",
    )


def test_a_savepoint_refuses_it_too() -> None:
    script = pair()
    n = script.savepoint()
    script.acknowledge(n)
    script.settings = now(Partitioning.KEYED, max_parallelism=64)
    refused(script, "by 128 key groups", restore=Restore.CHECKPOINT, restore_checkpoint=n)


@pytest.mark.parametrize("other", [p for p in Partitioning if p is not Partitioning.KEYED])
@pytest.mark.parametrize("keyed_before", [True, False])
def test_an_input_that_is_by_key_no_longer_or_has_become_so_refuses(other: Partitioning, keyed_before: bool) -> None:
    """Section 9: the error names the operator, both ways, and the way out."""
    old, new = (Partitioning.KEYED, other) if keyed_before else (other, Partitioning.KEYED)
    script = pair(old)
    n = script.checkpoint()
    script.settings = now(new)
    refused(
        script,
        rf"in checkpoint {n} of job job, operator b takes the records of a {old}, the job now says {new}: .* Start with"
        rf" {old}, or with --fresh",
    )


def three(*upstreams_of_b: tuple[str, Partitioning], groups: int = 128) -> JobSettings:
    """A third operator, which takes the records of ``a`` as they come, and may be an input of ``b``."""
    b = OperatorSettings("b", 2, inputs=tuple(InputSettings(*given) for given in upstreams_of_b))
    c = operator("c", 2, "a", by=Partitioning.FORWARD)
    return job_settings(operator("a", 2), c, b, max_parallelism=groups, restart=FOREVER)


def test_a_keyed_input_in_place_of_one_that_was_not_refuses() -> None:
    """Another operator has come in between: keys go elsewhere than they did."""
    script = pair(Partitioning.FORWARD)
    script.checkpoint()
    script.settings = three(("c", Partitioning.KEYED))
    refused(script, "operator b takes the records of a forward, the job now says c keyed: .* Start with forward")


def test_a_keyed_input_in_place_of_a_keyed_one_refuses_other_key_groups_alone() -> None:
    script = pair()
    n = script.checkpoint()
    script.settings = three(("c", Partitioning.KEYED), groups=64)
    refused(script, "by 128 key groups")
    script.restart(three(("c", Partitioning.KEYED)))
    hello_all(script)
    assert script.task(B0).start.checkpoint_id == n


def test_a_first_keyed_input_beside_the_others_may_bring_other_key_groups() -> None:
    """Nothing of its states was by key."""
    script = pair(Partitioning.FORWARD)
    n = script.checkpoint()
    script.restart(three(("a", Partitioning.FORWARD), ("c", Partitioning.KEYED), groups=64))
    hello_all(script)
    assert script.task(B0).start.checkpoint_id == n


def test_records_that_go_anywhere_may_go_elsewhere() -> None:
    """No state depends on where they go, nor on how many key groups there are."""
    script = pair(Partitioning.REBALANCE)
    n = script.checkpoint()
    script.restart(now(Partitioning.BROADCAST, max_parallelism=7))
    hello_all(script)
    assert script.task(B0).start.checkpoint_id == n


def test_a_fresh_start_may_change_the_key_groups() -> None:
    """The way out."""
    script = pair()
    script.checkpoint()
    script.restart(now(Partitioning.KEYED, max_parallelism=7), restore=Restore.FRESH)
    hello_all(script)
    assert script.checkpoint()


def test_a_new_operator_may_take_records_by_key() -> None:
    """It has no states."""
    script = Script.running(operator("a", 2), restart=FOREVER)
    n = script.checkpoint()
    script.restart(now(Partitioning.KEYED, max_parallelism=7, restart=FOREVER))
    hello_all(script)
    assert script.task(A0).start.checkpoint_id == n
