"""Blocks: memory from a pool. Live blocks never share a byte, and the pool keeps a limited amount."""

import gc
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.native import Block

from .buffers import address_of
from .strategies import PATIENT

SMALLEST = 4096  # the pool rounds up to this and to powers of two above
EDGES = [0, 1, 2, 63, 64, 65, *(edge + more for edge in (4096, 8192, 65536, 1 << 20) for more in (-1, 0, 1))]


def fill(block, seed):
    content = random.Random(seed).randbytes(len(block))
    memoryview(block)[:] = content
    return content


@pytest.mark.parametrize("size", EDGES)
def test_a_block_has_the_size_asked_for_and_all_of_it_is_writable(size):
    block = Block(size)
    view = memoryview(block)
    assert (block.size, len(block), view.nbytes, view.itemsize, view.readonly) == (size, size, size, 1, False)
    content = fill(block, size)
    assert bytes(block) == content


@pytest.mark.parametrize("size", [size for size in EDGES if size])
def test_a_block_is_aligned_for_vectors(size):
    assert address_of(Block(size)) % 64 == 0


def test_an_empty_block_is_an_empty_buffer():
    assert bytes(Block(0)) == b""
    assert memoryview(Block(0)).nbytes == 0


@pytest.mark.parametrize("size", [-1, -(2**63)])
def test_a_negative_size_is_refused(size):
    with pytest.raises(ValueError, match="a block of -"):
        Block(size)


@pytest.mark.parametrize("size", [2**50, 2**51, 2**51 + 1, 2**62, 2**63 - 1])
def test_more_than_there_is_is_refused(size):
    with pytest.raises(MemoryError):
        Block(size)
    assert len(Block(1)) == 1  # and the pool is none the worse for it


def test_what_is_no_size_is_refused():
    for size in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            Block(size)
    for size in ("4096", 1.5, None):
        with pytest.raises(TypeError):
            Block(size)
    with pytest.raises(AttributeError):
        Block(1).size = 2


@given(
    st.lists(
        st.tuples(st.just("take"), st.sampled_from(EDGES[:-3]) | st.integers(0, 20_000))
        | st.tuples(st.just("give"), st.integers(0, 1000)),
        max_size=60,
    )
)
@PATIENT
def test_live_blocks_keep_their_own_content(operations):
    live = []
    for number, (operation, argument) in enumerate(operations):
        if operation == "take":
            block = Block(argument)
            live.append((block, fill(block, number)))
        elif live:
            live.pop(argument % len(live))
        assert all(bytes(block) == content for block, content in live)


def test_a_view_keeps_its_block():
    view = memoryview(block := Block(100))
    content = fill(block, 1)
    del block
    gc.collect()
    others = [Block(100) for _ in range(20)]
    for number, other in enumerate(others):
        fill(other, 100 + number)
    assert bytes(view) == content


def test_the_pool_gives_the_same_memory_again():
    size = 3 * SMALLEST
    first = Block(size)
    address = address_of(first)
    del first
    assert address_of(Block(size)) == address
    assert address_of(Block(size - 1000)) == address  # the same power of two


def test_the_pool_keeps_sizes_apart():
    small, large = Block(SMALLEST), Block(2 * SMALLEST)
    taken = {address_of(small), address_of(large)}
    del small, large
    again = [Block(2 * SMALLEST), Block(2 * SMALLEST)]
    for number, block in enumerate(again):
        fill(block, number)
    assert len({address_of(block) for block in again} & taken) == 1


LIMIT = """
from tailrace.native import Block

size, mark = 64 << 20, b"kept by the pool"
blocks = [Block(size) for _ in range(7)]
for block in blocks:
    memoryview(block)[100 : 100 + len(mark)] = mark
del block, blocks
again = [Block(size) for _ in range(7)]
print(sum(bytes(memoryview(block)[100 : 100 + len(mark)]) == mark for block in again))
"""


def test_the_pool_keeps_no_more_than_its_limit():
    """Fresh memory of this size is zero; what still has our mark came from the pool. In a process of its own: what
    other tests have left in the pool counts, too."""
    done = subprocess.run([sys.executable, "-c", LIMIT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4"]  # 256 MiB
