import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.runtime.server_certificate import (
    CertificateMissing,
    ensure_authority,
    follow_authority,
    make_certificate,
)

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS

NAMESPACE, NAME = "rlrun-system", "rlrun-server-certificate"
HOST = "rlrun-server.rlrun-system.svc"
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def settings(host: str = HOST, **more: Any) -> OperatorSettings:
    certificate = {"secret": {"namespace": NAMESPACE, "name": NAME}, **more}
    changes = {"storageServer": f"https://{host}:8443", "storageServerCertificate": certificate}
    return OperatorSettings.model_validate({**SETTINGS.model_dump(mode="json", by_alias=True), **changes})


def secret(**files: bytes) -> dict[str, Any]:
    data = {name.replace("_", "."): base64.b64encode(content).decode() for name, content in files.items()}
    metadata = {"name": NAME, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data}


def stored(cluster: FakeCluster) -> dict[str, bytes]:
    found = cluster.held("Secret", NAME, NAMESPACE)
    assert found["type"] == "kubernetes.io/tls"
    return {name: base64.b64decode(value) for name, value in found["data"].items()}


async def test_the_certificate_is_made_once_for_the_name_of_the_service() -> None:
    cluster = FakeCluster()
    authority = await ensure_authority(cluster.kube, settings(), NOW)
    files = stored(cluster)
    assert files["ca.crt"].decode() == authority
    certificate, issuer = (x509.load_pem_x509_certificate(files[name]) for name in ("tls.crt", "ca.crt"))
    certificate.verify_directly_issued_by(issuer)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [HOST]
    assert await ensure_authority(cluster.kube, settings(), NOW + timedelta(days=3000)) == authority
    assert stored(cluster) == files


@pytest.mark.parametrize("changed", ["end", "host", "files"])
async def test_a_made_certificate_that_no_longer_serves_is_renewed(changed: str) -> None:
    cluster = FakeCluster()
    first = await ensure_authority(cluster.kube, settings(), NOW)
    if changed == "files":
        cluster.put(secret(tls_crt=b"no certificate", tls_key=b"", ca_crt=first.encode()))
    host = "other-server.rlrun-system.svc" if changed == "host" else HOST
    later = NOW + timedelta(days=3650 - 29) if changed == "end" else NOW
    renewed = await ensure_authority(cluster.kube, settings(host), later)
    assert renewed != first
    assert stored(cluster)["ca.crt"].decode() == renewed


async def test_a_given_secret_is_read_and_never_changed() -> None:
    given = make_certificate("any.example", NOW - timedelta(days=5000))
    cluster = FakeCluster(secret(**{name.replace(".", "_"): content for name, content in given.items()}))
    assert await ensure_authority(cluster.kube, settings(create=False), NOW) == given["ca.crt"].decode()
    assert stored(cluster) == given
    without = FakeCluster(secret(tls_crt=given["tls.crt"], tls_key=given["tls.key"]))
    assert await ensure_authority(without.kube, settings(create=False), NOW) == "", "the authority is a public one"


@pytest.mark.parametrize("objects", [(), (secret(),)])
async def test_a_given_secret_that_is_missing_is_named(objects: tuple[dict[str, Any], ...]) -> None:
    words = rf"Secret {NAMESPACE}/{NAME} .* does not exist or has no tls.crt: store a certificate for {HOST} in it"
    with pytest.raises(CertificateMissing, match=words):
        await ensure_authority(FakeCluster(*objects).kube, settings(create=False), NOW)


async def test_a_given_authority_that_is_not_pem_is_named() -> None:
    cluster = FakeCluster(secret(tls_crt=b"-----BEGIN CERTIFICATE-----", tls_key=b"", ca_crt=b"\x30\x82\xff"))
    with pytest.raises(CertificateMissing, match=rf"ca.crt in Secret {NAMESPACE}/{NAME} .* is not PEM text"):
        await ensure_authority(cluster.kube, settings(create=False), NOW)


async def test_without_a_certificate_nothing_is_asked_for() -> None:
    cluster = FakeCluster()
    assert await ensure_authority(cluster.kube, SETTINGS, NOW) == ""
    assert cluster.requests == []


async def test_an_authority_that_changes_while_the_operator_runs_is_noticed() -> None:
    old, new = (make_certificate(HOST, NOW) for _ in range(2))
    cluster = FakeCluster(secret(**{name.replace(".", "_"): content for name, content in old.items()}))
    begun = await ensure_authority(cluster.kube, settings(create=False), NOW)
    states = [
        old,
        {**old, "tls.crt": new["tls.crt"]},  # a renewed certificate of the same authority
        {"ca.crt": new["ca.crt"]},  # a Secret that is being written
        {**new, "ca.crt": old["ca.crt"] + new["ca.crt"]},
    ]
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        cluster.put(secret(**{name.replace(".", "_"): content for name, content in states[looks].items()}))
        looks += 1

    await follow_authority(cluster.kube, settings(create=False), begun, sleep)
    assert looks == len(states)
