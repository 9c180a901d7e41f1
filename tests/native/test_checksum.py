"""CRC-32C: the instruction, the tables, the model and an independent library give the same sums."""

import random
import threading
from itertools import product

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.native import crc32c, crc32c_tables

from . import model
from .buffers import tight
from .strategies import PATIENT

BYTES = random.Random(1).randbytes(40_000)
BOUNDARIES = [3 * 128, 2 * 3 * 128, 3 * 1024, 3 * 1024 + 3 * 128, 2 * 3 * 1024, 3 * 3 * 1024]  # full sets of lanes


def test_the_published_example():
    assert crc32c(b"123456789") == crc32c_tables(b"123456789") == model.crc32c(b"123456789") == 0xE3069283


def test_the_published_examples_of_32_bytes():  # RFC 3720, B.4
    examples = {
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(range(31, -1, -1)): 0x113FDB5C,
    }
    for content, sum in examples.items():
        assert crc32c(content) == crc32c_tables(content) == model.crc32c(content) == sum


def test_every_length_to_5000():
    expected = 0
    for length in range(5001):
        content = BYTES[:length]
        assert crc32c(content) == expected, length
        assert crc32c_tables(content) == expected, length
        assert google_crc32c.value(content) == expected, length
        expected = model.crc32c(BYTES[length : length + 1], expected)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_around_full_lanes_at_every_alignment(boundary):
    whole = memoryview(BYTES)
    for offset, length in product(range(8), range(boundary - 17, boundary + 18)):
        content = whole[offset : offset + length]
        expected = google_crc32c.value(bytes(content))
        assert crc32c(content) == crc32c_tables(content) == expected, (offset, length)


@given(st.lists(st.binary(max_size=500), max_size=6), st.integers(0, 2**32 - 1))
@PATIENT
def test_sums_chain_over_any_cut(pieces, sum):
    whole, chained, by_tables = b"".join(pieces), sum, sum
    for piece in pieces:
        chained, by_tables = crc32c(piece, chained), crc32c_tables(piece, by_tables)
    assert chained == by_tables == crc32c(whole, sum) == google_crc32c.extend(sum, whole)


def test_sums_chain_at_every_cut_of_a_long_input():
    content = memoryview(BYTES)[:7000]
    expected = crc32c(content)
    for cut in range(0, 7001, 7):
        assert crc32c(content[cut:], crc32c(content[:cut])) == expected, cut


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
@PATIENT
def test_the_model_agrees(content, sum):
    assert crc32c(tight(content), sum) == crc32c_tables(tight(content), sum) == model.crc32c(content, sum)


def test_long_inputs():
    content = BYTES * 50
    assert crc32c(content) == crc32c_tables(content) == google_crc32c.value(content)


@pytest.mark.parametrize("sum_of", [crc32c, crc32c_tables])
def test_what_is_no_sum_or_no_buffer_is_refused(sum_of):
    with pytest.raises(TypeError):
        sum_of("text")
    with pytest.raises(BufferError):
        sum_of(memoryview(b"abcd")[::2])
    for sum in (-1, 2**32):
        with pytest.raises(OverflowError):
            sum_of(b"", sum)


def test_threads_do_not_disturb_each_other():
    expected, seen = google_crc32c.value(BYTES), []

    def work():
        seen.append({crc32c(BYTES) for _ in range(200)})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{expected}] * 4
