"""Limits of credentials that are not known."""

from typing import Any, cast

import pytest
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
