"""The bytes are those of docs/formats/cells.md, the door is small, and foreign files are refused."""

import ast
import os
import struct
from pathlib import Path
from random import Random

import pytest

from tailrace.native import cell as door
from tailrace.native import crc32c
from tailrace.native._cell import _LAYOUT
from tailrace.native.cell import SLAB_BYTES, Cell, CellView

from . import model
from .places import (
    BUCKET,
    DATA,
    HEAD,
    PLACE,
    PLACES,
    UNIT_BYTES,
    buckets_of,
    folder,
    narrow_sums,
    overwrite,
    place_at,
    small_cell,
    with_true_sum,
)

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "cells.md"
STUBS = ast.parse(Path(door.__file__).with_name("_cell.pyi").read_text())


def test_the_door_is_this_small():
    assert door.__all__ == ["PARTITIONS", "SLAB_BYTES", "Cell", "CellView", "Outcome", "key_hash"]


def test_the_stubs_name_the_members_that_are_there():
    classes = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
    for name in ("Cell", "CellView"):
        stubbed = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)}
        real = {member for member in vars(getattr(door, name)) if not member.startswith("_")}
        assert stubbed - {"__init__"} == real, name


def test_sizes_are_those_of_the_page():
    assert _LAYOUT == {"head": 4096, "bucket": 256, "entries": 6, "data header": 32, "slab": 256 << 10}
    assert (HEAD.size, BUCKET.size, PLACE.size, DATA.size) == (80, 64, 32, 32)
    assert BUCKET.size + PLACES * PLACE.size == 256
    text = PAGE.read_text()
    for promised in ("bucket (256 bytes)", "place (32 bytes)", "slabs of 256 KiB", "layout version: 2"):
        assert promised in text


def test_every_byte_of_one_entry():
    key, value, version = b"a key", b"its value", (2**63, 2**31, 7)
    with folder() as path:
        cell = small_cell(path, buckets=4, config_id=99)
        cell.set(b"first", b"", (1, 0, 0))
        cell.set(key, value, version, expiry_s=1234)
        assert sorted(os.listdir(path)) == ["data", "head", "index.1"]
        head = (path / "head").read_bytes()
        index, data = (path / "index.1").read_bytes(), (path / "data").read_bytes()
        view = CellView(path)

        assert len(head) == 4096
        assert not any(head[80:])
        magic, layout, zero, sequence, instance, config, generation, *sizes, total = HEAD.unpack(head[:80])
        buckets, reserved, populated, _ = sizes
        assert (magic, layout, zero, config, generation, buckets) == (b"TAILCELL", 2, 0, 99, 1, 4)
        assert (reserved, populated, sequence % 2) == (64 * SLAB_BYTES, SLAB_BYTES, 0)
        assert total == crc32c(head[:16] + head[24:76])
        assert (view.config_id, view.instance_id, view.generation) == (99, instance, 1)

        low, high = struct.unpack("<QQ", model.key_hash(key))
        first, second = buckets_of(high, 4)
        assert first == high * 4 >> 64 != second
        _, flags, config, *highs = BUCKET.unpack_from(index, 256 * first)
        assert (flags, config) == (0, 99)
        place = PLACE.unpack_from(index, place_at(first, highs.index(high)))
        unit, size = place[4:6]
        assert place == (*version, low % 2**32, unit, 32 + 8 + len(value), 1234)

        offset = unit * UNIT_BYTES
        header = DATA.unpack_from(data, offset)
        assert header[1:] == (len(key), len(value), 1234, *version)
        assert data[offset + 32 : offset + size] == key + bytes(3) + value
        assert header[0] == model.entry_sum(instance, offset, data[offset : offset + size])


def entries_in(path):
    """(offset, bytes) of each data entry that the index names."""
    index, data = (path / "index.1").read_bytes(), (path / "data").read_bytes()
    for at in range(BUCKET.size, len(index), PLACE.size):
        unit, size = PLACE.unpack_from(index, at)[4:6]
        if at % 256 >= BUCKET.size and size:
            yield unit * UNIT_BYTES, data[unit * UNIT_BYTES :][:size]


@pytest.mark.parametrize("narrower", range(3))
def test_sums_with_and_without_wide_instructions_are_those_of_the_page(narrower):
    lengths = [*range(70), 127, 128, 129, 511, 512, 513, 1000, 4095, 4096, 8191, 8192, 8193, 65472]
    items = [(b"%d" % value * 30, key, value) for key, value in zip(lengths[::-1], lengths, strict=True)]
    with folder() as path:
        with narrow_sums(narrower):
            cell = small_cell(path, buckets=64)
            instance = CellView(path).instance_id
            for name, key, value in items:
                draw = Random(value)
                cell.set(name + draw.randbytes(key), draw.randbytes(value), (1 + value, 0, 0))
        found = list(entries_in(path))
        assert len(found) == len(items)
        for offset, entry in found:
            assert struct.unpack_from("<I", entry)[0] == model.entry_sum(instance, offset, entry)
        for reading in range(3):
            with narrow_sums(reading):
                for name, key, value in items:
                    draw = Random(value)
                    answer = CellView(path).get(name + draw.randbytes(key), 0)
                    assert answer == (draw.randbytes(value), (1 + value, 0, 0))


def test_a_key_lies_in_its_first_bucket_or_its_second():
    with folder() as path:
        cell = small_cell(path, buckets=50)
        names = [b"name %d" % number for number in range(250)]
        for number, name in enumerate(names):
            cell.set(name, b"", (1 + number, 0, 0))
        assert cell.stats()["chained"] == cell.stats()["growths"] == 0
        index, seconds = (path / "index.1").read_bytes(), 0
        for name in names:
            (high,) = struct.unpack_from("<Q", model.key_hash(name), 8)
            first, second = (BUCKET.unpack_from(index, 256 * bucket)[3:] for bucket in buckets_of(high, 50))
            assert first.count(high) + second.count(high) == 1
            seconds += high in second
        assert 0 < seconds < 125


@pytest.mark.parametrize(
    ("at", "content", "seen"),
    [
        (0, b"SOMETHIN", "magic"),
        (8, struct.pack("<I", 1), "layout version is 1, not 2"),
        (8, struct.pack("<I", 3), "layout version is 3, not 2"),
        (32, b"\1", "sum"),
        (76, b"\0\0\0\0", "sum"),
    ],
)
def test_another_head_is_refused(at, content, seen):
    with folder() as path:
        cell = small_cell(path)
        overwrite(path / "head", at, content)
        with pytest.raises(ValueError, match=f"{path.name} is no cell this can read.*{seen}"):
            CellView(path)
        cell.close()


@pytest.mark.parametrize(("at", "number"), [(48, 5), (48, 0), (48, 2**60), (56, SLAB_BYTES), (56, 1), (56, 0)])
def test_sizes_in_a_head_with_a_true_sum_must_be_those_of_the_files(at, number):
    with folder() as path:
        cell = small_cell(path)
        head = bytearray((path / "head").read_bytes()[:80])
        head[at : at + 8] = struct.pack("<Q", number)
        overwrite(path / "head", 0, with_true_sum(bytes(head)))
        with pytest.raises(ValueError, match="is no cell this can read"):
            CellView(path)
        cell.close()


def test_empty_folders_short_files_and_other_things_are_refused():
    with folder() as path:
        with pytest.raises(FileNotFoundError):
            CellView(path)
        (path / "head").write_bytes(b"short")
        with pytest.raises(ValueError, match="size of head is 5, not 4096"):
            CellView(path)
        with pytest.raises(FileExistsError):  # and a backend does not take it for an earlier cell's
            small_cell(path)
        assert (path / "head").read_bytes() == b"short"
        (path / "head").unlink()
        (path / "head").mkdir()
        with pytest.raises(ValueError, match="size of head"):
            CellView(path)
        with pytest.raises(FileNotFoundError):
            CellView(path / "nowhere")


def test_a_folder_with_someone_elses_data_is_left_alone():
    with folder() as path:
        (path / "data").write_bytes(b"precious")
        with pytest.raises(FileExistsError):
            small_cell(path)
        assert (path / "data").read_bytes() == b"precious"


def test_one_backend_at_a_time():
    with folder() as path:
        first = small_cell(path)
        with pytest.raises(BlockingIOError, match="does a backend serve it"):
            small_cell(path)
        first.close()
        small_cell(path).close()
        with pytest.raises(ValueError, match="closed"):
            first.get(b"key", 0)


def test_bad_settings_are_refused():
    with folder() as path:
        for settings in (
            {"policy": "random"},
            {"buckets": 0},
            {"capacity_bytes": 1},
            {"reserve_bytes": SLAB_BYTES, "capacity_bytes": 2 * SLAB_BYTES},
            {"reserve_bytes": 256 << 30},
            {"config_id": 2**64 - 1},
            {"tombstones": 2**25},
        ):
            with pytest.raises(ValueError, match=r"use|capacity"):
                small_cell(path, **settings)
        with pytest.raises(TypeError):
            Cell(path)
        with folder() as other, pytest.raises(TypeError):
            CellView(small_cell(other).folder).get_many(["text"], 0)


def test_a_cell_of_an_earlier_layout_is_cleared_away_and_one_of_a_later_is_not():
    with folder() as path:
        small_cell(path).close()
        overwrite(path / "head", 8, struct.pack("<I", 3))
        with pytest.raises(FileExistsError):
            small_cell(path)
        overwrite(path / "head", 8, struct.pack("<I", 1))
        small_cell(path).close()
        assert HEAD.unpack_from((path / "head").read_bytes())[1] == 2


def test_an_interrupted_start_or_growth_is_cleared_away():
    with folder() as path:
        small_cell(path).close()
        (path / "head").rename(path / "head.new")
        (path / "index.2").write_bytes(bytes(512))
        cell = small_cell(path)
        assert sorted(os.listdir(path)) == ["data", "head", "index.1"]
        cell.close()
