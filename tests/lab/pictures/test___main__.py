"""The runs of the pictures are valid and followed to their end, and frames become a recording."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rlrun.api.run import RLRunSpec

from demo.watch import RunFailed
from tests.pictures import __main__ as pictures


class FakeKubectl:
    """Answers with one phase of a run after the other."""

    def __init__(self, *phases: str | None) -> None:
        self._left = iter(phases)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        phase = next(self._left)
        status = {"phase": phase, "conditions": []}
        return {"metadata": {"name": name}, "spec": {"maxSteps": 30}, "status": status} if phase else {}

    def __call__(self, *words: str) -> str:
        return "no pods"


def test_the_runs_are_valid_and_differ_in_few_fields() -> None:
    first, second = (RLRunSpec.model_validate(pictures.run_object(name)["spec"]) for name in pictures.CHANGES)
    assert first.model_copy(update={"learning_rate": 1e-4, "batch_size": 64}) == second != first


def test_a_run_is_looked_at_until_it_is_completed() -> None:
    seen: list[dict[str, Any]] = []
    kubectl: Any = FakeKubectl(None, "Running", "Completed")
    assert pictures.wait_for_run(kubectl, "run", look=seen.append)["status"]["phase"] == "Completed"
    assert len(seen) == 2


def test_a_run_that_ends_otherwise_ends_the_command() -> None:
    kubectl: Any = FakeKubectl("Running", "Failed")
    with pytest.raises(RunFailed):
        pictures.wait_for_run(kubectl, "run", look=lambda _: None)


def png(level: int) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (40, 30), (level, level, level)).save(sink, "PNG")
    return sink.getvalue()


@pytest.mark.parametrize("count", [2, 5, 250])
def test_a_recording_has_its_length_and_its_last_frame(tmp_path: Path, count: int) -> None:
    pictures.write_recording([png(255 * at // count) for at in range(count)], tmp_path / "all.webp")
    image, milliseconds = Image.open(tmp_path / "all.webp"), 0
    assert 1 < image.n_frames <= min(count, pictures.MAX_FRAMES)
    for at in range(image.n_frames):
        image.seek(at)
        image.load()
        milliseconds += image.info["duration"]
    assert milliseconds == pytest.approx(1000 * pictures.SHOWN_SECONDS, rel=0.01)
    assert image.convert("RGB").getpixel((0, 0))[0] == pytest.approx(255 * (count - 1) // count, abs=6)
