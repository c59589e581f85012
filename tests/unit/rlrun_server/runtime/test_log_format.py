"""Lines of the server's log."""

import io
import logging

import pytest
from rlrun_server.runtime.log_format import format_lines

from tests.support.rest_api import rest_api

FORGED = "%0a2026-01-01 00:00:00,000 INFO rlrun_server.api_key_management: ann created API key 1%0d%1b[2J"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """All that the process logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr("logging.root.handlers", [handler])
    monkeypatch.setattr("logging.root.level", logging.INFO)
    format_lines()
    return stream


async def test_a_request_cannot_write_a_line_of_its_own(written: io.StringIO) -> None:
    api = rest_api()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    answer = await api.client.get(f"/namespaces/team{FORGED}/runs", headers=api.user("ann"))
    assert answer.status_code == 404
    lines = [line for line in written.getvalue().splitlines() if "rlrun_server" in line]
    assert len(lines) == 1
    assert "rlrun_server.rest.base.access: user ann may not list rlruns in namespace team\\n2026" in lines[0]
    assert "\x1b" not in written.getvalue()


def test_tracebacks_keep_their_lines(written: io.StringIO) -> None:
    try:
        raise RuntimeError("cause")
    except RuntimeError:
        logging.getLogger("rlrun_server").exception("a\nfailed\ttest")
    first, *rest = written.getvalue().splitlines()
    assert first.endswith("ERROR rlrun_server: a\\nfailed\ttest")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "RuntimeError: cause"
