import sys
import time
from pathlib import Path

import pytest

from tests.gpu.engine_start import answers, seconds_to_start
from tests.gpu.pod_processes import Planned
from tests.support.ports import claimed_ports

ENGINE = """
import http.server, sys, time

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() > ready and self.path == "/health" else 503)
        self.end_headers()

ready = time.monotonic() + 1
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def planned(program: str, port: int) -> list[Planned]:
    command = (sys.executable, "-c", program, str(port))
    return [Planned("trainer", ("false",), {}), Planned("vllm", command, {})]


def test_an_engine_is_ready_when_its_probe_is(tmp_path: Path) -> None:
    with claimed_ports(1) as [port]:
        (tmp_path / "vllm.log").write_text("of the run")
        assert not answers(port)
        found = seconds_to_start(planned(ENGINE, port), port, tmp_path)
        assert found is not None
        assert found >= 1
        assert not answers(port)
    assert (tmp_path / "vllm.log").read_text() == "of the run"


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "import time; time.sleep(60)"])
def test_an_engine_that_does_not_start_has_no_time(tmp_path: Path, program: str) -> None:
    began = time.monotonic()
    with claimed_ports(1) as [port]:
        assert seconds_to_start(planned(program, port), port, tmp_path, limit=2) is None
    assert time.monotonic() - began < 30
