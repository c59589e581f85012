"""Limits of credentials that are not known."""

from typing import Any, cast

import pytest
from rlrun.kube.errors import ApiError
from rlrun.service.errors import ProblemError
from rlrun_server.authentication.identification import ADDRESSES, REVIEW_BURST_SECONDS, Identification
from rlrun_server.authentication.users import User


class OneKnownUser:
    """Users of whom one is known. Counts the reviews of others."""

    def __init__(self) -> None:
        self.reviews = 0

    def knows(self, token: str) -> bool:
        return token == "known"

    async def identify(self, token: str) -> User | None:
        if token == "known":
            return User("known", ())
        self.reviews += 1
        return None


async def test_strangers_with_many_addresses_have_a_limit_together() -> None:
    users = OneKnownUser()
    identification = Identification(cast(Any, users), 1.0, lambda: 0.0)
    allowed = int(ADDRESSES * REVIEW_BURST_SECONDS)
    for number in range(3 * allowed):
        with pytest.raises(ProblemError) as raised:
            await identification.identify(f"made-up-{number}", f"192.0.2.{number}")
        assert raised.value.status == (401 if number < allowed else 429)
    assert users.reviews == allowed
    assert (await identification.identify("known", "192.0.2.1")).name == "known"


async def test_a_right_that_the_server_lacks_is_one_for_the_platform_team_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    why = 'User "system:serviceaccount:rlrun:rlrun-server" cannot create resource "tokenreviews"'

    class Refused(OneKnownUser):
        async def identify(self, token: str) -> User | None:
            raise ApiError(403, "Forbidden", why)

    identification = Identification(cast(Any, Refused()), 1.0, lambda: 0.0)
    with pytest.raises(ProblemError, match="Ask the platform team") as raised:
        await identification.identify("known", "192.0.2.1")
    assert raised.value.status == 503
    assert "Retry" not in raised.value.problem.message
    assert why in caplog.text
    assert "system:serviceaccount" not in raised.value.problem.message, "the sender is not known yet"
