"""The same cache for coroutines. What may wait is done in a thread; reading memory of this host does not wait."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .versions import Version

if TYPE_CHECKING:
    from .client import Cache


class AsyncCache:
    """`cache.aio`: the calls of a Cache, awaited. The cache itself is opened and closed as usual."""

    def __init__(self, cache: "Cache") -> None:
        self._cache = cache

    async def get(self, key: bytes, **how: Any) -> bytes | None:
        return (await self.get_many([key], **how))[0]

    async def get_many(self, keys: Sequence[bytes], **how: Any) -> list[bytes | None]:
        if self._cache.in_memory:
            return self._cache.get_many(keys, **how)
        return await asyncio.to_thread(self._cache.get_many, keys, **how)

    async def get_with_version(self, key: bytes, **how: Any) -> tuple[bytes, Version] | None:
        if self._cache.in_memory:
            return self._cache.get_with_version(key, **how)
        return await asyncio.to_thread(self._cache.get_with_version, key, **how)

    async def set(self, key: bytes, value: bytes, **how: Any) -> Version:
        return await asyncio.to_thread(self._cache.set, key, value, **how)

    async def set_many(
        self, items: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]], **how: Any
    ) -> Sequence[Version]:
        return await asyncio.to_thread(self._cache.set_many, items, **how)

    async def erase(self, key: bytes, **how: Any) -> None:
        await asyncio.to_thread(self._cache.erase, key, **how)

    async def erase_many(self, keys: Sequence[bytes], **how: Any) -> None:
        await asyncio.to_thread(self._cache.erase_many, keys, **how)

    async def cas(self, key: bytes, value: bytes, expected: Version | None, **how: Any) -> Version | None:
        return await asyncio.to_thread(self._cache.cas, key, value, expected, **how)
