"""Names and addresses of serving pools."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.kube.serving_pools import pool_name, pool_url
from yarl import URL


@given(st.text())
def test_no_id_of_a_model_leads_to_another_host(model: str) -> None:
    assert re.fullmatch(r"rlserve-[a-z0-9-]{1,48}", pool_name(model))
    url = URL(pool_url("team", model))
    assert (url.scheme, url.host, url.port, url.path) == ("http", f"{pool_name(model)}.team.svc", 8000, "/v1")
    assert not url.query_string
    assert url.user is None


@pytest.mark.parametrize("other", ["a.b", "A/b", "a/b/"])
def test_ids_that_look_alike_have_different_pools(other: str) -> None:
    assert pool_name("a/b") != pool_name(other)
