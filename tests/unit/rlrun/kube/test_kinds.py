"""URL paths of objects: a name stays one part of them."""

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NAMESPACE, SECRET

ODD = {
    "x?watch=true": "x%3Fwatch%3Dtrue",
    "x#y": "x%23y",
    "../../pods": "..%2F..%2Fpods",
    "a/b": "a%2Fb",
    "%2e%2e": "%252e%252e",
    "system:node": "system%3Anode",
    "plain-name.v1": "plain-name.v1",
}


@pytest.mark.parametrize(("name", "quoted"), ODD.items())
def test_a_name_is_one_part_of_the_path(name: str, quoted: str) -> None:
    assert SECRET.path("ns", name) == f"/api/v1/namespaces/ns/secrets/{quoted}"
    assert SECRET.path(name, "x", "status") == f"/api/v1/namespaces/{quoted}/secrets/x/status"
    assert NAMESPACE.path(None, name) == f"/api/v1/namespaces/{quoted}"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_leads_to_another_folder_is_not_found(name: str) -> None:
    for place in (("ns", name), (name, "x")):
        with pytest.raises(ApiError) as refused:
            SECRET.path(*place)
        assert refused.value.status == 404
