"""Orders of a shared pool's processes, and the tokens of the runs in them."""

import hashlib

import pytest
from rlrun.protocol.shared_pool import OrderedRun
from rlrun.service.errors import ProblemError
from rlrun.service.pool_orders import OrderInForce

NUMBER = 10_000_000


def run(uid: str) -> OrderedRun:
    return OrderedRun(uid=uid, token_digest=hashlib.sha256(f"token of {uid}".encode()).hexdigest())


def order_of(*uids: str, number: int = NUMBER) -> OrderInForce[OrderedRun]:
    order = OrderInForce[OrderedRun]()
    order.replace([run(uid) for uid in uids], number)
    return order


@pytest.mark.parametrize(("behind", "is_late"), [(-1, False), (0, False), (1, True), (299_999, True), (300_000, False)])
def test_an_order_that_was_sent_before_the_one_in_force_is_refused(behind: int, is_late: bool) -> None:
    order = order_of("u-1")
    if not is_late:
        order.check(NUMBER - behind)
        return
    with pytest.raises(ProblemError, match=rf"{behind / 1000:.3f} s older than the list in force") as refused:
        order.check(NUMBER - behind)
    assert (refused.value.status, refused.value.problem.reason) == (409, "InvalidRequest")


def test_a_run_is_found_by_its_token() -> None:
    order = order_of("u-1", "u-2")
    found = order.find("Bearer token of u-2")
    assert found is not None
    assert found.uid == "u-2"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer ", "token of u-1", "bearer token of u-1", "Bearer token of u-3", f"Bearer {run('u-1').token_digest}"],
)
def test_other_tokens_find_no_run(authorization: str) -> None:
    assert order_of("u-1", "u-2").find(authorization) is None


def test_a_replaced_order_counts_no_more() -> None:
    order = order_of("u-1")
    order.replace([run("u-2")], NUMBER + 1)
    assert order.find("Bearer token of u-1") is None
    assert list(order.runs) == ["u-2"]
