"""Many values that belong together, in one buffer."""

import pytest

from tailrace.native.cell import Cell
from tailrace.native.client import CellClient

STRIDE = 1000
PREFIX = b"a file's key"


def key(number):
    return PREFIX + number.to_bytes(4, "little")


@pytest.fixture
def client(tmp_path):
    cell = Cell(str(tmp_path), 1 << 22, 1 << 22, 4, "lrm", 7)
    for number in range(100):
        cell.set(key(number), bytes([number]) * (number * 10), (1, 1, number), 0, 1)
    found = CellClient(1, 1, 1)
    found.attach_view(0, str(tmp_path), 7)
    yield found
    cell.close(remove=True)


def test_values_lie_a_stride_apart(client):
    room = bytearray(b"\xff" * (50 * STRIDE))
    assert client.get_parts(PREFIX, 20, 50, room, STRIDE) == [10 * number for number in range(20, 70)]
    for place, number in enumerate(range(20, 70)):
        part = room[place * STRIDE : (place + 1) * STRIDE]
        assert part == bytes([number]) * (10 * number) + b"\xff" * (STRIDE - 10 * number)


def test_what_is_not_there_or_does_not_fit_has_no_size(client):
    room = bytearray(4 * 985)
    assert client.get_parts(PREFIX, 97, 4, room, 985) == [
        970,
        980,
        -1,
        -1,
    ]  # 990 bytes do not fit, and 100 is not there
    assert client.get_parts(b"another", 0, 3, room, 900) == [-1, -1, -1]
    assert client.asks == client.unreachable == []


def test_only_some(client):
    room = bytearray(b"\xff" * (4 * STRIDE))
    assert client.get_parts(PREFIX, 10, 4, room, STRIDE, only=[3, 1]) == [-1, 110, -1, 130]
    assert room[:STRIDE] == b"\xff" * STRIDE
    assert room[STRIDE : STRIDE + 110] == bytes([11]) * 110
    assert client.get_parts(PREFIX, 10, 4, room, STRIDE, only=[]) == [-1] * 4


def test_what_cannot_be_is_refused(client):
    with pytest.raises(ValueError, match="4 parts of 1000 bytes into 3999"):
        client.get_parts(PREFIX, 0, 4, bytearray(3999), STRIDE)
    with pytest.raises(ValueError, match="part 4 of 4"):
        client.get_parts(PREFIX, 0, 4, bytearray(4000), STRIDE, only=[4])
    with pytest.raises((BufferError, TypeError, ValueError)):
        client.get_parts(PREFIX, 0, 1, bytes(STRIDE), STRIDE)
    assert client.get_parts(PREFIX, 5, 1, bytearray(STRIDE), STRIDE) == [50], "and it goes on"
