"""The cache holds at most so many bytes."""

from rlrun_server.rest.base.bounded_cache import BoundedCache


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    cache: BoundedCache[str, int] = BoundedCache(10)
    for name in "abc":
        cache.put(name, ord(name), 3)
    assert cache.get("a") == ord("a")
    cache.put("d", 4, 3)
    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]


def test_a_value_that_is_replaced_frees_its_bytes() -> None:
    cache: BoundedCache[str, int] = BoundedCache(10)
    for size in (4, 5, 6, 4):
        cache.put("a", size, size)
    cache.put("b", 6, 6)
    assert (cache.get("a"), cache.get("b")) == (4, 6)
    cache.put("a", 11, 11)
    assert (cache.get("a"), cache.get("b")) == (None, 6), "larger than all may be together"


def test_a_value_that_is_removed_frees_its_bytes() -> None:
    cache: BoundedCache[str, int] = BoundedCache(10)
    cache.put("a", 6, 6)
    cache.remove("a")
    cache.remove("a")
    cache.put("b", 10, 10)
    assert (cache.get("a"), cache.get("b")) == (None, 10)
