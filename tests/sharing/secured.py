"""A broker that asks who you are, behind TLS: SASL/SCRAM, a certificate, an authorizer that grants nothing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from penstock.schemas.access import Grant, Resource
from penstock.transport.kafka import KafkaTransport

USERS = ("alice", "bob", "carol", "dave", "erin")
ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"
PATIENCE_S = 30.0

_RESOURCES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    Resource.GROUP: ResourceType.GROUP,
}


def password_of(user: str) -> str:
    return f"secret-of-{user}-7f3a"


class SecuredBroker:
    """One for many tests; each user begins without any right, the administrator is a super user."""

    def __init__(self, broker: EmbeddedBroker, ca: Path) -> None:
        self.broker = broker
        self.ca = ca
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, **self.client_settings(ADMIN)})

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def client_settings(self, user: str, password: str | None = None) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password if password is not None else password_of(user),
        }

    def transport(self, user: str, **settings: float) -> KafkaTransport:
        return KafkaTransport(self.bootstrap, self.client_settings(user), **settings)

    def grant(self, user: str, grants: Iterable[Grant]) -> None:
        for future in self.admin.create_acls([_binding(user, grant) for grant in grants]).values():
            future.result(PATIENCE_S)
        self._settle(user)

    def revoke(self, user: str, grants: Iterable[Grant]) -> None:
        filters = [_filter(_binding(user, grant)) for grant in grants]
        for future in self.admin.delete_acls(filters).values():
            assert future.result(PATIENCE_S), "such a right had been granted"
        self._settle(user)

    def _settle(self, user: str) -> None:
        """A barrier: the one node applies its metadata in order, so behind a later change the earlier ones hold."""
        marker = AclBinding(
            ResourceType.GROUP, f"settled-{time.time_ns()}", ResourcePatternType.LITERAL, f"User:{user}", "*",
            AclOperation.READ, AclPermissionType.ALLOW,
        )  # fmt: skip
        self.admin.create_acls([marker])[marker].result(PATIENCE_S)
        sought = _filter(marker)
        deadline = time.monotonic() + PATIENCE_S
        while not self.admin.describe_acls(sought).result(PATIENCE_S):
            assert time.monotonic() < deadline, "the broker's authorizer did not learn of a right"
            time.sleep(0.02)


def _binding(user: str, grant: Grant) -> AclBinding:
    return AclBinding(
        _RESOURCES[grant.resource],
        grant.name,
        ResourcePatternType.PREFIXED if grant.prefixed else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[grant.operation.name],
        AclPermissionType.ALLOW,
    )


def _filter(a: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        a.restype, a.name, a.resource_pattern_type, a.principal, a.host, a.operation, a.permission_type
    )


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for the loopback address: what clients trust, and the broker's key store."""
    key, certificate, store = folder / "key.pem", folder / "certificate.pem", folder / "store.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    store.write_text(key.read_text() + certificate.read_text())
    return certificate, store


@contextmanager
def secured(folder: Path) -> Iterator[SecuredBroker]:
    """The broker, running."""
    ca, store = make_certificate(folder)
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{ADMIN}"'
    login += f' password="{password_of(ADMIN)}";'
    users = [("--add-scram", f"{MECHANISM}=[name={user},password={password_of(user)}]") for user in (ADMIN, *USERS)]
    broker = EmbeddedBroker(
        folder / "data",
        extra_properties={
            "listener.security.protocol.map": "BROKER:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.broker.scram-sha-512.sasl.jaas.config": login,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        },
        format_arguments=[argument for pair in users for argument in pair],
    )
    with broker:
        yield SecuredBroker(broker, ca)
