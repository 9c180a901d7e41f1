"""One case: make an input, damage it, feed it to its readers, and hold what they say against the model.

Damage comes in three kinds. Raw: bytes change anywhere. Structured: entries move, vanish or take odd numbers. Forged:
the same, with sums made true again, so that bounds and shapes alone have to hold. Unless it was forged, a damaged input
may yield nothing that was not in the original at the same place.

The random numbers of a case decide everything about it.
"""

import struct
from collections.abc import Callable
from random import Random

from fuzz_inputs import FENCE, HEADER, NAMES, U64_MAX, Columns, Records, Row, column, forge, pack

from native import model
from native.buffers import tight, whole
from tailrace import native
from tailrace.files.fence import FenceRecord
from tailrace.model import MessageFile
from tailrace.streams.segments import IndexHeader

ODD_U64 = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, U64_MAX - 23, U64_MAX]
ODD_I64 = [-(2**63), -1, 0, 1, 2**31, 2**60, 2**61 - 1, 2**61, 2**61 + 1, 2**62, 2**63 - 1]
ODD_SHAPES = [0, 1, model.HAS_KEY, model.NO_VALUE, model.FILLER, 1 << 31, model.KEY_BYTES_MAX, 2**32 - 1]
STARTS = [0, 1, 4096, 2**31 - 3, 2**32 - 3, 2**62 - 20_000, 2**62]
fast_sum = native.crc32c_tables  # not the code that the readers use


# ---- damage


def damage_raw(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random.randrange(256)
            case 2:
                del changed[at:]
            case 3:
                changed[at:at] = random.randbytes(random.randint(1, 30))
            case 4:
                word = struct.pack("<Q", random.choice(ODD_U64))
                changed[at // 8 * 8 : at // 8 * 8 + 8] = word
            case _:
                other = random.randrange(len(changed) + 1)
                changed[at : at + 8] = changed[other : other + 8]
    return bytes(changed)


def damage_entries(random: Random, entries: list[list[int]]) -> None:
    for _ in range(random.randint(1, 3)):
        if not entries:
            return
        at, other = random.randrange(len(entries)), random.randrange(len(entries))
        entry = entries[at]
        match random.randrange(9):
            case 0:
                entry[0] = random.choice(ODD_U64)
            case 1:
                entry[0] = (entry[0] + random.randint(-30, 30)) & U64_MAX
            case 2:
                entry[1] = random.choice([random.choice(ODD_I64), max(-(2**63), entry[1] - 5)])
            case 3:
                entry[2] = random.choice([random.choice(ODD_SHAPES), entry[2] ^ random.choice(ODD_SHAPES)])
            case 4:
                entry[2] = entry[2] & ~0xFF | random.randrange(256)
            case 5:
                entries[at], entries[other] = entries[other], entries[at]
            case 6:
                del entries[at]
            case 7:
                entries.insert(at, list(entries[other]))
            case 8:
                entry[0], entries[other][0] = entries[other][0], entry[0]


# ---- records


def some_rows(random: Random) -> list[Row]:
    rows = []
    for _ in range(random.randrange(12)):
        key = random.choice([None, None, b"", b"k", random.randbytes(random.randrange(20))])
        value = random.choice([None, b"", random.randbytes(random.randrange(60)), b"v" * random.randrange(900)])
        if key is not None or value is not None:
            rows.append((key, value))
    return rows


def records_case(random: Random, corpus: dict[str, bytes]) -> None:
    stored = [raw for name, raw in corpus.items() if name.endswith(".records")]
    if stored and random.random() < 0.3:
        original = Records.decode(random.choice(stored))
    else:
        original = pack(some_rows(random), random.choice(STARTS))
    start, entries, data = original.start, original.entries, original.data
    forged = False
    for _ in range(random.randint(1, 2)):
        kind = random.randrange(4)
        if kind == 0:
            entries = damage_raw(random, entries)
        elif kind == 1:
            data = damage_raw(random, data)
        elif len(entries) % model.ENTRY_BYTES == 0:
            listed = [list(entry) for entry in model.ENTRY.iter_unpack(entries)]
            damage_entries(random, listed)
            entries = b"".join(model.ENTRY.pack(*entry) for entry in listed)
            if kind == 3:
                forged = True
                entries = forge(start, [tuple(entry[:3]) for entry in listed], data, fast_sum).entries
    if random.random() < 0.1:
        start = random.choice(STARTS)
    read_records(Records(start, entries, data), None if forged else original)


def read_records(given: Records, original: Records | None) -> None:
    """Read in every way, in memory that ends where the content does."""
    entries, data = tight(given.entries), tight(given.data)
    if len(given.entries) % model.ENTRY_BYTES:
        for read in (
            lambda: native.verify(entries, given.start, data),
            lambda: native.Records("fuzz", 1, given.start, entries, data),
            lambda: native.count_to_position(entries, 0),
            lambda: native.count_to_time(entries, 0),
            lambda: native.entry_at(entries, 0),
        ):
            expect_refusal(read)
        return
    records = native.Records("fuzz", 1, given.start, entries, data)
    expected = model.Records("fuzz", 1, given.start, given.entries, given.data, fast_sum)
    check(native.verify(entries, given.start, data) == expected.count, "verify")
    for name in ("count", "start", "end", "first_time_us", "last_time_us"):
        check(getattr(records, name) == getattr(expected, name), name)
    check(bytes(records.data) == expected.data, "data")
    messages = [(m.position, m.timestamp_us, m.key, m.value) for m in records.messages()]
    check(messages == [(m.position, m.timestamp_us, m.key, m.value) for m in expected.messages()], "messages")
    for number, (one, other) in enumerate(zip(records.columns(), expected.columns(), strict=True)):
        same = bytes(one)[: len(other)] == other if isinstance(other, bytes) else one == other
        check(same, f"column {number}")
    total = len(given.entries) // model.ENTRY_BYTES
    for number in ODD_U64:
        check(0 <= native.count_to_position(entries, number) <= total, "count_to_position")
        check(0 <= native.count_to_time(entries, number - 2**63) <= total, "count_to_time")
        if number >= total:
            expect_refusal(lambda number=number: native.entry_at(entries, number), IndexError)
        else:
            check(native.entry_at(entries, number) == model.entry_at(given.entries, number), "entry_at")
    if original is not None:
        whole = model.Records("fuzz", 1, original.start, original.entries, original.data, fast_sum)
        packed = {(m.position, m.timestamp_us, m.key, m.value) for m in whole.messages()}
        check(packed.issuperset(messages), "a message that was not packed there")


# ---- columns


def columns_case(random: Random, corpus: dict[str, bytes]) -> None:
    stored = [raw for name, raw in corpus.items() if name.endswith(".columns")]
    if stored and random.random() < 0.3:
        given = Columns.decode(random.choice(stored))
    else:
        rows = some_rows(random)
        keys = column([key for key, _ in rows]) if random.random() < 0.6 else (None, None, None)
        given = Columns((*column([value for _, value in rows]), *keys), 0, len(rows))
    buffers, first, count = list(given.buffers), given.first, given.count
    for _ in range(random.randint(0, 2)):
        at = random.randrange(6)
        match random.randrange(4):
            case 0:
                first = random.choice([*ODD_I64, random.randint(-1, 9)])
            case 1:
                count = random.choice([*ODD_I64, random.randint(-1, 9)])
            case 2 if buffers[at] is not None:
                buffers[at] = damage_raw(random, buffers[at])
            case _ if buffers[at] is not None and at % 3 == 1:  # offsets
                ends = [end for (end,) in struct.iter_unpack("<q", buffers[at][: len(buffers[at]) // 8 * 8])]
                if ends:
                    ends[random.randrange(len(ends))] = random.choice([*ODD_I64, random.randint(-3, 99)])
                buffers[at] = struct.pack(f"<{len(ends)}q", *ends)
    read_columns(Columns(tuple(buffers), first, count), random.choice([None, None, 0, 2, 7]))


def read_columns(given: Columns, shard: int | None) -> None:
    positions = ([0, 5, None], [0, 0, 0], 1000)
    packer, other = native.Packer(*positions), model.Packer(*positions, fast_sum)
    for one in (packer, other):
        one.add(b"before", None, None, 1)
    pending = packer.pending_bytes
    buffers = [None if buffer is None else tight(buffer) for buffer in given.buffers]
    try:
        other.add_columns(*given.buffers, given.first, given.count, shard, 2)
    except ValueError:
        expect_refusal(lambda: packer.add_columns(*buffers, given.first, given.count, shard, 2))
        check(packer.pending_bytes == pending, "a refusal that left something")
    else:
        packer.add_columns(*buffers, given.first, given.count, shard, 2)
    check(packer.pending_bytes == other.pending_bytes, "pending_bytes")
    taken, expected = whole(packer.take()), other.take()
    check(taken.keys() == expected.keys(), "shards")
    for number, packed in taken.items():
        one = expected[number]
        check((packed.start, packed.end, packed.count) == (one.start, one.end, one.count), "packed")
        check((bytes(packed.data), bytes(packed.entries)) == (one.data, one.entries), "packed bytes")


# ---- headers, fences, names


def header_case(random: Random, corpus: dict[str, bytes]) -> None:
    header = IndexHeader(random.choice(ODD_I64), random.choice(ODD_U64), random.choice(ODD_U64))
    raw = random.choice([header.encode(), *(raw for name, raw in corpus.items() if name.endswith(".header"))])
    original = read_header(raw)
    check(original in (header, HEADER), "a header that is not the one written")
    damaged = damage_raw(random, raw)
    if random.random() < 0.3 and len(damaged) == len(raw):  # forged
        read_header(damaged[:-4] + struct.pack("<I", fast_sum(damaged[:-4])))
    else:
        check(read_header(damaged) in (None, original), "a header that was not written")


def read_header(raw: bytes) -> IndexHeader | None:
    try:
        header = IndexHeader.decode(raw)
    except ValueError:
        return None
    check(IndexHeader.decode(header.encode()) == header, "a header that does not survive writing")
    return header


def fence_case(random: Random, corpus: dict[str, bytes]) -> None:
    raw = random.choice([FENCE.encode(), *(raw for name, raw in corpus.items() if name.endswith(".fence"))])
    original = read_fence(raw)
    check(original == FENCE, "a fence that is not the one written")
    if random.random() < 0.3:  # forged, except for the owner's name
        changed = bytearray(raw)
        changed[random.randrange(64)] = random.randrange(256)
        changed[120:124] = struct.pack("<I", fast_sum(bytes(changed[:120])))
        read_fence(bytes(changed))
    else:
        check(read_fence(damage_raw(random, raw)) in (None, original), "a fence that was not written")


def read_fence(raw: bytes) -> FenceRecord | None:
    record = FenceRecord.decode(raw)
    check(record is None or FenceRecord.decode(record.encode()) == record, "a fence that does not survive writing")
    return record


def name_case(random: Random, corpus: dict[str, bytes]) -> None:
    name = random.choice(NAMES)
    for _ in range(random.randint(0, 2)):
        at = random.randrange(len(name) + 1)
        name = (
            name[:at] + random.choice(["", "0", "9", "-", ".", "/", "\0", "\n", "é", "data", "index"]) + name[at + 1 :]
        )
    read_name(name)


def read_name(name: str) -> None:
    file = MessageFile.parse(name)
    check(file is None or file.name == name, f"the name {name!r} reads as {file}")


# ---- all of them


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def expect_refusal(
    read: Callable[[], object], kinds: type | tuple[type, ...] = (ValueError, TypeError, OverflowError)
) -> None:
    try:
        read()
    except kinds:
        return
    raise AssertionError("should have been refused")


CASES = [*[records_case] * 6, *[columns_case] * 3, header_case, fence_case, name_case]


def run_case(random: Random, corpus: dict[str, bytes]) -> None:
    random.choice(CASES)(random, corpus)


def replay(name: str, raw: bytes) -> None:
    """Feed a file of the corpus as it is."""
    match name.rpartition(".")[2]:
        case "records":
            given = Records.decode(raw)
            read_records(given, given)
        case "columns":
            read_columns(Columns.decode(raw), None)
        case "header":
            read_header(raw)
        case "fence":
            read_fence(raw)
        case "names":
            for line in raw.decode().split("\n"):
                read_name(line)
        case kind:
            raise AssertionError(f"nobody reads .{kind}")
