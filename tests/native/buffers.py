"""Buffers that end where they say they end. From the standard library alone, for the fuzz driver too."""

import ctypes


def tight(content: bytes) -> ctypes.Array:
    """The same bytes in memory of exactly their size, unlike bytes, which have one more behind them: a sanitizer sees
    every read past the last."""
    return (ctypes.c_ubyte * len(content)).from_buffer_copy(content)


def address_of(buffer: object) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def whole(taken: dict) -> dict:
    """What a packer gave, by shard: where there are no sheets, it is one part for each."""
    assert all(len(parts) == 1 for parts in taken.values()), taken
    return {shard: parts[0] for shard, parts in taken.items()}
