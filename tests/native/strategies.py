"""What the tests of the native room draw from."""

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tailrace.native import Message, Packer

from .buffers import whole

# A machine under load, or a sanitizer, may take its time over one example.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

STREAM = "prices"

contents = st.none() | st.binary(max_size=12) | st.binary(min_size=1, max_size=80)
keys = st.none() | st.just(b"") | st.sampled_from([b"a", b"b", b"c", b"key"]) | st.binary(max_size=12)
times_us = st.integers(-1000, 1000) | st.sampled_from([-(2**63), 2**63 - 1])


@dataclass(frozen=True)
class Sample:
    """Messages of one shard, and how they were packed."""

    start: int
    entries: bytes
    data: bytes
    messages: tuple[Message, ...]

    @property
    def by_position(self) -> dict[int, Message]:
        return {message.position: message for message in self.messages}


def sample_of(rows: list[tuple[bytes | None, bytes | None]], times: list[int], start: int) -> Sample:
    """Rows are (key, value), and None, None is not among them."""
    packer = Packer([start], [-(2**63)], 1 << 20)
    messages, position, time_us = [], start, -(2**63)
    for (key, value), stamp in zip(rows, times, strict=True):
        packer.add(value, key, 0, stamp)
        time_us = max(time_us, stamp)
        messages.append(Message(stream=STREAM, shard=3, position=position, timestamp_us=time_us, key=key, value=value))
        position += max(1, len(key or b"") + len(value or b""))
    packed = whole(packer.take()).get(0)
    if packed is None:
        return Sample(start, b"", b"", ())
    return Sample(start, bytes(packed.entries), bytes(packed.data), tuple(messages))


@st.composite
def samples(draw: st.DrawFn, min_size: int = 0, max_size: int = 12) -> Sample:
    row = st.tuples(keys, contents).filter(lambda row: row != (None, None))
    rows = draw(st.lists(row, min_size=min_size, max_size=max_size))
    times = draw(st.lists(times_us, min_size=len(rows), max_size=len(rows)))
    start = draw(st.integers(0, 200) | st.sampled_from([2**32 - 5, 2**40, 2**62]))
    return sample_of(rows, times, start)
