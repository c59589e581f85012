"""Expiry of cached values by age."""

from typing import Any, TypeVar

K = TypeVar("K")


def drop_expired(cache: dict[K, tuple[float, Any]], until: float) -> None:
    """Remove the values that were read at or before `until` from a cache with the time of each read.

    The cache must be in the order of the reads. Without this removal, the values of deleted objects would stay forever.
    """
    while cache and cache[first := next(iter(cache))][0] <= until:
        del cache[first]
