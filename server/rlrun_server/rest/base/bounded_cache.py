"""LRU cache with a limit in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Thread-safe cache of values by key, bounded by the sizes passed to `put`."""

    def __init__(self, limit: int) -> None:
        """`limit` is the maximum total size of the values in bytes."""
        self._limit = limit
        self._size = 0
        self._held: OrderedDict[K, tuple[int, V]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value of the key, or None if it is not in the cache."""
        with self._lock:
            value = self._held.get(key)
            if value is None:
                return None
            self._held.move_to_end(key)
            return value[1]

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value of `size` bytes, and evict the least recently used values while the limit is exceeded. A value
        that exceeds the limit by itself is not added.
        """
        with self._lock:
            self._remove(key)
            if size > self._limit:
                return
            self._held[key] = (size, value)
            self._size += size
            while self._size > self._limit:
                _, (freed, _) = self._held.popitem(last=False)
                self._size -= freed

    def remove(self, key: K) -> None:
        """Remove the value of the key."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: K) -> None:
        size, _ = self._held.pop(key, (0, None))
        self._size -= size
