"""Verification on real files: exact places of damage, and what is no damage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.streams import Checked, Finding, verify_shard


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as world:
        yield world


def fill(world: tailrace.World, *values: bytes) -> None:
    with world.producer("s") as producer:
        producer.send_many(list(values))


def findings(world: tailrace.World, checked: Checked | None = None) -> list[Finding]:
    return list(verify_shard(world.files, "s", 0, checked or Checked()))


def only(folder: Path, pattern: str) -> Path:
    (path,) = (folder / "streams" / "s" / "00000").glob(pattern)
    return path


def flip(path: Path, byte: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1
    path.write_bytes(raw)


def test_all_is_well(world: tailrace.World) -> None:
    fill(world, b"one", b"two")
    fill(world, b"three")
    checked = Checked()
    assert findings(world, checked) == []
    assert (checked.files, checked.messages, checked.data_bytes) == (2, 3, 11)


def test_a_bad_data_byte_costs_one_message_and_the_rest_is_checked(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, b"one", b"two", b"three")
    flip(only(tmp_path, "*.data"), 4)
    checked = Checked()
    index, data = findings(world, checked)
    assert (index.kind, index.from_byte, index.to_byte) == ("damage", 48 + 24, 48 + 48)
    assert (data.kind, data.from_byte, data.to_byte) == ("damage", 3, 6)
    assert data.file.endswith(".data")
    assert checked.messages == 2


def test_a_bad_end_in_an_entry(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, b"one", b"two", b"three")
    flip(only(tmp_path, "*.index"), 48 + 24 + 6)  # a high byte of the second entry's end
    found = findings(world)
    assert [(f.kind, f.from_byte, f.to_byte) for f in found] == [("damage", 72, 96), ("damage", 3, None)]


def test_a_bad_header(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, b"one")
    flip(only(tmp_path, "*.index"), 20)
    (found,) = findings(world)
    assert (found.kind, found.from_byte, found.to_byte) == ("damage", 0, 48)


def test_a_data_file_that_was_cut(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, b"one", b"two", b"three")
    path = only(tmp_path, "*.data")
    path.write_bytes(path.read_bytes()[:5])
    found = findings(world)
    assert all(f.kind == "damage" for f in found)
    assert found[-1].from_byte == 3


def test_an_index_file_that_was_cut(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, b"one", b"two", b"three")
    path = only(tmp_path, "*.index")
    fill(world, b"four")
    path.write_bytes(path.read_bytes()[: 48 + 24 + 10])
    found = findings(world)
    assert found[0].kind == "damage"
    assert (found[0].from_byte, found[0].to_byte) == (72, 120)


def test_what_a_crash_leaves_behind_is_no_damage(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, b"one")
    first = only(tmp_path, "*.data")
    fill(world, b"two")
    first.write_bytes(first.read_bytes() + b"never acknowledged")
    (first.parent / "00000000000000000001-00000000000000000000.data").write_bytes(b"half made")
    (first.parent / "README").write_bytes(b"a stranger")
    assert {(f.kind, f.what.split(":")[0]) for f in findings(world)} == {
        ("leftover", "behind the cut"),
        ("leftover", "without its other half"),
        ("leftover", "not a message file"),
    }


def test_a_file_that_retention_deletes_meanwhile_is_no_finding(world: tailrace.World) -> None:
    for _ in range(3):  # each opening begins a new file
        fill(world, b"x")
    world.set_retention("s", tailrace.Retention(size_bytes=1))
    checked = Checked()
    found = list(verify_shard(world.files, "s", 0, checked, lambda count: bool(world.trim("s"))))  # type: ignore[arg-type]
    assert found == []
    assert checked.messages >= 1
