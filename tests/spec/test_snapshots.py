"""Snapshots: names, bytes, folding, and which of them stay. All pure but for Arrow."""

import json
import random
import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.native import Message, crc32c
from tailrace.streams.batch import arrow_schema
from tailrace.streams.snapshot import (
    SnapshotFile,
    SnapshotMeta,
    columns,
    decode,
    encode,
    fold,
    kept,
    snapshot_schema,
    snapshots_of,
)

META = SnapshotMeta("prices", "abc", shard=3, position=4096, created_us=7)
State = dict[bytes, tuple[bytes, int]]


def table_of(state: State) -> pa.Table:
    return columns(list(state), [value for value, _ in state.values()], [time for _, time in state.values()])


def state_of(table: pa.Table) -> State:
    rows = table.to_pylist()
    assert len({row["key"] for row in rows}) == len(rows), "a key twice"
    return {row["key"]: (row["value"], row["time_us"]) for row in rows}


def updates(messages: list[Message]) -> pa.Table:
    return pa.Table.from_pydict(
        {
            "key": [m.key for m in messages],
            "value": [m.value for m in messages],
            "timestamp": [m.timestamp_us for m in messages],
            "shard": [m.shard for m in messages],
            "position": [m.position for m in messages],
        },
        schema=arrow_schema(),
    )


def with_its_sum(file: SnapshotFile, content: bytes) -> SnapshotFile:
    return SnapshotFile(file.position, file.created_us, crc32c(content))


# ---- bytes


@given(st.dictionaries(st.binary(max_size=20), st.tuples(st.binary(max_size=50), st.integers(0, 2**62)), max_size=30))
@settings(max_examples=50)
def test_what_is_encoded_is_decoded(state: State) -> None:
    file, content = encode(META, table_of(state))
    assert SnapshotFile.parse(file.name) == file
    meta, table = decode(file, content)
    assert meta == META
    assert state_of(table) == state
    assert table.schema.equals(snapshot_schema())


def test_any_arrow_tool_reads_it() -> None:
    _, content = encode(META, table_of({b"a": (b"1", 5)}))
    with pa.ipc.open_file(pa.py_buffer(content)) as source:
        assert source.read_all().to_pydict() == {"key": [b"a"], "value": [b"1"], "time_us": [5]}
        told = json.loads(source.schema.metadata[b"tailrace"])
    assert told == {
        "version": 1,
        "keys": 1,
        "stream": "prices",
        "incarnation": "abc",
        "shard": 3,
        "position": 4096,
        "created_us": 7,
    }


def test_large_tables_have_many_record_batches() -> None:
    many = table_of({b"%06d" % number: (b"x", number) for number in range(200_000)})
    file, content = encode(META, many)
    assert len(content) < 200_000 * 15
    assert decode(file, content)[1].equals(many)


def test_every_cut_and_every_flipped_byte_is_noticed() -> None:
    file, content = encode(META, table_of({b"%d" % number: (b"value", number) for number in range(50)}))
    whole = bytes(content)
    for size in range(0, len(whole), 7):
        with pytest.raises(ValueError, match="checksum"):
            decode(file, whole[:size])
    for place in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[place] ^= 0x40
        with pytest.raises(ValueError, match="checksum"):
            decode(file, bytes(broken))


def test_hostile_bytes_with_a_right_checksum_are_refused_or_harmless() -> None:
    """Whoever can write the folder can also name the file after its sum."""
    file, content = encode(META, table_of({b"%d" % number: (b"value" * 9, number) for number in range(300)}))
    whole, random_ = bytes(content), random.Random(zlib.crc32(b"hostile"))
    refused = 0
    for _ in range(1500):
        broken = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2, 8))):
            broken[random_.randrange(len(broken))] = random_.randrange(256)
        if random_.random() < 0.2:
            del broken[random_.randrange(len(broken)) :]
        try:
            _, table = decode(with_its_sum(file, bytes(broken)), bytes(broken))
            table.to_pylist()
        except ValueError:
            refused += 1
    assert refused > 300


def rewritten(table: pa.Table, **told: object) -> tuple[SnapshotFile, bytes]:
    """A file as another program might write it."""
    meta = {"version": 1, "keys": table.num_rows, "stream": "prices", "incarnation": "abc"}
    meta |= {"shard": 3, "position": 4096, "created_us": 7} | told
    table = table.replace_schema_metadata({"tailrace": json.dumps(meta)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    content = sink.getvalue().to_pybytes()
    return SnapshotFile(4096, 7, crc32c(content)), content


def test_another_program_may_use_plain_binary_columns_and_add_its_own() -> None:
    table = pa.table({"extra": ["?"], "key": pa.array([b"a"]), "value": pa.array([b"1"]), "time_us": [5]})
    assert state_of(decode(*rewritten(table))[1]) == {b"a": (b"1", 5)}


@pytest.mark.parametrize(
    ("table", "told", "word"),
    [
        ({"key": [b"a"], "value": [b"1"], "time_us": [1]}, {"version": 2}, "version"),
        ({"key": [b"a"], "value": [b"1"], "time_us": [1]}, {"keys": 2}, "says that it has 2"),
        ({"key": [b"a"], "value": [b"1"], "time_us": [1]}, {"position": 1}, "stands at position 1"),
        ({"key": [b"a"], "value": [b"1"], "time_us": [1]}, {"shard": -1}, "a number is not one"),
        ({"key": [b"a"], "value": [b"1"], "time_us": [1]}, {"surprise": 1}, "does not say"),
        ({"key": [b"a"], "value": [None], "time_us": [1]}, {}, "rows without"),
        ({"key": [1], "value": [b"1"], "time_us": [1]}, {}, "can be read"),
        ({"key": [b"a"], "time_us": [1]}, {}, "can be read"),
    ],
)
def test_what_is_not_a_snapshot_is_refused(table: dict[str, list[object]], told: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        decode(*rewritten(pa.table(table), **told))


def test_an_arrow_file_of_somebody_else_is_refused() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"key": [b"a"], "value": [b"1"], "time_us": [1]})
    with pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    content = sink.getvalue().to_pybytes()
    with pytest.raises(ValueError, match="does not say what it stands for"):
        decode(SnapshotFile(4096, 7, crc32c(content)), content)


# ---- what others bring


def test_columns_take_lists_text_and_slices() -> None:
    keys = pa.array(["x", "a", "b"])[1:]
    assert state_of(columns(keys, [b"1", b"2"], 9)) == {b"a": (b"1", 9), b"b": (b"2", 9)}
    assert columns([], [], 9).num_rows == 0


@pytest.mark.parametrize(
    ("keys", "values", "word"),
    [
        ([b"a", b"a"], [b"1", b"2"], "more than once"),
        ([b"a", None], [b"1", b"2"], "no key"),
        ([b"a", b"b"], [b"1", None], "no value"),
        (pa.array([1, 2]), [b"1", b"2"], "int64"),
    ],
)
def test_columns_refuse_what_is_no_state(keys: object, values: object, word: str) -> None:
    with pytest.raises((ValueError, TypeError), match=word):
        columns(keys, values, 0)


# ---- folding

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=3))


@given(st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=8), max_size=4), st.integers(0, 40) | st.none())
@settings(max_examples=150)
def test_folding_is_applying_one_message_after_the_other(
    batches: list[list[tuple[bytes | None, bytes | None]]], before: int | None
) -> None:
    model: State = {b"a": (b"old", 1), b"z": (b"old", 1)}
    base, tables, position = table_of(model), [], 0
    for batch in batches:
        messages = []
        for key, value in batch:
            messages.append(
                Message(stream="s", shard=0, position=position, timestamp_us=position + 10, key=key, value=value)
            )
            if key is not None and (before is None or position < before):
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = (value, position + 10)
            position += 1
        tables.append(updates(messages))
    assert state_of(fold(base, tables, before)) == model
    step = base
    for table in tables:
        step = fold(step, [table], before)
    assert state_of(step) == model


def test_folding_without_a_base_begins_empty() -> None:
    assert fold(None, []).num_rows == 0


# ---- which is the newest, which stay


def test_the_newest_stands_furthest_and_of_two_the_later_counts() -> None:
    old, new, newer = SnapshotFile(10, 9, 1), SnapshotFile(20, 5, 2), SnapshotFile(20, 6, 0)
    assert snapshots_of([old.name, "x", newer.name, new.name, ".hidden"]) == [newer, new, old]
    assert SnapshotFile.parse(f"{2**63:020d}-{0:020d}-00000000.arrow") is None


FILES = [SnapshotFile(position, position, 0) for position in (40, 30, 20, 10)]


@pytest.mark.parametrize(
    ("good", "keeps", "start", "stay"),
    [
        ([40, 30, 20, 10], 1, 0, 1),
        ([40, 30, 20, 10], 2, 0, 2),
        ([40, 30, 20, 10], 9, 0, 4),
        ([30, 20, 10], 1, 0, 2),  # the newest is damaged: the newest good one stays, and what is before it
        ([30, 10], 2, 0, 4),
        ([10], 2, 0, 4),
        ([], 1, 100, 4),
        ([40], None, 25, 2),
        ([40], None, 100, 1),
        ([20], None, 100, 3),
    ],
)
def test_how_many_stay(good: list[int], keeps: int | None, start: int, stay: int) -> None:
    assert kept(FILES, [file for file in FILES if file.position in good], keeps, start) == stay
