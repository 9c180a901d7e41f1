"""Folders for cells, and damage to their files."""

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.native import crc32c
from tailrace.native._cell import _sum_narrow, _weaken_hash
from tailrace.native.cell import SLAB_BYTES, Cell

from .model import FULL

SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
HEAD = struct.Struct("<8sIIQQQQQQQII")
BUCKET = struct.Struct("<IIQ6Q")
PLACE = struct.Struct("<QIIIIII")
DATA = struct.Struct("<IIIIQII")
PLACES = 6
UNIT_BYTES = 64


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="cell-") as path:
        yield Path(path)


@contextmanager
def weak_hash(low_mask: int = FULL, high_mask: int = FULL) -> Iterator[None]:
    _weaken_hash(low_mask, high_mask)
    try:
        yield
    finally:
        _weaken_hash()


@contextmanager
def narrow_sums(narrower: int) -> Iterator[None]:
    _sum_narrow(narrower)
    try:
        yield
    finally:
        _sum_narrow()


def small_cell(path: Path, slabs: int = 16, **more: object) -> Cell:
    settings: dict = {"reserve_bytes": 64 * SLAB_BYTES, "capacity_bytes": slabs * SLAB_BYTES, "buckets": 4} | more
    return Cell(path, **settings)


def place_at(bucket: int, number: int) -> int:
    """Where a place lies in an index file."""
    return 256 * bucket + BUCKET.size + PLACE.size * number


def buckets_of(high: int, buckets: int) -> tuple[int, int]:
    first = high * buckets >> 64
    turned = (high << 32 | high >> 32) % 2**64
    return first, (first + 1 + (turned * (buckets - 1) >> 64)) % buckets if buckets > 1 else first


def overwrite(path: Path, at: int, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, content, at)
    finally:
        os.close(file)


def with_true_sum(head: bytes) -> bytes:
    return head[:76] + crc32c(head[:16] + head[24:76]).to_bytes(4, "little")


def data_memory_bytes(path: Path) -> int:
    return os.stat(path / "data").st_blocks * 512
