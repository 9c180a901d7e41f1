"""Sheets: what was told is read as it was packed, for as long as it is held, whoever is killed, whatever lies there."""

import ctypes
import fcntl
import gc
import mmap
import os
import random
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.errors import Corrupt
from tailrace.native import Packed, Packer, Records
from tailrace.native.hints import Hints, Waiter
from tailrace.native.sheets import PLACES, SHEETS_MAX, Notice, SheetReader, Sheets, SheetVigil, reap

KIB, MIB = 1 << 10, 1 << 20
SHEET_BYTES, ENTRIES_AT = 1 * MIB, 768 * KIB
CREATED_US = 77
SLOT = 9
HEAD_BYTES, TABLE_AT, ROW_BYTES = 64 * KIB, 4 * KIB, 512


class Shard:
    """A producer of one shard, without a disk: what it shows is durable."""

    def __init__(self, folder: Path, sheets: int = 3, start: int = 0) -> None:
        self.memory, self.pins = str(folder / "memory"), str(folder / "pins")
        self.sheets = Sheets(self.memory, self.pins, sheets, SHEET_BYTES, ENTRIES_AT)
        self.packer = Packer([start], [0], 16 * MIB, {0: self.sheets})
        self.hints = Hints(folder.with_name(f"{folder.name}-hints"), make=True)
        self.entries = 0

    def send(self, *values: bytes) -> list[Packed]:
        """Packed, and told; what is in no sheet is missed."""
        self.packer.add_list(list(values), None, 0, 1)
        parts = self.packer.take()[0]
        for part in parts:
            if part.sheet is None:
                self.sheets.missed()
            else:
                self.tell(part)
            self.entries += part.count
        return parts

    def tell(self, part: Packed) -> bool:
        return self.notice(part, CREATED_US, self.entries).give()

    def notice(self, part: Packed, created_us: int, first: int) -> Notice:
        assert part.sheet is not None
        where = part.start, part.data_at, part.entry_at, part.count
        return self.sheets.notice(part.sheet, created_us, first, *where, self.hints, SLOT)

    def reader(self) -> SheetReader:
        return SheetReader(self.memory, self.pins)


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    one = Shard(tmp_path)
    yield one
    one.sheets.close()


def look(reader: SheetReader, created_us: int, entry: int, position: int, bytes_max: int) -> Records | None:
    return reader.read(Records, "s", 3, created_us, entry, position, bytes_max)


def values_of(found: Records | None, position: int) -> list[bytes]:
    assert found is not None
    assert (found.stream, found.shard, found.start) == ("s", 3, position)
    values = [message.value or b"" for message in found.messages()]
    assert b"".join(values) == bytes(found.data)
    return values


def read_all(reader: SheetReader, entry: int, position: int, bytes_max: int = 100_000) -> list[bytes]:
    values: list[bytes] = []
    while (found := look(reader, CREATED_US, entry, position, bytes_max)) is not None:
        came = values_of(found, position)
        values, entry, position = values + came, entry + len(came), position + sum(map(len, came))
    assert reader.at_end
    return values


def test_nothing_is_read_before_it_is_told(shard: Shard) -> None:
    reader = shard.reader()
    shard.packer.add_list([b"one", b"two"], None, 0, 1)
    (part,) = shard.packer.take()[0]
    assert look(reader, CREATED_US, 0, 0, 100) is None
    assert shard.tell(part)
    assert values_of(look(reader, CREATED_US, 0, 0, 100), 0) == [b"one", b"two"]


def test_a_notice_is_given_once_and_wakes_who_waits(shard: Shard) -> None:
    reader, waiter = shard.reader(), Waiter(shard.hints, [SLOT])
    shard.packer.add_list([b"one"], None, 0, 1)
    (part,) = shard.packer.take()[0]
    notice = shard.notice(part, CREATED_US, 0)
    assert look(reader, CREATED_US, 0, 0, 100) is None
    with ThreadPoolExecutor(1) as pool:
        raised = pool.submit(waiter.wait_for, 30.0)
        wait_until(lambda: shard.hints.waiters(SLOT) == 1, "somebody who waits")
        assert notice.give()
        assert raised.result()
    assert notice.give()
    assert values_of(look(reader, CREATED_US, 0, 0, 100), 0) == [b"one"]
    assert reader.at_end
    assert not waiter.wait_for(0.0)  # the second time nobody was told anything


def test_a_notice_of_sheets_that_are_over_says_nothing(shard: Shard) -> None:
    reader = shard.reader()
    shard.packer.add_list([b"one"], None, 0, 1)
    (part,) = shard.packer.take()[0]
    notice = shard.notice(part, CREATED_US, 0)
    shard.sheets.close()
    assert not notice.give()
    assert look(reader, CREATED_US, 0, 0, 100) is None
    with pytest.raises(ValueError, match="slot 1024"):
        shard.sheets.notice(part.sheet, CREATED_US, 0, 0, 0, 0, 1, shard.hints, 1024)  # type: ignore[arg-type]


def test_everything_comes_in_order_whatever_the_sizes(tmp_path: Path) -> None:
    shard, draw, entry, position = Shard(tmp_path, sheets=4), random.Random(2), 0, 0
    reader = shard.reader()
    for _ in range(200):
        values = [draw.randbytes(draw.choice([1, 10, 1000, 70_000])) for _ in range(draw.randrange(1, 8))]
        parts = shard.send(*values)
        assert all(part.sheet is not None for part in parts)
        assert read_all(reader, entry, position, draw.choice([1, 5_000, 400_000])) == values
        entry, position = entry + len(values), position + sum(map(len, values))
    assert reader.held_sheets == 0


@pytest.mark.parametrize("size", [1, 7, 8, 4064, 4072, 4073, 4095, 4096, 4097, 8192, 65535])
def test_what_is_copied_is_whole_whether_it_fits_the_smallest_block_or_not(shard: Shard, size: int) -> None:
    value = random.Random(size).randbytes(size)
    shard.send(value)
    batch = look(shard.reader(), CREATED_US, 0, 0, 1)
    assert batch is not None
    assert bytes(batch) == bytes(batch.data) == value
    (message,) = batch.messages()
    assert (message.value, message.position) == (value, 0)


def test_many_bytes_are_read_in_place_and_few_are_copied(shard: Shard) -> None:
    shard.send(bytes(1000), *[bytes([number]) * 1000 for number in range(200)])
    reader = shard.reader()
    few = look(reader, CREATED_US, 0, 0, 10_000)
    assert few is not None
    assert reader.held_sheets == 0
    many = look(reader, CREATED_US, 0, 0, 300_000)
    assert many is not None
    assert reader.held_sheets == 1
    assert many.data.readonly
    kept = many.data[5:]
    del many
    assert reader.held_sheets == 1
    del kept
    assert reader.held_sheets == 0


def test_a_sheet_that_is_held_stays_as_it_is_while_the_others_go_round(shard: Shard) -> None:
    shard.send(*[b"held" * 1000] * 50)
    reader = shard.reader()
    held = look(reader, CREATED_US, 0, 0, 300_000)
    assert held is not None
    for number in range(30):
        shard.send(*[b"%04d" % number * 1000] * 50)
    assert values_of(held, 0) == [b"held" * 1000] * 50
    assert look(reader, CREATED_US, 0, 0, 300_000) is not None  # nobody could take it
    del held
    for number in range(30):
        shard.send(*[b"%04d" % number * 1000] * 50)
    assert look(reader, CREATED_US, 0, 0, 300_000) is None


def test_when_all_are_held_messages_go_without_and_readers_know_it(shard: Shard) -> None:
    reader, held, position = shard.reader(), [], 0
    while (parts := shard.send(*[bytes(4000)] * 150))[-1].sheet is not None:
        for part in parts:
            first = shard.entries - sum(one.count for one in parts)
            held.append(look(reader, CREATED_US, first, part.start, 600_000))
        position = parts[-1].end
    assert len(held) >= 3
    assert look(reader, CREATED_US, shard.entries - 150, position, 600_000) is None
    assert not reader.at_end
    held.clear()
    assert shard.send(bytes(10))[0].sheet is not None


def test_a_reader_that_keeps_everything_keeps_four_sheets_from_the_others(tmp_path: Path) -> None:
    shard, kept = Shard(tmp_path, sheets=8), []
    reader = shard.reader()
    for number in range(40):
        entry, (part,) = shard.entries, shard.send(*[b"%04d" % number * 1000] * 100)
        kept.append((look(reader, CREATED_US, entry, part.start, 600_000), part.start))
        del part
        assert reader.held_sheets <= 4
    for number, (found, position) in enumerate(kept):
        assert values_of(found, position) == [b"%04d" % number * 1000] * 100


def test_what_a_buffer_of_the_producer_still_uses_is_not_taken(shard: Shard) -> None:
    kept = [shard.send(*[b"%04d" % number * 1000] * 100)[0] for number in range(30)]
    for number, part in enumerate(kept):
        assert bytes(part.data) == b"%04d" % number * 100_000
    assert [part.sheet is None for part in kept[-20:]] == [True] * 20


def test_places_of_the_killed_are_free(tmp_path: Path) -> None:
    shard = Shard(tmp_path, sheets=2)
    shard.send(*[bytes(4000)] * 50)
    ready, say = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            held = look(shard.reader(), CREATED_US, 0, 0, 300_000)
            os.write(say, b"y" if held is not None else b"n")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"y"
    reader = shard.reader()

    def stands() -> bool:
        for _ in range(6):
            shard.send(*[bytes(4000)] * 150)
        return look(reader, CREATED_US, 0, 0, 10_000) is not None

    assert stands()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not stands()
    for handle in (ready, say):
        os.close(handle)


def test_more_readers_than_places_copy(shard: Shard) -> None:
    shard.send(*[bytes(4000)] * 50)
    with open(shard.pins, "r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, PLACES, 0)
        fcntl.fcntl(file, 37, lock)  # F_OFD_SETLK
        reader = shard.reader()
        assert values_of(look(reader, CREATED_US, 0, 0, 300_000), 0) == [bytes(4000)] * 50
        assert reader.held_sheets == 0
    found = look(reader, CREATED_US, 0, 0, 300_000)
    assert (found is not None, reader.held_sheets) == (True, 1)


def test_another_segment_or_place_is_not_found(shard: Shard) -> None:
    shard.send(b"one", b"two", b"three")
    reader = shard.reader()
    for wrong in ((CREATED_US + 1, 0, 0), (CREATED_US, 4, 11), (CREATED_US, 2**63, 0), (0, 3, 11)):
        assert look(reader, *wrong, 1000) is None
        assert not reader.at_end
    assert values_of(look(reader, CREATED_US, 2, 6, 1000), 6) == [b"three"]
    assert reader.at_end
    assert look(reader, CREATED_US, 3, 11, 1000) is None
    assert reader.at_end


def test_on_into_the_next_segment_where_the_last_one_has_ended(shard: Shard) -> None:
    reader = shard.reader()
    shard.send(b"one")
    assert values_of(look(reader, CREATED_US, 0, 0, 100), 0) == [b"one"]
    shard.packer.add_list([b"two", b"three"], None, 0, 1)
    ((part,),) = shard.packer.take().values()
    assert shard.notice(part, CREATED_US + 5, 0).give()
    assert look(reader, CREATED_US, 1, 2, 100) is None  # nothing ends there
    assert values_of(look(reader, CREATED_US, 1, 3, 100), 3) == [b"two", b"three"]
    assert (reader.created_us, reader.at_end) == (CREATED_US + 5, True)
    assert look(reader, CREATED_US + 6, 0, 3, 100) is None  # never back


class Bell:
    """A waiter, and what wakes it."""

    def __init__(self, folder: Path) -> None:
        self.hints = Hints(folder.with_name(f"{folder.name}-hints"), make=True)
        self.waiter = Waiter(self.hints, [7])

    def ring(self) -> None:
        self.hints.raise_(7)


def vigil_of(shard: Shard, bell: Bell, *, bytes_max: int = 100_000, streams: bool = True) -> SheetVigil[Records]:
    begin = ("s", 3, CREATED_US, 0, 0, bytes_max, 0.5)
    return SheetVigil(shard.reader(), bell.waiter, Records, *begin, drained=False, streams=streams)


def values_in(batch: Records | None) -> list[bytes]:
    return values_of(batch, -1 if batch is None else batch.start)


def test_a_vigil_gives_what_is_there_then_waits_for_what_comes(shard: Shard, tmp_path: Path) -> None:
    bell = Bell(tmp_path)
    vigil = vigil_of(shard, bell, bytes_max=7)
    shard.send(b"one", b"two", b"three")
    assert values_in(vigil.next(0.0)) == [b"one", b"two"]
    assert (vigil.entry, vigil.position) == (2, 6)
    assert values_in(vigil.next(0.0)) == [b"three"]
    assert vigil.next(0.0) is None, "there is no more, and no time to wait"
    shard.send(b"four")
    bell.ring()
    assert values_in(vigil.next(30.0)) == [b"four"]
    bell.ring()
    assert vigil.next(0.05) is None, "a hint of something else"
    assert vigil.waited_s >= 0.05
    thread = threading.Thread(target=lambda: (shard.send(b"five"), bell.ring()))
    thread.start()
    came: list[Records | None] = []
    wait_until(lambda: came.append(vigil.next(30.0)) or came[-1] is not None, "what comes meanwhile")
    thread.join()
    assert values_in(came[-1]) == [b"five"]
    assert (vigil.created_us, vigil.entry, vigil.position) == (CREATED_US, 5, 19)


def test_a_vigil_ends_when_it_is_stopped_its_patience_is_over_or_others_must_tell(shard: Shard, tmp_path: Path) -> None:
    bell = Bell(tmp_path)
    shard.send(b"one", b"two")
    vigil = vigil_of(shard, bell, bytes_max=3, streams=False)
    assert vigil.next(30.0) is None, "it was not drained, and it is not to stream"
    vigil = vigil_of(shard, bell)
    assert values_in(vigil.next(0.0)) == [b"one", b"two"]
    assert vigil.next(30.0) is None, "its patience is half a second"
    assert 0.5 <= vigil.waited_s < 30.0
    shard.packer.add_list([b"in no sheet"], None, 0, 1)
    shard.packer.take()
    shard.entries += 1
    shard.sheets.missed()
    shard.send(b"three")
    bell.ring()
    assert vigil.next(30.0) is None, "what comes next is not to be had here"
    assert (vigil.entry, vigil.position) == (2, 6)
    vigil = vigil_of(shard, bell)
    bell.waiter.stop()
    assert values_in(vigil.next(30.0)) == [b"one", b"two"]
    assert vigil.next(30.0) is None, "it does not wait any more"
    with pytest.raises(TypeError, match="they are records"):
        SheetVigil(shard.reader(), bell.waiter, bytes, "s", 0, 0, 0, 0, 1, 1.0, drained=False, streams=True)  # type: ignore[type-var]


def test_a_vigil_that_is_relieved_gives_nothing_more(shard: Shard, tmp_path: Path) -> None:
    bell = Bell(tmp_path)
    vigil = vigil_of(shard, bell)
    shard.send(b"one")
    assert values_in(vigil.next(0.0)) == [b"one"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(vigil.next, 30.0)
        wait_until(lambda: bell.hints.waiters(7) > 0, "somebody to wait")
        assert vigil.relieve() == (CREATED_US, 1, 3)
        shard.send(b"two")
        bell.ring()
        assert waiting.result() is None
    assert vigil.next(30.0) is None
    assert vigil.relieve() == (CREATED_US, 1, 3)


def test_a_vigil_goes_on_into_the_next_segment(shard: Shard, tmp_path: Path) -> None:
    bell = Bell(tmp_path)
    vigil = vigil_of(shard, bell)
    shard.send(b"one", b"two")
    assert values_in(vigil.next(0.0)) == [b"one", b"two"]
    shard.packer.add_list([b"three"], None, 0, 1)
    (part,) = shard.packer.take()[0]
    assert shard.notice(part, CREATED_US + 1, 0).give()
    bell.ring()
    assert values_in(vigil.next(30.0)) == [b"three"]
    assert (vigil.created_us, vigil.entry, vigil.position) == (CREATED_US + 1, 1, 11)


def test_a_run_for_each_segment_and_a_new_sheet_when_there_are_too_many(shard: Shard) -> None:
    reader, position = shard.reader(), 0
    for number in range(20):
        shard.packer.add_list([b"%06d" % number], None, 0, 1)
        ((part,),) = shard.packer.take().values()
        told = shard.notice(part, 1000 + number, 0).give()
        found = look(reader, 1000 + number, 0, position, 100)
        assert (found is not None) == told
        position = part.end
        if not told:
            assert not reader.at_end
    assert found is not None


def test_where_it_lies_it_can_be_written_to_the_disk_past_the_page_cache(tmp_path: Path) -> None:
    shard = Shard(tmp_path, start=12_345)
    for size in (10, 511, 700, 300_000, 1, 700_000, 5):
        for part in shard.send(bytes(size)):
            address = ctypes.addressof(ctypes.c_char.from_buffer(part.data))
            assert (address - (part.start - 12_345)) % 512 == 0


def test_whoever_sends_while_objects_are_made_loses_nothing(tmp_path: Path) -> None:
    """The garbage collector may run Python's code, and with it other threads, wherever an object is made."""
    shard, sent, busy = Shard(tmp_path, sheets=8), [], []

    def another_thread(phase: str, info: object) -> None:
        if not busy and len(sent) < 3000:
            busy.append(True)
            send(b"late")
            busy.clear()

    def send(kind: bytes) -> None:
        value = b"%s %d " % (kind, len(sent)) + bytes(3000)
        sent.append(value)
        shard.packer.add(value, None, 0, 1)

    parts, thresholds = [], gc.get_threshold()
    gc.callbacks.append(another_thread)
    gc.set_threshold(1)
    try:
        for number in range(600):
            send(b"soon")
            if number % 50 == 49:
                parts += shard.packer.take()[0]
    finally:
        gc.callbacks.remove(another_thread)
        gc.set_threshold(*thresholds)
    parts += shard.packer.take().get(0, [])
    position, values = 0, []
    for part in parts:
        assert part.start == position
        values += [m.value for m in Records("s", 0, part.start, part.entries, part.data).messages()]
        position = part.end
    assert sorted(values) == sorted(sent)


def test_who_is_forked_copies_and_lets_nothing_of_its_parent_go(tmp_path: Path) -> None:
    shard = Shard(tmp_path, sheets=2)
    shard.send(*[b"held" * 1000] * 50)
    reader = shard.reader()
    held = look(reader, CREATED_US, 0, 0, 300_000)
    if (pid := os.fork()) == 0:
        code = 1
        try:
            more = look(reader, CREATED_US, 0, 0, 300_000)
            code = 0 if more is not None and not more.data.readonly else 2  # a copy is its own
            held = None
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    for number in range(10):
        shard.send(*[b"%04d" % number * 1000] * 150)
    assert values_of(held, 0) == [b"held" * 1000] * 50


def test_a_batch_in_a_cycle_lets_go_as_well(shard: Shard) -> None:
    shard.send(*[bytes(4000)] * 50)
    reader = shard.reader()
    cycle: list[object] = [look(reader, CREATED_US, 0, 0, 300_000)]
    cycle.append(cycle)
    assert reader.held_sheets == 1
    del cycle
    gc.collect()
    assert reader.held_sheets == 0


def test_the_end_is_told(shard: Shard) -> None:
    shard.send(b"x")
    reader = shard.reader()
    assert not reader.has_ended
    held = look(reader, CREATED_US, 0, 0, 10)
    shard.sheets.close()
    assert reader.has_ended
    assert values_of(held, 0) == [b"x"]
    assert values_of(look(reader, CREATED_US, 0, 0, 10), 0) == [b"x"]
    assert not reader.at_end
    assert not os.path.exists(shard.memory)
    assert not os.path.exists(shard.pins)
    shard.send(b"y")
    assert look(reader, CREATED_US, 1, 1, 10) is None


def test_the_dead_are_taken_away_and_the_living_only_by_who_may(tmp_path: Path) -> None:
    ready, say = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            shard = Shard(tmp_path)
            shard.send(b"x")
            os.write(say, b"y")
            signal.pause()
        finally:
            os._exit(1)
    os.read(ready, 1)
    memory, pins = str(tmp_path / "memory"), str(tmp_path / "pins")
    assert not reap(memory, pins)
    reader = SheetReader(memory, pins)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: reap(memory, pins), "the dead one's files to go")
    assert reader.has_ended
    assert values_of(look(reader, CREATED_US, 0, 0, 10), 0) == [b"x"]
    assert os.listdir(tmp_path) == []
    assert reap(memory, pins)
    older = Shard(tmp_path)
    assert reap(memory, pins, living=True)
    newer = Shard(tmp_path)
    older.sheets.close()  # it must not take the newer one's
    assert sorted(os.listdir(tmp_path)) == ["memory", "pins"]
    newer.sheets.close()
    for handle in (ready, say):
        os.close(handle)


def test_without_memory_messages_go_without_sheets(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.decode()}")
    try:
        shard = Shard(tmp_path)
        parts = shard.send(*[bytes(4000)] * 200)
        assert parts[-1].sheet is None
        assert b"".join(bytes(part.data) for part in parts) == bytes(800_000)
        assert shard.send(bytes(10))[0].count == 1
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_message_that_is_too_large_goes_without(shard: Shard) -> None:
    assert [part.sheet is None for part in shard.send(b"small", bytes(ENTRIES_AT + 1), b"small")] == [False, True]
    assert shard.send(b"small")[0].sheet is not None


def test_sizes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for sheets, sheet_bytes, entries_at in (
        (0, MIB, KIB * 4),
        (SHEETS_MAX + 1, MIB, 4096),
        (1, 5000, 4096),
        (1, MIB, MIB),
    ):
        with pytest.raises(OSError, match="Invalid"):
            Sheets(str(tmp_path / "m"), str(tmp_path / "p"), sheets, sheet_bytes, entries_at)


def test_files_that_are_none_of_ours_are_refused(shard: Shard, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SheetReader(str(tmp_path / "none"), shard.pins)
    whole = Path(shard.memory).read_bytes()[:HEAD_BYTES]
    other = tmp_path / "other"
    for at, wrong in ((0, b"X"), (8, b"\x09"), (12, b"\xff\xff\xff\xff"), (16, b"\x01"), (24, bytes(8))):
        with open(shard.memory, "r+b") as file:
            file.seek(at)
            file.write(wrong)
        with pytest.raises(OSError, match="Invalid"):
            shard.reader()
        with open(shard.memory, "r+b") as file:
            file.write(whole[:4096])
    other.write_bytes(whole)
    with pytest.raises(OSError, match="Invalid"):
        SheetReader(str(other), shard.pins)
    os.truncate(shard.pins, 10)
    with pytest.raises(OSError, match="Invalid"):
        shard.reader()
    os.truncate(shard.pins, 8 * PLACES)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_table_says_nothing_outside_a_sheet_is_read(tmp_path: Path, seed: int) -> None:
    """A sanitizer would see it, or the process would end. What is found may be nonsense; entries are checked later."""
    draw = random.Random(seed)
    shard = Shard(tmp_path)
    shard.send(*[bytes(3000)] * 60)
    reader = shard.reader()
    odd = [0, 1, 2, 59, 60, 61, CREATED_US, 4096, ENTRIES_AT - 1, ENTRIES_AT, SHEET_BYTES, 2**32, 2**63, 2**64 - 1]
    with open(shard.memory, "r+b", buffering=0) as file:
        for _ in range(400):
            row, field = draw.randrange(3), draw.randrange(2 + 7 * 8)
            file.seek(TABLE_AT + row * ROW_BYTES + 8 * (field if field < 2 else 6 + field))
            file.write(struct.pack("<Q", draw.choice(odd)))
            if draw.random() < 0.3:
                file.seek(HEAD_BYTES + ENTRIES_AT + 24 * draw.randrange(60))
                file.write(struct.pack("<Q", draw.choice(odd)))
            found = look(reader, CREATED_US, draw.choice(odd), draw.choice(odd[:10]), draw.choice([1, 100, 10**6]))
            if found is not None:
                assert len(bytes(found.data)) <= ENTRIES_AT
                with suppress(Corrupt):
                    assert len(found.messages()) == found.count


def test_readers_that_are_slow_and_a_writer_that_is_not(tmp_path: Path) -> None:
    """Real processes: a writer goes round a few small sheets and overtakes whoever is slow; what is held is right."""
    shard = Shard(tmp_path, sheets=4)
    content = [struct.pack("<Q", number) * 512 for number in range(64)]
    places = memoryview(mmap.mmap(-1, 32)).cast("Q")  # how far the writer and each reader are
    pids = []
    for number in (1, 2, 3):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                code = _follow(shard, content, places, number)
            finally:
                places[number] = 2**63
                os._exit(code)
        pids.append(pid)
    while (slowest := min(places[1:])) < 2**63:
        if places[0] > slowest + 1000:  # some sheets further: it is overtaken, but not left alone
            os.sched_yield()
            continue
        shard.send(*[content[(places[0] + more) % 64] for more in range(40)])
        places[0] += 40
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]


def _follow(shard: Shard, content: list[bytes], places: memoryview, number: int) -> int:
    reader, draw = shard.reader(), random.Random(number)
    entry, kept = 0, []
    for _ in range(3000):
        while (found := look(reader, CREATED_US, entry, 4096 * entry, draw.choice([4096, 200_000]))) is None:
            if entry < places[0]:  # overtaken; or everything is held, and nothing new can be shown
                entry = max(0, places[0] - draw.choice([1, 40, 200]))
                kept.clear()
            places[number] = entry
            os.sched_yield()
        kept.append((found, entry))
        entry = places[number] = entry + found.count
        if len(kept) > 3:
            one, first = kept.pop(draw.randrange(3))
            values = values_of(one, 4096 * first)
            if values != [content[(first + more) % 64] for more in range(len(values))]:
                return 3
    return 0


def test_what_was_never_opened_closes_nothing() -> None:
    """Number 0 is a file as any other."""
    before = os.fstat(0)
    for kind in (Sheets, SheetReader):
        with pytest.raises(TypeError):
            kind(1.5, "pins", *[1] * (3 if kind is Sheets else 0))  # type: ignore[arg-type]
    assert os.fstat(0) == before
