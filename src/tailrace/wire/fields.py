"""Protobuf's wire format, as much of it as finds large contents in a message without copying them."""

from collections.abc import Iterator

_VARINT_BYTES_MAX = 10


def varint(number: int) -> bytes:
    """
    >>> varint(300).hex(" ")
    'ac 02'
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def split(message: memoryview, keep: list[memoryview] | None = None) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of each field: of those with a length their bytes, of others the bytes that they are written
    with. `keep` gets each field as a whole, before it is handed out. ValueError: not a message.

    >>> [(number, bytes(content)) for number, content in split(memoryview(bytes.fromhex("08 96 01 1a 02 61 62")))]
    [(1, b'\\x96\\x01'), (3, b'ab')]
    """
    at = 0
    while at < len(message):
        begin = at
        tag, at = _read_varint(message, at)
        match tag & 7:
            case 0:
                start = at
                _, at = _read_varint(message, at)
            case 1:
                start, at = at, at + 8
            case 2:
                size, start = _read_varint(message, at)
                at = start + size
            case 5:
                start, at = at, at + 4
            case other:
                raise ValueError(f"wire type {other}")
        if at > len(message) or tag >> 3 == 0:
            raise ValueError("a field that does not end")
        if keep is not None:
            keep.append(message[begin:at])
        yield tag >> 3, message[start:at]


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(at, min(at + _VARINT_BYTES_MAX, len(message))):
        number |= (message[place] & 0x7F) << shift
        shift += 7
        if message[place] < 0x80:
            return number, place + 1
    raise ValueError("a number that does not end")
