"""Ids of environments in paths."""

import base64

import pytest
from rlrun_server.hosted_api.environments.environment_ids import environment_id, read_environment_id
from rlrun_server.rest.base.problems import RestError


def test_an_id_is_read_as_it_was_made() -> None:
    assert read_environment_id(environment_id("Team.A_1", "Reverse_Text")) == ("Team.A_1", "reverse-text")


@pytest.mark.parametrize(
    "text",
    ["..%2f..%2fnamespaces/x", "a?watch=1/x", "a#b/x", "../x", "./x", "a b/x", "a\n/x", "a/x\n", "/x", "a/", "a/b/c",
     "a", "a/..", "a/x?y", "\u202ea/x", "\u0430/x"],
)  # fmt: skip
def test_an_owner_or_name_that_no_package_has_is_not_found(text: str) -> None:
    with pytest.raises(RestError) as refused:
        read_environment_id(base64.urlsafe_b64encode(text.encode()).decode().rstrip("="))
    assert refused.value.status == 404
