"""Messages of the form {fixed64 instance = 1; fixed64 config_id = 2; bytes frame = 3}, without copying the frame.

What is made here is what the protobuf library would make, except that zeros are written, too. What comes in another
shape (a field left out, another order, unknown fields) is still right, so the caller parses it the long way. Through
the library a call with a frame of 256 KiB costs half as much again, all of it for copies.
"""

from struct import Struct

_HEAD = Struct("<BQBQB")
_INSTANCE, _CONFIG_ID, _FRAME = 1 << 3 | 1, 2 << 3 | 1, 3 << 3 | 2  # field number and wire type
_LENGTH_BYTES_MAX = 5

Frame = bytes | bytearray | memoryview


def pack(instance: int, config_id: int, frame: Frame) -> bytes:
    """
    >>> pack(1, 2, b"abc").hex(" ")
    '09 01 00 00 00 00 00 00 00 11 02 00 00 00 00 00 00 00 1a 03 61 62 63'
    """
    size = memoryview(frame).nbytes
    if not (0 <= instance < 1 << 64 and 0 <= config_id < 1 << 64):
        raise ValueError(f"instance={instance}, config_id={config_id}: use unsigned numbers of 64 bits")
    return b"".join((_HEAD.pack(_INSTANCE, instance, _CONFIG_ID, config_id, _FRAME), _varint(size), frame))


def unpack(message: bytes) -> tuple[int, int, memoryview] | None:
    """None: not in the shape that pack() makes.

    >>> instance, config_id, frame = unpack(pack(1, 2, b"abc"))
    >>> instance, config_id, bytes(frame)
    (1, 2, b'abc')
    >>> unpack(b"") is None
    True
    """
    if len(message) <= _HEAD.size:
        return None
    instance_tag, instance, config_tag, config_id, frame_tag = _HEAD.unpack_from(message)
    if (instance_tag, config_tag, frame_tag) != (_INSTANCE, _CONFIG_ID, _FRAME):
        return None
    size = shift = 0
    for at in range(_HEAD.size, min(len(message), _HEAD.size + _LENGTH_BYTES_MAX)):
        size |= (message[at] & 0x7F) << shift
        shift += 7
        if message[at] < 0x80:
            return (instance, config_id, memoryview(message)[at + 1 :]) if at + 1 + size == len(message) else None
    return None


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
