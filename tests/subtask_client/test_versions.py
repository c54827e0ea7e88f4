"""An instance and coordinators of other versions: works, or leaves with one clear reason (section 12)."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import Hello, Refused, SchemaDigest
from penstock.schemas.events import Welcome, WriterSchema
from penstock.schemas.versions import CURRENT, Versions
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol.effects import Departure
from penstock.subtask_client.protocol.phases import Phase

from .conftest import ATTEMPT, CoreDriver


def welcome(protocol, nonce="nonce-1", attempt=ATTEMPT, epoch=1):
    return Welcome(epoch, attempt, nonce, protocol, "1.5")


def test_a_hello_names_version_release_and_the_schemas_it_writes_under():
    d = CoreDriver(schemas=(SchemaDigest("events", "abc"),)).hello()
    (hello,) = d.written(Hello)
    assert (hello.protocol, hello.release) == (CURRENT.protocol, CURRENT.release)
    assert hello.schemas == (SchemaDigest("events", "abc"),)


@pytest.mark.parametrize(
    ("own", "oldest", "spoken"), [(own, old, s) for own in (2, 3) for old in range(1, own + 1) for s in range(1, 6)]
)
def test_it_takes_up_a_start_in_a_version_it_speaks_and_refuses_any_other(wire, own, oldest, spoken):
    d = CoreDriver(versions=Versions(own, oldest, "1.0")).hello()
    d.append(welcome(spoken), wire.start())
    if oldest <= spoken <= own:
        assert d.core.phase is Phase.RUNNING
        return
    assert d.core.phase is Phase.LEFT
    (leave,) = d.of(do.Leave)
    (refused,) = d.written(Refused)
    assert leave.departure is Departure.REFUSED
    assert refused.cause == leave.reason
    assert (refused.sender.attempt, refused.sender.epoch) == (ATTEMPT, 1)
    assert f"Penstock 1.0 (protocol {own})" in leave.reason and f"(protocol {spoken})" in leave.reason
    first = "upgrade the tasks first" if spoken > own else "upgrade the coordinator first"
    assert leave.reason.endswith(first)
    assert d.of(do.OpenUser) == []


def test_a_welcome_to_somebody_else_says_nothing_about_the_own_start(wire):
    d = CoreDriver(versions=Versions(2, 1)).hello()
    d.append(welcome(9, nonce="of-another", attempt=40), wire.start())
    assert d.core.phase is Phase.RUNNING


def test_a_welcome_names_its_instance_by_nonce_where_the_attempt_is_not_known(wire):
    """Section 4: the outcome of the Hello is unknown, and the Start with its nonce is adopted."""
    d = CoreDriver(versions=Versions(2, 1))
    d.hello_known = False
    d.hello().append(welcome(3), wire.start())
    assert d.core.phase is Phase.LEFT


def test_a_running_instance_that_a_coordinator_of_another_version_starts_again_leaves(wire):
    """A takeover by a coordinator that speaks above what it knows."""
    d = CoreDriver(versions=Versions(2, 1)).started()
    d.append(welcome(3, epoch=2), wire.start(epoch=2))
    assert d.core.phase is Phase.LEFT
    assert [type(e) for e in d.effects][-2:] == [do.Write, do.Leave]


def test_each_hello_forgets_what_the_coordinator_before_spoke(wire):
    d = CoreDriver(versions=Versions(2, 1)).hello()
    d.append(welcome(2), wire.start())
    d.append(wire.reset(epoch=2, generation=0))
    assert d.core.spoken is None


def test_a_start_whose_welcome_was_lost_is_taken_up(wire):
    """The coordinator knows both versions and would have refused an older instance."""
    d = CoreDriver(versions=Versions(3, 3)).hello()
    d.append(wire.start())
    assert d.core.phase is Phase.RUNNING


def test_schemas_ahead_of_a_start_are_handed_to_the_codecs(wire):
    d = CoreDriver().hello()
    d.append(welcome(1), WriterSchema(1, "reader", "state", '"int"'), wire.start())
    assert d.of(do.LearnSchema) == [do.LearnSchema("reader", "state", '"int"')]
    assert d.core.phase is Phase.RUNNING


def test_schemas_of_an_epoch_that_is_over_are_not(wire):
    d = CoreDriver().hello()
    d.append(wire.reset(epoch=3), WriterSchema(1, "reader", "state", '"int"'))
    assert d.of(do.LearnSchema) == []
