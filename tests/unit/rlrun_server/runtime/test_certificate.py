"""The certificate follows its files, for new connections."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rlrun_operator.runtime.server_certificate import make_certificate
from rlrun_server.runtime import certificate
from rlrun_server.runtime.certificate import Certificate, CertificateInvalid
from rlrun_server.runtime.metrics import REGISTRY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def write(folder: Path, now: datetime | None = None) -> str:
    """Write a new certificate and return its authority."""
    made = make_certificate("localhost", now or datetime.now(UTC))
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(made[name])
    return made["ca.crt"].decode()


async def is_trusted(context: ssl.SSLContext, authority: str) -> bool:
    """Return whether a client that trusts this authority alone accepts the server."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        client = ssl.create_default_context(cadata=authority)
        _, writer = await asyncio.open_connection("localhost", port, ssl=client)
    except ssl.SSLError:
        return False
    else:
        writer.close()
        return True
    finally:
        server.close()


def test_the_metrics_have_the_validity_of_the_certificate_in_use(folder: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    write(folder, now)
    server = Certificate(folder)
    first = REGISTRY.get_sample_value("rlrun_server_certificate_not_after_seconds")
    assert first is not None
    assert first > now.timestamp()
    write(folder, now + timedelta(days=30))
    assert server.load()
    assert REGISTRY.get_sample_value("rlrun_server_certificate_not_after_seconds") == first + 30 * 86400
    start = REGISTRY.get_sample_value("rlrun_server_certificate_not_before_seconds")
    assert start is not None
    assert start < first


async def test_new_connections_get_the_renewed_certificate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "LOOK_SECONDS", 0.01)
    first = write(folder)
    server = Certificate(folder)
    assert not server.load()
    following = asyncio.create_task(server.follow())
    try:
        assert await is_trusted(server.context, first)
        second = write(folder)
        for _ in range(500):
            if await is_trusted(server.context, second):
                break
        assert not await is_trusted(server.context, first)
    finally:
        following.cancel()


@pytest.mark.parametrize("changed", ["another key", "no key", "text"])
async def test_files_that_do_not_fit_leave_the_last_ones(folder: Path, changed: str, tmp_path: Path) -> None:
    authority = write(folder)
    server = Certificate(folder)
    if changed == "no key":
        (folder / "tls.key").unlink()
    elif changed == "text":
        (folder / "tls.crt").write_text("no certificate")
    else:
        (folder / "tls.key").write_bytes(make_certificate("localhost", datetime.now(UTC))["tls.key"])
    with pytest.raises(CertificateInvalid, match=r"must contain tls.crt and its key tls.key"):
        server.load()
    with pytest.raises(CertificateInvalid):
        Certificate(folder)
    assert await is_trusted(server.context, authority)
