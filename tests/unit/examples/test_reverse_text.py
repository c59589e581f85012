"""Example environment: task, package, and rewards computed by the environment server."""

import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rlrun.protocol.environment import EnvironmentConfig, GroupRequest
from rlrun_environment.package_installer import install, installed_version
from rlrun_environment.worker.loading import load

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "examples" / "environments" / "reverse_text"
sys.path.append(str(PACKAGE))

from reverse_text_data import ALPHABET, dataset, similarity, split_of, texts  # noqa: E402


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("cba", 1.0), ("", 0.0), ("cb", 2 / 3), ("abc", 1 / 3), ("cbax", 3 / 4), ("xcba", 0.0), ("cba" * 10, 0.1)],
)
def test_similarity_counts_characters_at_their_place(completion, reward):
    assert similarity(completion, "abc") == pytest.approx(reward)


def test_texts_are_distinct_short_and_in_the_alphabet():
    drawn = dataset(3000, seed=1, split="train", min_length=5, max_length=10)
    assert len(set(drawn)) == 3000
    assert {len(t) for t in drawn} == set(range(5, 11))
    assert set("".join(drawn)) <= set(ALPHABET)
    assert all(t == t.strip() for t in drawn)
    assert drawn == dataset(3000, seed=1, split="train", min_length=5, max_length=10)
    assert drawn != dataset(3000, seed=2, split="train", min_length=5, max_length=10)


def test_splits_are_disjoint_for_all_seeds():
    train = {t for seed in range(3) for t in dataset(800, seed, "train", 4, 6)}
    held_out = {t for seed in range(3) for t in dataset(100, seed, "eval", 4, 6)}
    assert not train & held_out
    assert {split_of(t) for t in held_out} == {"eval"}


def test_copied_text_gets_a_small_reward():
    drawn = list(itertools.islice(texts(0, "eval", 5, 10), 200))
    assert sum(similarity(t, t) for t in drawn) / 200 < 0.2


def test_invalid_lengths_are_rejected():
    with pytest.raises(ValueError, match="min_length 9 and max_length 5"):
        next(texts(0, "train", 9, 5))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_contains_both_modules_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(n for n in names if ".dist-info" not in n) == ["reverse_text.py", "reverse_text_data.py"]


@pytest.mark.slow
async def test_the_installed_package_loads_and_scores(wheel, tmp_path, monkeypatch):
    for module in ("reverse_text", "reverse_text_data"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(PACKAGE)])
    await install([wheel], tmp_path / "installed")
    assert installed_version(tmp_path / "installed", "reverse-text") == "0.1.0"
    settings = EnvironmentConfig(id="rlrun/reverse-text", args={"num_examples": 40, "num_eval_examples": 8})
    loaded = load(settings, tmp_path / "installed")
    assert (loaded.train_examples, loaded.eval_examples) == (40, 8)
    text = loaded.train[3]["prompt"][0]["content"]
    # Importing verifiers takes seconds, which workers without this test are spared.
    from rlrun_environment.worker.verifiers_runner import VerifiersRunner

    runner = VerifiersRunner(loaded, tmp_path / "installed")
    answers = iter([text[::-1], text])

    async def canned(*_, **__):
        return {"role": "assistant", "content": next(answers)}

    monkeypatch.setattr("rlrun_environment.worker.verifiers_runner.GatewayClient.get_response", _response_of(canned))
    request = GroupRequest(
        group_id="g", example_index=3, rollouts=2, base_url="http://x", model="m", deadline_seconds=9
    )
    result = await runner.run(request)
    await runner.close()
    assert [r.error for r in result.rollouts] == [None, None]
    assert result.rollouts[0].reward == 1.0
    assert result.rollouts[0].metrics["exactly_reversed"] == 1.0
    assert result.rollouts[1].reward < 0.7
    assert result.rollouts[1].metrics["exactly_reversed"] == 0.0


def _response_of(canned):
    from verifiers.types import Response, ResponseMessage

    async def get_response(self, *args, **kwargs):
        message = await canned()
        inner = ResponseMessage(content=message["content"], finish_reason="stop", is_truncated=False, tokens=None)
        return Response(id="r", created=1, model="m", usage=None, message=inner)

    return get_response
