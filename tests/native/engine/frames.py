"""The frames of docs/formats/engine.md in Python, and a peer that speaks them: the model of a link.

It knows nothing of a cell's layout: a raw data entry is bytes that end with the value.
"""

import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

VERSION = 1
HELLO_MAGIC, WELCOME_MAGIC = b"TAILLINK", b"TAILENGN"
HELLO = struct.Struct("<8sII32s")
WELCOME = struct.Struct("<8sIIIIIIQQQQQ")
REQUEST = struct.Struct("<IHHQQQIIII")
RANGE = struct.Struct("<IIQQ16s")
ANSWER = struct.Struct("<IHHQQQQQQII")
SCANNED = struct.Struct("<HHIQIIQII")
FETCHED = struct.Struct("<HHI")
MUTATED = struct.Struct("<HHIQII")
AWAITED = struct.Struct("<16sQII")
PING, SCAN, READ, MUTATE, WAIT = range(5)
WELCOMED, NO_MAGIC, NO_VERSION, NO_TICKET, NO_PLACE = range(5)
ANSWERED, CHANGED_HANDS, MALFORMED = range(3)
INDEX, DATA = 1, 2
DONE, CHANGED, STALE, OUTSIDE = range(4)
WRONG, SHUT = 1, 2
FOUND, HIT, MISS, ASK, UNSETTLED, REVOKED = range(1, 7)

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Welcome:
    status: int
    layout: int
    request_bytes_max: int
    answer_bytes_max: int
    instance: int
    config_id: int
    generation: int
    buckets: int
    reserved: int
    version: int = VERSION

    @classmethod
    def unpack(cls, raw: bytes) -> "Welcome":
        magic, version, status, layout, request_max, answer_max, zero, *head = WELCOME.unpack(raw)
        assert (magic, zero) == (WELCOME_MAGIC, 0), raw
        return cls(status, layout, request_max, answer_max, *head, version=version)

    def pack(self) -> bytes:
        told = (self.status, self.layout, self.request_bytes_max, self.answer_bytes_max, 0, self.instance)
        head = (self.config_id, self.generation, self.buckets, self.reserved)
        return WELCOME.pack(WELCOME_MAGIC, self.version, *told, *head)


@dataclass(frozen=True)
class Scanned:
    state: int
    raw: bytes = b""  # the data entry, if it came along
    version: Version = (0, 0, 0)
    offset: int = 0
    size: int = 0
    expiry_s: int = 0

    def pack(self) -> bytes:
        entry = (*self.version, self.offset, self.size, self.expiry_s)
        return SCANNED.pack(self.state, 0, len(self.raw), *entry) + padded(self.raw)


@dataclass(frozen=True)
class Fetched:
    status: int
    raw: bytes = b""

    def pack(self) -> bytes:
        return FETCHED.pack(self.status, 0, len(self.raw)) + padded(self.raw)


@dataclass(frozen=True)
class Mutated:
    status: int
    raw: bytes = b""  # outcomes, or words
    floor: Version = (0, 0, 0)

    def pack(self) -> bytes:
        return MUTATED.pack(self.status, 0, len(self.raw), *self.floor) + padded(self.raw)


@dataclass(frozen=True)
class Range:
    region: int
    size: int
    generation: int
    offset: int
    hash: bytes = bytes(16)

    def pack(self) -> bytes:
        return RANGE.pack(self.region, self.size, self.generation, self.offset, self.hash)


@dataclass(frozen=True)
class Answer:
    kind: int
    status: int
    tag: int
    instance: int
    config_id: int
    generation: int
    buckets: int
    reserved: int
    first: int
    items: tuple[Scanned | Fetched | Mutated, ...] = ()

    def pack(self) -> bytes:
        body = b"".join(item.pack() for item in self.items)
        head = (self.instance, self.config_id, self.generation, self.buckets, self.reserved)
        told = (self.kind, self.status, self.tag, *head, self.first, len(self.items))
        return ANSWER.pack(ANSWER.size + len(body), *told) + body

    @classmethod
    def unpack(cls, raw: bytes) -> "Answer":
        size, kind, status, tag, *head, first, count = ANSWER.unpack_from(raw)
        assert size == len(raw)
        assert size % 8 == 0
        items: list[Scanned | Fetched | Mutated] = []
        at = ANSWER.size
        for _ in range(count):
            layout = {SCAN: SCANNED, READ: FETCHED, MUTATE: MUTATED, WAIT: SCANNED}[kind]
            state, zero, data_bytes, *entry = layout.unpack_from(raw, at)
            at += layout.size
            data, padding = raw[at : at + data_bytes], raw[at + data_bytes : at + len(padded(data_bytes))]
            at += len(padded(data_bytes))
            assert (zero, any(padding), len(data)) == (0, False, data_bytes)
            if kind in (SCAN, WAIT):
                clock, client, sequence, *place = entry
                items.append(Scanned(state, data, (clock, client, sequence), *place))
            elif kind == MUTATE:
                clock, client, sequence = entry
                items.append(Mutated(state, data, (clock, client, sequence)))
            else:
                items.append(Fetched(state, data))
        assert at == size
        return cls(kind, status, tag, *head, first, tuple(items))


def padded(content: bytes | int) -> bytes:
    if isinstance(content, int):
        return bytes(-(-content // 8) * 8)
    return content + bytes(-len(content) % 8)


def hello(ticket: bytes, version: int = VERSION, magic: bytes = HELLO_MAGIC) -> bytes:
    return HELLO.pack(magic, version, 0, ticket)


def request(
    kind: int,
    tag: int,
    items: Sequence[bytes] = (),
    *,
    instance: int,
    config_id: int,
    now_s: int = 0,
    data_bytes_max: int = 0,
    wait_ms: int = 0,
) -> bytes:
    body = b"".join(items)
    told = (kind, 0, tag, instance, config_id, len(items), now_s, data_bytes_max, wait_ms)
    return REQUEST.pack(REQUEST.size + len(body), *told) + body


class HungUp(Exception):
    """The engine ended the connection."""


class Peer:
    """One connection that waits for each answer. Raises HungUp when the engine ends it."""

    def __init__(
        self, address: tuple[str, int], ticket: bytes | None = None, receive_buffer: int | None = None
    ) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect(address)
        self.tag = 0
        if ticket is not None:
            self.send(hello(ticket))
            self.welcome = self.receive_welcome()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, content: bytes) -> None:
        try:
            self.socket.sendall(content)
        except (BrokenPipeError, ConnectionResetError) as seen:
            raise HungUp from seen

    def receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(min(count - len(parts), 1 << 20))
            except ConnectionResetError as seen:
                raise HungUp from seen
            if not part:
                raise HungUp(f"after {len(parts)} of {count} bytes")
            parts += part
        return bytes(parts)

    def receive_welcome(self) -> Welcome:
        return Welcome.unpack(self.receive(WELCOME.size))

    def receive_answer(self) -> Answer:
        begin = self.receive(4)
        (size,) = struct.unpack("<I", begin)
        assert ANSWER.size <= size <= self.welcome.answer_bytes_max
        return Answer.unpack(begin + self.receive(size - 4))

    def is_ended(self) -> bool:
        """That the engine hangs up, whatever it says before; waits for it, and fails if that takes too long."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def request(self, kind: int, items: Sequence[bytes] = (), **more: int) -> bytes:
        self.tag += 1
        settings = {"instance": self.welcome.instance, "config_id": self.welcome.config_id} | more
        return request(kind, self.tag, items, **settings)

    def ask(self, kind: int, items: Sequence[bytes] = (), **more: int) -> list[Answer]:
        """All parts of one answer, of which the last is complete or not an answer."""
        self.send(self.request(kind, items, **more))
        answers, answered = [], 0
        while True:
            answer = self.receive_answer()
            assert (answer.kind, answer.tag, answer.first) == (kind, self.tag, answered)
            answers.append(answer)
            answered += len(answer.items)
            if answer.status != ANSWERED or answered == len(items):
                return answers
            assert answer.items

    def scan(
        self, hashes: Iterable[bytes], now_s: int = 0, data_bytes_max: int = 1 << 20, **more: int
    ) -> list[Scanned]:
        answers = self.ask(SCAN, list(hashes), now_s=now_s, data_bytes_max=data_bytes_max, **more)
        assert all(answer.status == ANSWERED for answer in answers)
        return [item for answer in answers for item in answer.items if isinstance(item, Scanned)]

    def read(self, ranges: Iterable[Range], **more: int) -> list[Fetched]:
        answers = self.ask(READ, [each.pack() for each in ranges], **more)
        assert all(answer.status == ANSWERED for answer in answers)
        return [item for answer in answers for item in answer.items if isinstance(item, Fetched)]

    def mutate(self, frame: bytes, **more: int) -> Mutated:
        (answer,) = self.ask(MUTATE, [frame], **more)
        (item,) = answer.items
        assert isinstance(item, Mutated)
        return item

    def ping(self) -> Answer:
        (answer,) = self.ask(PING)
        return answer
