"""Places for requests in progress."""

from contextlib import ExitStack

import pytest
from rlrun_server.http.connection_limits import MAX_COMPLETIONS
from rlrun_server.inference.capacity import Capacity
from rlrun_server.inference.errors import InferenceError


def take_all(capacity: Capacity, user: str, stack: ExitStack) -> None:
    with pytest.raises(InferenceError, match="requests in progress"):  # noqa: PT012  # the last one is refused
        for _ in range(MAX_COMPLETIONS + 1):
            stack.enter_context(capacity.request(user))


def test_four_users_leave_places_for_others() -> None:
    capacity = Capacity()
    with ExitStack() as stack:
        for user in "abcd":
            take_all(capacity, user, stack)
        assert capacity.in_progress < MAX_COMPLETIONS
        stack.enter_context(capacity.request("e"))
    assert capacity.in_progress == 0
