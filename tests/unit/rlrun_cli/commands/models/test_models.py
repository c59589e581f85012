import json

from rlrun.kube.kinds import RLMODEL

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object


def test_models(rlrun: Rlrun, api: FakeCluster) -> None:
    small = {"id": "z/b", "source": "s3://x/y", "trainer": {"gpus": 0}, "inference": {"gpus": 0}}
    large = {"id": "a/a", "source": f"hf://a/a@{'0' * 40}", "seqLen": 4096, "inference": {"replicas": 2, "gpus": 4}}
    api.put(custom_object(RLMODEL, "b", spec=small))
    api.put(custom_object(RLMODEL, "a", spec=large))
    _, first, second = rlrun("models").out.splitlines()
    assert first.split()[:2] == ["a/a", "4096"]
    assert "1x1 GPU" in first
    assert "2x4 GPU" in first
    assert second.count("1x CPU") == 2


def test_a_model_is_found_by_its_id_and_by_its_name(rlrun: Rlrun, api: FakeCluster) -> None:
    warning = {"type": "Warnings", "status": "True", "reason": "CredentialInPlainText", "message": "move it"}
    unknown = {"type": "WeightsCached", "status": "Unknown", "reason": "NotStarted", "message": "no run"}
    source = f"hf://a/a@{'0' * 40}"
    conditions = {"conditions": [warning, unknown]}
    api.put(custom_object(RLMODEL, "a", spec={"id": "a/a", "source": source}, status=conditions))
    shown = rlrun("model", "get", "a/a").out
    assert "CredentialInPlainText: move it" in shown
    assert "NotStarted" not in shown
    assert rlrun("models", "get", "a").out == shown
    assert json.loads(rlrun("models", "get", "a/a", "-o", "json").out)["metadata"]["name"] == "a"
    assert rlrun("models", "get", "b/b").code == 1
