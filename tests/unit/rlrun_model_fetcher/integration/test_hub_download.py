"""The fetcher's process with the real client of the Hugging Face hub, against a stub of the hub."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rlrun_operator.resources.models.model_volumes import HUB_ENV

from tests.support.hub_stub import LARGE, HubStub, hub_stub
from tests.support.waiting import until

pytestmark = pytest.mark.slow

COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"
WEIGHTS = os.urandom(1 << 20) * 24
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "pytorch_model.bin": b"pickle", "tokenizer.json": b"{}"}
SECONDS = 60


@pytest.fixture
def hub() -> Iterator[HubStub]:
    with hub_stub(HubStub("owner/model", COMMIT, FILES)) as stub:
        yield stub


class Fetcher:
    """Starts the process of a fetcher's container; its volume is `dest`'s parent."""

    def __init__(self, hub: HubStub, folder: Path) -> None:
        self.dest, self.log = folder / "base", folder / "termination-log"
        # Variables of this process would lead the client elsewhere.
        own = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        self.env = own | HUB_ENV | {
            "HF_HOME": str(folder / ".cache"),
            "HF_ENDPOINT": hub.url,
            "RLRUN_TERMINATION_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip

    def start(self, commit: str = COMMIT, **env: str) -> "subprocess.Popen[str]":
        arguments = [sys.executable, "-m", "rlrun_model_fetcher", f"hf://owner/model@{commit}", str(self.dest)]
        return subprocess.Popen(
            arguments, env=self.env | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, commit: str = COMMIT, **env: str) -> tuple[int, str]:
        process = self.start(commit, **env)
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output

    @property
    def reason(self) -> str:
        return str(json.loads(self.log.read_text())["reason"])


@pytest.fixture
def fetcher(hub: HubStub, tmp_path: Path) -> Fetcher:
    return Fetcher(hub, tmp_path)


def test_the_real_client_downloads_a_model_once(hub: HubStub, fetcher: Fetcher) -> None:
    assert fetcher.run()[0] == 0
    found = {path.name: path.read_bytes() for path in fetcher.dest.iterdir() if not path.name.startswith(".rlrun")}
    assert found == {name: data for name, data in FILES.items() if name != "pytorch_model.bin"}, "no pickles"
    code, output = fetcher.run()
    assert (code, "already" in output) == (0, True)
    assert hub.bodies == {"config.json": 1, "model.safetensors": 1, "tokenizer.json": 1}


async def test_a_killed_download_keeps_complete_files_and_no_others(hub: HubStub, fetcher: Fetcher) -> None:
    hub.files = {**FILES, "model-2.safetensors": b"w" * LARGE}
    hub.cut_after = 16 << 20
    for _ in range(2):
        process = fetcher.start()
        assert hub.stopped.wait(SECONDS)
        await until((fetcher.dest / "model-2.safetensors").exists)
        # Small files are downloaded at the same time. That of the killed process is gone.
        await until(lambda: len(list(fetcher.dest.rglob("*.incomplete"))) == 1)
        assert not (fetcher.dest / "model.safetensors").exists(), "what is not complete has not its name"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SECONDS)
        hub.stopped.clear()
    hub.resume.set()
    assert fetcher.run()[0] == 0
    assert (fetcher.dest / "model.safetensors").read_bytes() == WEIGHTS
    assert (hub.bodies["model.safetensors"], hub.bodies["model-2.safetensors"]) == (3, 1)


def test_a_process_that_is_killed_before_the_mark_does_not_download_again(hub: HubStub, fetcher: Fetcher) -> None:
    assert fetcher.run()[0] == 0
    (fetcher.dest / ".rlrun-complete").unlink()
    assert fetcher.run()[0] == 0
    assert hub.bodies["model.safetensors"] == 1, "files that are there are compared by their digest"


@pytest.mark.parametrize(
    ("commit", "env", "code", "reason"),
    [
        (COMMIT, {}, 1, "ModelAccessDenied"),
        (COMMIT, {"HF_TOKEN": "hf_right"}, 0, None),
        ("0" * 40, {"HF_TOKEN": "hf_right"}, 64, "ModelNotFound"),
        (COMMIT, {"HF_TOKEN": "hf_right", "HF_ENDPOINT": "http://127.0.0.1:9"}, 1, "ModelHubUnreachable"),
    ],
)
def test_answers_of_the_hub(
    hub: HubStub, fetcher: Fetcher, commit: str, env: dict[str, str], code: int, reason: str | None
) -> None:
    hub.token = "hf_right"
    found, output = fetcher.run(commit, **env)
    assert (found, "hf_right" in output) == (code, False), output
    if reason is not None:
        assert fetcher.reason == reason


def test_the_client_of_xet_knows_the_limits_of_memory() -> None:
    hf_xet = pytest.importorskip("hf_xet")
    binary = b"".join(path.read_bytes() for path in Path(hf_xet.__file__).parent.glob("*.so"))
    limits = [name for name in HUB_ENV if name.startswith("HF_XET_")]
    assert limits, "the fetcher limits the memory of hf-xet"
    assert [name for name in limits if name.encode() not in binary] == []
