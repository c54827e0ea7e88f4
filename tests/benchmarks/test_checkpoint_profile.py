"""The profile of a checkpoint has every step, in the order in which they can be. Its times are nobody's business."""

from __future__ import annotations

import pytest

from benchmarks.checkpoint_profile import STEPS, noted, profile
from penstock.broker import EmbeddedBroker
from penstock.coordinator.protocol import checkpoints


@pytest.mark.kafka
def test_each_step_lies_between_the_cut_and_the_commit(kafka_broker: EmbeddedBroker) -> None:
    taken = profile(kafka_broker.bootstrap, 2, 3)
    assert list(taken) == list(STEPS)
    assert 0 < taken["first snapshot taken"] <= taken["half of the snapshots"] <= taken["last snapshot taken"]
    assert taken["last snapshot taken"] < taken["last ack read"] < taken["commit stands"]


def test_what_it_listens_to_is_put_back() -> None:
    before = checkpoints.acknowledge
    with noted() as found:
        assert checkpoints.acknowledge is not before
    assert checkpoints.acknowledge is before
    assert found == []
