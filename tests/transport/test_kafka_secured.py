"""A broker that asks who you are: what may not be seen is refused, and a wrong password is said to be one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import BrokerUnreachable, NotAuthorized, TransportError
from penstock.schemas.topics import TopicSpec
from penstock.transport import Election, Partition
from penstock.transport.kafka import KafkaTransport

pytestmark = pytest.mark.kafka

TOPIC = "penstock.secured.log"
ADMIN_LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="admin-pw";'


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(
        tmp_path_factory.mktemp("kafka-secured") / "data",
        extra_properties={
            "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.broker.scram-sha-512.sasl.jaas.config": ADMIN_LOGIN,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
        },
        format_arguments=[
            "--add-scram",
            "SCRAM-SHA-512=[name=admin,password=admin-pw]",
            "--add-scram",
            "SCRAM-SHA-512=[name=guest,password=guest-pw]",
        ],
    )
    with broker:
        yield broker


def transport_of(broker: EmbeddedBroker, user: str, password: str) -> KafkaTransport:
    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password}
    return KafkaTransport(broker.bootstrap, {"security.protocol": "SASL_PLAINTEXT", **login})


def test_a_user_with_rights_appends_commits_and_reads(secured_broker: EmbeddedBroker) -> None:
    transport = transport_of(secured_broker, "admin", "admin-pw")
    transport.create_topics([TopicSpec(TOPIC, 1)])
    owner = transport.claim_log(TOPIC, TOPIC)
    owner.commit([("a", b"1")])
    owner.close()
    writer = transport.writer()
    writer.append(Partition(TOPIC, 0), b"2")
    assert writer.flush(30.0)
    writer.close()
    assert [record.value for record in transport.read_all(Partition(TOPIC, 0))] == [b"1", b"2"]


def test_a_wrong_password_is_named_as_the_reason_and_not_shown(secured_broker: EmbeddedBroker) -> None:
    transport = transport_of(secured_broker, "admin", "wrong-pw-1234")
    with pytest.raises(BrokerUnreachable, match=r"(?i)authentication") as caught:
        transport.check(3.0)
    assert secured_broker.bootstrap in str(caught.value)
    assert "wrong-pw-1234" not in str(caught.value)


def test_a_topic_that_acls_hide_is_refused_and_not_waited_for(secured_broker: EmbeddedBroker) -> None:
    transport_of(secured_broker, "admin", "admin-pw").create_topics([TopicSpec(TOPIC, 1)])
    guest = transport_of(secured_broker, "guest", "guest-pw")
    assert guest.describe_topics([TOPIC]) == {}
    assert guest.list_topics("penstock.") == []
    for refused in (
        lambda: guest.reader({Partition(TOPIC, 0): 0}),
        lambda: guest.read_all(Partition(TOPIC, 0)),
        lambda: guest.claim_log(TOPIC, TOPIC),
        lambda: guest.offsets([Partition(TOPIC, 0)]),
    ):
        with pytest.raises(NotAuthorized, match=r"user 'guest' lacks the right \w+ on topic penstock.secured.\*"):
            refused()


def test_who_may_write_nowhere_is_told_so_with_each_append(secured_broker: EmbeddedBroker) -> None:
    """Such a user gets no producer id, so that nothing is ever sent."""
    transport_of(secured_broker, "admin", "admin-pw").create_topics([TopicSpec(TOPIC, 1)])
    writer = transport_of(secured_broker, "guest", "guest-pw").writer()
    outcomes: list[Exception | None] = []
    writer.append(Partition(TOPIC, 0), b"1", on_outcome=lambda _, error: outcomes.append(error))
    assert writer.flush(30.0)
    with pytest.raises(NotAuthorized, match=r"user 'guest' lacks the right Write on topic penstock.secured.\*"):
        raise outcomes[0] or AssertionError("it was taken")
    writer.close()


def elected_in_time(election: Election) -> None:
    deadline = time.monotonic() + 30.0
    while not election.elected():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_group_that_acls_forbid_is_no_place_to_stand_for(secured_broker: EmbeddedBroker) -> None:
    transport_of(secured_broker, "admin", "admin-pw").create_topics([TopicSpec(TOPIC, 1)])
    rights = AclBinding(
        *(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL),
        *("User:guest", "*", AclOperation.READ, AclPermissionType.ALLOW),
    )
    admin = AdminClient(
        {
            "bootstrap.servers": secured_broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "admin-pw",
        }
    )
    admin.create_acls([rights])[rights].result(30.0)
    guest = transport_of(secured_broker, "guest", "guest-pw")
    with closing(guest.election("penstock.secured.standby", TOPIC, 6.0)) as election:
        refused = pytest.raises(TransportError, match=r"penstock\.secured\.standby .*GROUP_AUTHORIZATION_FAILED")
        with refused:
            elected_in_time(election)
    assert guest.candidates("penstock.secured.standby") == 0
    admin.delete_acls(
        [
            AclBindingFilter(
                *(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL),
                *("User:guest", "*", AclOperation.READ, AclPermissionType.ALLOW),
            )
        ]
    )
