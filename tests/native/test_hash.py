"""Which shard a key belongs to: XXH64 with seed 0, scaled to the number of shards."""

import random
from itertools import product

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tailrace.native import hash64, shard_of

from . import model
from .buffers import tight
from .strategies import PATIENT

BYTES = random.Random(2).randbytes(5000)
SHARDS_MAX = 2**32 - 1


def test_published_examples():
    assert hash64(b"") == model.hash64(b"") == 0xEF46DB3751D8E999
    assert hash64(b"a") == model.hash64(b"a") == 0xD24EC4F1A98C6E5B
    assert hash64(b"abc") == model.hash64(b"abc") == 0x44BC2CF5AD770999


def test_every_length_at_every_alignment():
    whole = memoryview(BYTES)
    for offset, length in product(range(8), range(200)):
        content = whole[offset : offset + length]
        expected = xxhash.xxh64_intdigest(bytes(content))
        assert hash64(content) == model.hash64(bytes(content)) == expected, (offset, length)


def test_longer_lengths():
    for length in range(200, 5001, 37):
        assert hash64(BYTES[:length]) == xxhash.xxh64_intdigest(BYTES[:length]), length


@given(st.binary(max_size=300))
@PATIENT
def test_any_content(content):
    assert hash64(tight(content)) == model.hash64(content) == xxhash.xxh64_intdigest(content)


@given(st.binary(max_size=40), st.integers(1, SHARDS_MAX) | st.integers(1, 20))
@PATIENT
def test_a_key_has_one_shard_within_the_stream(key, shards):
    shard = shard_of(key, shards)
    assert 0 <= shard < shards
    assert shard == model.shard_of(key, shards) == xxhash.xxh64_intdigest(key) * shards // 2**64


def test_keys_spread_evenly():
    counts = [0] * 7
    for number in range(7000):
        counts[shard_of(b"key %d" % number, 7)] += 1
    assert all(850 < count < 1150 for count in counts), counts


def test_no_shards_or_no_key_are_refused():
    with pytest.raises(ValueError, match="at least one shard"):
        shard_of(b"key", 0)
    for shards in (-1, 2**32):
        with pytest.raises(OverflowError):
            shard_of(b"key", shards)
    for no_key in (None, "text", 7):
        with pytest.raises(TypeError):
            shard_of(no_key, 1)
