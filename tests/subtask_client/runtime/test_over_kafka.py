"""The same runtime over a real broker: one life of a subtask from Hello to Stop."""

from __future__ import annotations

import pytest

from penstock.schemas import acks, events
from penstock.subtask_client.protocol.effects import Departure
from penstock.transport.kafka import KafkaTransport


@pytest.mark.kafka
def test_a_subtask_lives_over_kafka_as_it_does_in_memory(kafka_broker, rig_over):
    """Sections 5 to 8: start, events, checkpoint, restart in place, stop."""
    transport = KafkaTransport(kafka_broker.bootstrap)
    rig = rig_over(transport)
    rig.run()
    rig.start()
    rig.append(rig.frame(0, b"a", b"b"), rig.marker(1, 2), rig.frame(2, b"c"))
    ack = rig.expect(acks.CheckpointAck)
    assert (ack.state.inline, ack.handled_through, ack.event_position) == (b"a,b", 2, 3)
    rig.handled(3)
    rig.append(events.Reset(1, 1))
    start = rig.start(
        generation=1, checkpoint_id=1, state=ack.state, next_checkpoint_id=2, expected_sequence=2,
        event_position=ack.event_position,
    )  # fmt: skip
    rig.expect(acks.Heartbeat, lambda beat: beat.sender.generation == 1 and beat.handled_through == 3)
    assert rig.called("handle_operator_event") == [(b"a",), (b"b",), (b"c",), (b"c",)]
    assert rig.called("restore_state") == [(1, b"a,b")]
    rig.stop(start)
    assert rig.ended().departure is Departure.STOPPED
    transport.close()
