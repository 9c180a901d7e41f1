"""A cell as a dictionary with versions: what may be told from outside, and nothing about memory."""

import struct
from collections import OrderedDict
from collections.abc import Callable

import xxhash

from tailrace.native.cell import SLAB_BYTES, Outcome

Version = tuple[int, int, int]
NOTHING: Version = (0, 0, 0)
FULL = 2**64 - 1
SEED_HIGH = 0x5441494C52414345


def key_hash(key: bytes, low_mask: int = FULL, high_mask: int = FULL) -> bytes:
    low, high = xxhash.xxh64_intdigest(key, 0) & low_mask, xxhash.xxh64_intdigest(key, SEED_HIGH) & high_mask
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def filled(part: bytes) -> bytes:
    return part + bytes(-len(part) % 64)


def entry_sum(instance: int, offset: int, entry: bytes) -> int:
    """Of a whole data entry. Numbers are of 64 bits throughout."""
    key_bytes, value_bytes = struct.unpack_from("<II", entry, 4)
    key, value = entry[32 : 32 + key_bytes], entry[32 + (key_bytes + 7) // 8 * 8 :]
    assert len(value) == value_bytes
    run = filled(struct.pack("<QQ", instance, offset) + entry[4:32]) + filled(key) + filled(value)
    totals = [0] * 8
    for number, word in enumerate(struct.unpack(f"<{len(run) // 8}Q", run)):
        keyed = word ^ ((number + 1) * 0x9E3779B97F4A7C15 & FULL)
        totals[number % 8] += (keyed & 0xFFFFFFFF) * (keyed >> 32)
        totals[number % 8 ^ 1] += word
    mixed = 0
    for total in totals:
        mixed = (mixed ^ (total & FULL)) * 0xD6E8FEB86659FD93 & FULL
        mixed ^= mixed >> 29
    return (mixed ^ mixed >> 32) & 0xFFFFFFFF


class Cell:
    def __init__(self, tombstones: int, hash_of: Callable[[bytes], bytes] = key_hash) -> None:
        self.stored: dict[bytes, tuple[bytes, Version, int]] = {}
        self.tombs: OrderedDict[bytes, Version] = OrderedDict()
        self.tombstones, self.summary, self.hash_of = tombstones, NOTHING, hash_of

    def floor(self, key: bytes) -> Version:
        if key in self.stored:
            return self.stored[key][1]
        return max(self.tombs.get(self.hash_of(key), NOTHING), self.summary)

    def set(self, key: bytes, value: bytes, version: Version, expiry_s: int, now_s: int) -> Outcome:
        if version <= self.floor(key):
            return Outcome.STALE
        if 32 + (len(key) + 7) // 8 * 8 + len(value) > SLAB_BYTES:
            return Outcome.TOO_LARGE
        self.stored[key] = (value, version, expiry_s)
        return Outcome.APPLIED

    def cas(self, key: bytes, value: bytes, expected: Version, version: Version, expiry_s: int, now_s: int) -> Outcome:
        found = self.get(key, now_s)
        if (found[1] if found else NOTHING) != expected:
            return Outcome.MISMATCH
        return self.set(key, value, version, expiry_s, now_s)

    def erase(self, key: bytes, version: Version) -> Outcome:
        if version <= self.floor(key):
            return Outcome.STALE
        self.stored.pop(key, None)
        name = self.hash_of(key)
        if name not in self.tombs and self.tombstones == 0:
            self.summary = max(self.summary, version)
            return Outcome.APPLIED
        if name not in self.tombs and len(self.tombs) == self.tombstones:
            self.summary = max(self.summary, self.tombs.popitem(last=False)[1])
        self.tombs[name] = max(version, self.tombs.get(name, NOTHING))
        return Outcome.APPLIED

    def get(self, key: bytes, now_s: int) -> tuple[bytes, Version] | None:
        if key not in self.stored:
            return None
        value, version, expiry_s = self.stored[key]
        return None if expiry_s and now_s >= expiry_s else (value, version)

    def collect(self, now_s: int) -> int:
        old = [key for key, (_, _, expiry_s) in self.stored.items() if expiry_s and now_s >= expiry_s]
        for key in old:
            self.drop(key)
        return len(old)

    def drop(self, key: bytes) -> None:
        """Evicted or expired: gone without a tombstone, so that the summary speaks for it."""
        self.summary = max(self.summary, self.stored.pop(key)[1])
