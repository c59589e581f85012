"""Caches, shared memory and root filesystem of the containers that use a model."""

import pytest
from rlrun_operator.resources.models.model_caches import CACHE_DIR, FOLDERS

from tests.support.built_children import MAIN, ROLES, Obj, container_of, containers, pod_templates, variables

OF_MODEL = ("trainer", "inference", "serving")


def mains(settings: Obj | None = None, model: Obj | None = None) -> list[tuple[str, Obj, Obj]]:
    """Role, main container and volumes of the pods that use the model."""
    found = []
    for name, template in pod_templates(settings, model).items():
        if (role := ROLES[name]) in OF_MODEL:
            volumes = {v["name"]: v for v in template["spec"]["volumes"]}
            found.append((role, container_of(template, MAIN[role]), volumes))
    assert {role for role, *_ in found} == set(OF_MODEL)
    return found


def test_all_caches_are_in_one_volume_of_the_pod() -> None:
    for role, main, volumes in mains():
        folders = {variables(main)[name] for name in FOLDERS}
        assert {folder.split("/")[1] for folder in folders} == {CACHE_DIR.strip("/")}, role
        assert len(folders) == len(FOLDERS)
        assert {"name": "cache", "mountPath": CACHE_DIR} in main["volumeMounts"]
        assert volumes["cache"] == {"name": "cache", "emptyDir": {"sizeLimit": "2Ti"}}


def test_a_claim_keeps_the_caches_of_the_role_that_names_it() -> None:
    for role, _, volumes in mains(model={"inference": {"cacheClaim": "compiled"}}):
        claim = volumes["cache"].get("persistentVolumeClaim", {}).get("claimName")
        assert claim == (None if role == "trainer" else "compiled")


def test_a_variable_of_the_model_moves_a_cache() -> None:
    env = [{"name": "TRITON_CACHE_DIR", "value": "/data/triton"}]
    for _, main, _ in mains(model={"trainer": {"env": env}, "inference": {"env": env}}):
        assert [v["value"] for v in main["env"] if v["name"] == "TRITON_CACHE_DIR"] == ["/data/triton"]


def test_shared_memory_is_that_of_the_role_or_of_the_installation() -> None:
    found = mains({"shmSize": "3Gi"}, {"trainer": {"shmSize": "64Gi"}})
    sizes = {role: volumes["shm"]["emptyDir"] for role, _, volumes in found}
    assert sizes["trainer"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert sizes["inference"] == sizes["serving"] == {"medium": "Memory", "sizeLimit": "3Gi"}


@pytest.mark.parametrize(
    ("settings", "shape", "is_read_only"),
    [
        ({}, {"gpus": 1}, False),
        ({}, {"gpus": 0, "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}, False),
        ({}, {"gpus": 0, "resources": {"limits": {"memory": "1Gi"}}}, True),
        ({"gpuReadOnlyRootFilesystem": True}, {"gpus": 8}, True),
    ],
)
def test_the_root_filesystem_is_writable_where_devices_are(settings: Obj, shape: Obj, is_read_only: bool) -> None:
    for _, main, _ in mains(settings, {"trainer": shape, "inference": shape}):
        assert main["securityContext"]["readOnlyRootFilesystem"] is is_read_only


def test_every_container_knows_the_name_of_its_user() -> None:
    for template in pod_templates().values():
        for container in containers(template):
            given = variables(container)
            assert (given["HOME"], given["USER"], given["LOGNAME"]) == ("/tmp", "rlrun", "rlrun")
