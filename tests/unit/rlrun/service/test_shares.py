"""Shares among tenants."""

from rlrun.service.shares import Room, Shares


def take_all(shares: Shares, tenant: str) -> int:
    taken = 0
    while shares.take(tenant) is Room.free:
        taken += 1
    return taken


def test_four_tenants_do_not_take_all_places() -> None:
    shares = Shares(32, 128)
    assert [take_all(shares, tenant) for tenant in "abcd"] == [32, 32, 32, 16]
    assert [shares.take(tenant) for tenant in "efgh"] == [Room.free] * 4


def test_the_first_use_needs_a_place_only() -> None:
    shares = Shares(2, 2)
    assert [take_all(shares, tenant) for tenant in "ab"] == [1, 1]
    assert shares.take("c") is Room.full
    shares.release("a")
    assert shares.take("c") is Room.free
    assert shares.uses == 2


def test_a_tenant_has_its_own_limit() -> None:
    shares = Shares(2, 100)
    assert take_all(shares, "a") == shares.uses_of("a") == 2
    assert shares.take("a") is Room.share_used
