"""Two runs at once, in two namespaces, do not disturb one another."""

from rlrun.storage.layout import RunLayout

from demo.install import BUCKET
from demo.run_metrics import mean_of, read_metrics
from tests.e2e.conftest import ON_POLICY, Neighbours, Platform
from tests.e2e.runs import KL_LIMITS


def test_two_runs_of_one_name_in_two_namespaces(platform: Platform, model: str, neighbours: Neighbours) -> None:
    assert neighbours.side_by_side, "the runs went one after the other: that shows nothing"
    for run in neighbours.runs:
        namespace = run["metadata"]["namespace"]
        layout = RunLayout.of(BUCKET, "", namespace, run["metadata"]["uid"])
        lines = read_metrics(platform.s3.store(), layout)
        assert [line["step"] for line in lines] == list(range(1, ON_POLICY["maxSteps"] + 1))
        assert mean_of(lines, "mismatch_kl/all/mean") <= KL_LIMITS[model], "the engines served another run's adapter"
        uids = {o["spec"]["runUid"] for o in platform.kubectl.list("rladapters", namespace)}
        assert uids == {run["metadata"]["uid"]}


def test_the_processes_of_a_run_answer_no_other_run(neighbours: Neighbours) -> None:
    """The network of this cluster enforces no policies: this is what the run's own tokens hold."""
    assert len(neighbours.answers) == 11
    assert set(neighbours.answers.values()) == {401}, neighbours.answers


def test_no_s3_key_is_outside_of_the_platforms_namespace(neighbours: Neighbours) -> None:
    """Looked for while both runs were running: their objects are gone afterwards."""
    assert neighbours.s3_key is not None
    assert neighbours.s3_key.platform, "the search finds nothing, also where the key is"
    assert neighbours.s3_key.others == ()
