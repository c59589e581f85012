"""Tokens of the accounts for which API keys stand: how long they are kept, and what ends them."""

from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.service.errors import ProblemError
from rlrun_server.authentication.account_tokens import KEPT_SECONDS, MAX_TOKENS, AccountTokens, account_uid_of
from rlrun_server.authentication.users import User, account_user

from tests.support.signing_server import ReviewingApi

ANN = account_user("team", "uid-of-account", "key-1")


class Tokens:
    """Tokens with a clock."""

    def __init__(self) -> None:
        self.api, self.now = ReviewingApi(), 100.0
        self.api.add_account("team")
        self.tokens = AccountTokens(self.api.send, lambda: self.now)

    async def problem(self, user: User = ANN) -> tuple[int, str]:
        with pytest.raises(ProblemError) as caught:
            await self.tokens.token(user)
        return caught.value.status, caught.value.problem.reason


@pytest.fixture
def made() -> Tokens:
    return Tokens()


async def test_a_token_is_kept_until_half_its_life(made: Tokens) -> None:
    first = await made.tokens.token(ANN)
    made.now += KEPT_SECONDS - 1
    assert await made.tokens.token(ANN) == first
    made.now += 1
    assert await made.tokens.token(ANN) != first
    assert len(made.api.made_tokens) == 2
    assert first not in repr(vars(made.tokens))


async def test_a_token_is_dropped_with_its_key(made: Tokens) -> None:
    first = await made.tokens.token(ANN)
    made.tokens.forget("key-1")
    assert first not in str(vars(made.tokens))
    assert await made.tokens.token(ANN) != first


async def test_a_token_of_another_account_of_that_name_is_not_used(made: Tokens) -> None:
    """The account was deleted and made again after the key was looked at."""
    await made.tokens.token(ANN)
    made.api.add_account("team", uid="another")
    assert await made.tokens.token(ANN), "the key is looked at before each request"
    made.now += KEPT_SECONDS
    assert await made.problem() == (401, "TokenInvalid")
    assert await made.tokens.token(account_user("team", "another", "key-2"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError(404, "NotFound", "x"), (401, "TokenInvalid")),
        (ApiError(403, "Forbidden", "x"), (403, "ApiKeyNotAllowed")),
        (ApiError(0, "Unreachable", "x"), (503, "StorageServerUnavailable")),
        (ApiError(500, "InternalError", "x"), (503, "StorageServerUnavailable")),
    ],
    ids=str,
)
async def test_failures(error: ApiError, expected: tuple[int, str]) -> None:
    async def send(_: Any) -> Any:
        raise error

    tokens = AccountTokens(send, lambda: 100.0)
    with pytest.raises(ProblemError) as caught:
        await tokens.token(ANN)
    assert (caught.value.status, caught.value.problem.reason) == expected


async def test_the_number_of_tokens_is_bounded(made: Tokens) -> None:
    for number in range(MAX_TOKENS + 2):
        await made.tokens.token(account_user("team", "uid-of-account", f"key-{number}"))
    assert len(made.tokens._kept) == MAX_TOKENS


@pytest.mark.parametrize("token", ["", "a", "a.!.c", "a.bnVsbA.c", "a.e30.c"])
def test_a_token_without_a_uid(token: str) -> None:
    assert account_uid_of(token) is None
