"""The contract of the durable layer, over every implementation: what `files.interface` promises."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tailrace.env import Disk, SystemClock, SystemDisk
from tailrace.errors import Closed, Fenced, FileMissing, FileProblem, NameRefused, OffsetMismatch
from tailrace.files import Appender, FileLength, Files, PosixFiles
from tailrace.files.fence import Fence
from tailrace.files.remote import Pace, RemoteFiles
from tailrace.files.served import ServedFiles
from tailrace.testing import Fault, FaultyDisk, SimulatedCrash, SimulatedDisk
from tailrace.wire import FilesPeer, serve_copies

Opener = Callable[[str], Files]  # the same durable layer, as another process with this name sees it
FAR = "streams/s"  # what lies elsewhere is not shown from afar


class ReadFromAfar:
    """Written where they lie, read through a server."""

    def __init__(self, near: Files, far: Files) -> None:
        self._near, self._far = near, far

    def __getattr__(self, name: str) -> Any:
        files = self._far if name in ("list", "read", "view") else self._near
        act = getattr(files, name)
        return lambda *paths, **settings: act(*[self._placed(path) for path in paths], **settings)

    def _placed(self, path: object) -> object:
        return f"{FAR}/{path}" if isinstance(path, str) else path


def posix(tmp_path: Path) -> Iterator[Opener]:
    yield lambda owner: PosixFiles(f"{tmp_path}/root", owner=owner)


def posix_on_simulated_disk(tmp_path: Path) -> Iterator[Opener]:
    disk = SimulatedDisk()
    yield lambda owner: PosixFiles("/root", disk=disk.process(), owner=owner)


def remote(tmp_path: Path) -> Iterator[Opener]:
    tmp_path.chmod(0o700)
    clock = SystemClock()
    near = PosixFiles(f"{tmp_path}/root")
    near.make_folder(FAR)
    served = ServedFiles(near, clock, keep_s=0.0)
    with serve_copies([f"unix:{tmp_path}/s"], files=served) as server, FilesPeer(server.addresses[0]) as peer:
        far = RemoteFiles(peer, clock, "far", pace=Pace(least_s=0.0, pauses=0.0))
        yield lambda owner: ReadFromAfar(PosixFiles(f"{tmp_path}/root", owner=owner), far)


@pytest.fixture(params=[posix, posix_on_simulated_disk, remote], ids=["posix", "simulated", "remote"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    yield from request.param(tmp_path)


@pytest.fixture
def files(opener: Opener) -> Files:
    return opener("first")


def content(files: Files, path: str) -> bytes:
    with files.view(path) as view:
        buffer = bytearray(view.length().readable_bytes)
        assert view.read_into(0, memoryview(buffer)) == len(buffer)
        return bytes(buffer)


def test_bytes_become_readable_when_they_are_flushed_and_not_before(files: Files) -> None:
    appender = files.claim("shard").create("a")
    with files.view("shard/a") as view:
        appender.append(0, [b"hello ", b"world"])
        assert view.length() == FileLength(0, 0, appending=True)
        assert appender.sync() == 11
        assert view.length() == FileLength(11, 11, appending=True)
        assert content(files, "shard/a") == b"hello world"


def test_who_can_bring_bytes_again_may_cut_a_file(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"hello"])
    appender.sync()
    again = files.append("shard/a", at_most=3)
    assert again.length == 3
    assert content(files, "shard/a") == b"hel"
    again.append(3, [b"met"])
    again.sync()
    assert files.append("shard/a", at_most=100).length == 6
    assert content(files, "shard/a") == b"helmet"


def test_a_short_read_tells_how_much_was_there(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    appender.sync()
    with files.view("shard/a") as view:
        buffer = bytearray(10)
        assert view.read_into(1, memoryview(buffer)) == 2
        assert buffer[:2] == b"bc"
        assert view.read_into(3, memoryview(buffer)) == 0
        assert view.read_into(99, memoryview(buffer)) == 0


def test_what_was_flushed_can_be_looked_at_without_a_copy_where_it_lies_here(
    opener: Opener, request: pytest.FixtureRequest
) -> None:
    files = opener("first")
    appender = files.claim("shard").create("a")
    appender.append(0, [b"a" * 100_000])
    appender.sync()
    appender.append(100_000, [b"b" * 100])
    with files.view("shard/a") as view:
        assert view.mapped(0, 100_001) is None  # not flushed, so it may yet be cut
        assert view.mapped(100_000, 1) is None
        found = [view.mapped(0, 100_000), view.mapped(70_001, 9)]
        appender.sync()
        found.append(view.mapped(99_999, 101))
    appender.close()
    files.delete("shard/a")
    if request.node.callspec.id == "posix":  # they outlive the view, and the file
        assert found == [b"a" * 100_000, b"a" * 9, b"a" + b"b" * 100]
        assert all(one is not None and one.readonly for one in found)
    else:
        assert found == [None, None, None]


def test_who_keeps_what_is_mapped_keeps_no_file_open(tmp_path: Path) -> None:
    files = PosixFiles(f"{tmp_path}/root")
    files.publish("a", b"a" * 100_000)
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for _ in range(50):
        with files.view("a") as view:
            kept.append(view.mapped(0, 100_000))
    assert len(os.listdir("/proc/self/fd")) == before
    assert kept == [b"a" * 100_000] * 50


def test_a_disk_that_cannot_tell_whether_it_can_be_mapped_is_read(tmp_path: Path) -> None:
    disk = FaultyDisk(SystemDisk(), Fault(at=1, only=frozenset({"is_mappable"})))
    PosixFiles(f"{tmp_path}/root").publish("a", b"a" * 100_000)
    with PosixFiles(f"{tmp_path}/root", disk=disk).view("a") as view:
        assert view.mapped(0, 100_000) is None
        assert view.mapped(0, 100_000) == b"a" * 100_000  # and the next time it can


def test_a_file_that_shrinks_under_a_map_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    files = PosixFiles(f"{tmp_path}/root")
    files.publish("a", b"a" * 1_000_000)
    with files.view("a") as view:
        assert view.mapped(0, 100_000) == b"a" * 100_000
        os.truncate(tmp_path / "root" / "a", 200_000)  # by somebody who should not
        assert view.mapped(500_000, 100_000) is None
        assert view.read_into(500_000, memoryview(bytearray(10))) == 0
        assert view.mapped(100_000, 100_000) == b"a" * 100_000


def test_an_append_must_name_the_length(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    for wrong in (0, 2, 4):
        with pytest.raises(OffsetMismatch, match="3 bytes"):
            appender.append(wrong, [b"x"])
    assert appender.append(3, [b"def"]) == 6
    appender.sync()
    assert content(files, "shard/a") == b"abcdef"


def test_append_takes_any_buffers(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"a", bytearray(b"bc"), memoryview(b"xdefx")[1:4], b""])
    assert appender.length == 6
    appender.sync()
    assert content(files, "shard/a") == b"abcdef"


def flush(data: Appender, start: int, first: bytes, index: Appender, offset: int, second: bytes) -> None:
    """As a log does it: at once as far as that goes, and then what is left."""
    data.flush_with(start, first, index, offset, second, passing=False)
    if data.length == start:
        data.append(start, [first])
    if index.length == offset:
        index.append(offset, [second])
    assert (data.sync(), index.sync()) == (start + len(first), offset + len(second))


def test_two_files_are_flushed_together(files: Files) -> None:
    claim = files.claim("shard")
    data, index = claim.create("data"), claim.create("index")
    index.append(0, [b"head"])
    index.sync()
    flush(data, 0, b"hello ", index, 4, b"+6")
    flush(data, 6, b"world", index, 6, b"+5")
    flush(data, 11, b"", index, 8, b"")
    assert (content(files, "shard/data"), content(files, "shard/index")) == (b"hello world", b"head+6+5")
    data.append(11, [b"!"])  # not synced: what comes next is not to be told of before it
    flush(data, 12, b"?", index, 8, b"+1")
    assert (content(files, "shard/data"), content(files, "shard/index")) == (b"hello world!?", b"head+6+5+1")


def test_a_flush_of_two_files_by_an_older_appender_does_nothing(opener: Opener) -> None:
    claim = opener("older").claim("shard")
    data, index = claim.create("data"), claim.create("index")
    flush(data, 0, b"abc", index, 0, b"+3")
    opener("newer").append("shard/data")
    data.flush_with(3, b"def", index, 2, b"+3", passing=True)
    assert data.length == 3
    with pytest.raises(Fenced, match="newer"):
        data.append(3, [b"def"])
    assert content(opener("reader"), "shard/data") == b"abc"
    assert content(opener("reader"), "shard/index") == b"+3"


def test_a_flush_of_two_files_elsewhere_than_at_their_ends_does_nothing(files: Files) -> None:
    claim = files.claim("shard")
    data, index = claim.create("data"), claim.create("index")
    flush(data, 0, b"abc", index, 0, b"+3")
    for start, offset in ((2, 2), (3, 0), (4, 2)):
        data.flush_with(start, b"x", index, offset, b"y", passing=False)
        assert (data.length, index.length) == (3, 2)
    data.close()
    data.flush_with(3, b"x", index, 2, b"y", passing=False)
    assert (content(files, "shard/data"), content(files, "shard/index")) == (b"abc", b"+3")


def test_a_sealed_file_is_settled_and_its_appender_is_of_no_more_use(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    with files.view("shard/a") as before:
        appender.seal()
        assert before.length() == FileLength(3, 3, appending=False)
    with files.view("shard/a") as after:
        assert after.length() == FileLength(3, 3, appending=False)
    with pytest.raises(Closed):
        appender.append(3, [b"x"])
    with pytest.raises(Closed):
        appender.sync()


def test_closing_without_sealing_forgets_what_was_not_flushed(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    appender.sync()
    appender.append(3, [b"lost"])
    appender.close()
    appender.close()
    with files.view("shard/a") as view:
        assert view.length() == FileLength(3, 3, appending=False)
    again = files.append("shard/a")
    assert again.length == 3
    again.append(3, [b"def"])
    again.seal()
    assert content(files, "shard/a") == b"abcdef"


def test_the_newest_appender_wins(opener: Opener) -> None:
    older_files, newer_files = opener("older"), opener("newer")
    older = older_files.claim("shard").create("a")
    older.append(0, [b"abc"])
    older.sync()
    older.append(3, [b"unflushed"])
    newer = newer_files.append("shard/a")
    assert newer.length == 3
    for attempt in (lambda: older.append(12, [b"x"]), older.sync, older.seal):
        with pytest.raises(FileProblem, match="newer"):
            attempt()
    newer.append(3, [b"def"])
    newer.sync()
    assert content(older_files, "shard/a") == b"abcdef"


def test_the_newest_appender_wins_over_a_settled_file_too(opener: Opener) -> None:
    files = opener("first")
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    appender.seal()
    one, two = opener("one").append("shard/a"), opener("two").append("shard/a")
    with pytest.raises(Fenced, match="two"):
        one.append(3, [b"x"])
    two.append(3, [b"d"])
    two.sync()
    assert content(files, "shard/a") == b"abcd"


def test_the_newest_claim_shuts_out_the_older_one_and_its_appenders(opener: Opener) -> None:
    older = opener("older").claim("shard")
    appender = older.create("a")
    appender.append(0, [b"abc"])
    appender.sync()
    newer = opener("newer").claim("shard")
    assert newer.revoked == ("a",)
    with pytest.raises(Fenced, match="newer"):
        older.create("b")
    with pytest.raises(Fenced, match="newer"):
        older.check()
    with pytest.raises(Fenced):
        appender.append(3, [b"x"])
    newer.check()
    newer.create("b")
    files = opener("reader")
    assert files.list("shard") == ["a", "b"]
    with files.view("shard/a") as view:
        assert view.length() == FileLength(3, 3, appending=False)


def test_revoked_is_only_what_was_left_open(opener: Opener) -> None:
    claim = opener("older").claim("shard")
    claim.create("sealed").seal()
    claim.create("open")
    assert opener("newer").claim("shard").revoked == ("open",)


def test_settling_makes_all_bytes_count_as_flushed(opener: Opener) -> None:
    files = opener("first")
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    appender.sync()
    opener("second").claim("shard")
    files.settle("shard/a")
    files.settle("shard/a")
    with files.view("shard/a") as view:
        assert view.length() == FileLength(3, 3, appending=False)


def test_claims_of_different_folders_do_not_meet(opener: Opener) -> None:
    one, two = opener("one").claim("a"), opener("two").claim("b")
    one.create("x")
    two.create("x")
    one.check()


def test_while_a_claim_is_held_nobody_else_gets_the_folder(opener: Opener) -> None:
    first, second = opener("first").claim("shard"), threading.Event()
    claimed: list[object] = []

    def claim() -> None:
        second.set()
        claimed.append(opener("second").claim("shard"))

    with ThreadPoolExecutor(1) as pool:
        with first.hold():
            waiting = pool.submit(claim)
            second.wait()
            assert not claimed
        waiting.result()
    assert claimed
    with pytest.raises(Fenced, match="second owns it"), first.hold():
        pytest.fail("it was claimed by somebody newer")


def test_threads_of_one_process_do_not_open_the_lock_of_another_one_of_its_threads(tmp_path: Path) -> None:
    """To the kernel those who share a handle are one: whoever unlocks first would do so for all."""
    disk, clock, path = SystemDisk(), SystemClock(), str(tmp_path / "fence")
    fence = Fence.open_or_create(disk, clock, path)
    elsewhere = disk.open(path, write=True)

    def pass_through() -> None:
        with fence.locked():
            pass

    with ThreadPoolExecutor(1) as pool:
        with fence.locked():
            passing = pool.submit(pass_through)
            with pytest.raises(TimeoutError):
                passing.result(0.1)
            assert not disk.try_lock(elsewhere), "nobody else may have it yet"
        passing.result()
    assert disk.try_lock(elsewhere)
    disk.close(elsewhere)
    fence.close()


def test_a_file_is_moved_at_once_and_only_if_it_is_there(files: Files) -> None:
    appender = files.claim("stage").create("a")
    appender.append(0, [b"abc"])
    appender.seal()
    files.make_folder("shard")
    files.move("stage/a", "shard/b")
    assert (files.list("stage"), files.list("shard")) == ([], ["b"])
    assert content(files, "shard/b") == b"abc"
    with pytest.raises(FileMissing):
        files.move("stage/a", "shard/c")
    for source, target in (("../a", "shard/c"), ("shard/b", ".b")):
        with pytest.raises(NameRefused):
            files.move(source, target)
    assert files.list("shard") == ["b"]


def test_a_name_is_created_once(files: Files) -> None:
    claim = files.claim("shard")
    claim.create("a")
    with pytest.raises(FileProblem, match="there already"):
        claim.create("a")


def test_callers_of_sync_at_the_same_time_share_it_and_all_are_covered(files: Files) -> None:
    appender = files.claim("shard").create("a")
    gate = threading.Barrier(8)
    lock = threading.Lock()

    def work(_: int) -> None:
        gate.wait()
        for _ in range(20):
            with lock:
                mine = appender.append(appender.length, [b"x" * 10])
            assert appender.sync() >= mine

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert content(files, "shard/a") == b"x" * 1600


def test_publish_puts_whole_files_in_place(files: Files) -> None:
    files.make_folder("a/b")
    assert files.publish("a/b/settings", b"one")
    assert files.read("a/b/settings") == b"one"
    assert files.publish("a/b/settings", b"two")
    assert files.read("a/b/settings") == b"two"
    assert not files.publish("a/b/settings", b"three", replace=False)
    assert files.read("a/b/settings") == b"two"
    assert files.publish("a/b/fresh", b"x", replace=False)
    assert files.list("a/b") == ["fresh", "settings"]


def test_publish_takes_any_bytes(files: Files) -> None:
    assert files.publish("large", memoryview(b"abc" * 1000)[3:])
    assert files.read("large") == b"abc" * 999


@pytest.mark.parametrize("simulated", [False, True])
def test_drafts_of_publications_that_were_cut_short_can_be_forgotten(tmp_path: object, simulated: bool) -> None:
    disk: Disk = SimulatedDisk().process() if simulated else SystemDisk()
    root = "/root" if simulated else f"{tmp_path}/root"
    healthy = PosixFiles(root, disk=disk)
    healthy.make_folder("a")
    for name in ("old.snapshot", "young.snapshot"):
        with pytest.raises(SimulatedCrash):  # after the draft was made
            PosixFiles(root, disk=FaultyDisk(disk, Fault(at=3, kind="crash"))).publish(f"a/{name}", b"half")
    healthy.publish("a/whole", b"x")
    healthy.claim("a").create("file")  # its fence is no draft
    assert sum(name.startswith((".old", ".young")) for name in disk.list(f"{root}/a")) == 2
    assert healthy.forget_drafts("a", lambda name: name == "old.snapshot") == 1
    assert sum(name.startswith((".old", ".young")) for name in disk.list(f"{root}/a")) == 1
    assert healthy.forget_drafts("a", lambda name: True) == 1
    assert healthy.list("a") == ["file", "whole"]
    with pytest.raises(FileMissing):
        healthy.forget_drafts("nowhere", lambda name: True)


def test_a_view_outlives_the_file_or_says_that_it_is_gone(files: Files) -> None:
    appender = files.claim("shard").create("a")
    appender.append(0, [b"abc"])
    appender.seal()
    with files.view("shard/a") as view:
        files.delete("shard/a")
        if isinstance(files, ReadFromAfar):
            with pytest.raises(FileMissing):
                view.read_into(0, memoryview(bytearray(3)))
            with pytest.raises(FileMissing):
                view.length()
            return
        buffer = bytearray(3)
        assert view.read_into(0, memoryview(buffer)) == 3
        assert buffer == b"abc"
        assert view.length().readable_bytes == 3
    assert files.list("shard") == []


def test_what_is_not_there(files: Files) -> None:
    assert files.list("nowhere") == []
    for attempt in (
        lambda: files.view("nowhere/a"),
        lambda: files.read("nowhere/a"),
        lambda: files.append("nowhere/a"),
        lambda: files.delete("nowhere/a"),
        lambda: files.delete_folder("nowhere"),
        lambda: files.publish("nowhere/a", b""),
    ):
        with pytest.raises(FileMissing, match="nowhere"):
            attempt()


def test_folders_go_with_all_in_them(files: Files) -> None:
    files.claim("streams/s/00000").create("a")
    files.publish("streams/s/settings", b"x")
    files.delete_folder("streams/s")
    assert files.list("streams") == []
    files.claim("streams/s/00000").create("a")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../a",
        "a/../b",
        "a//b",
        "a/",
        ".hidden",
        "a/.fence",
        "a\0b",
        "a b",
        "a\nb",
        "ä",
        "x" * 300,
        "-a",
    ],
)
def test_no_name_from_outside_leaves_the_root(files: Files, path: str) -> None:
    claim = files.claim("shard")
    for attempt in (
        lambda: files.claim(path),
        lambda: files.view(path),
        lambda: files.append(path),
        lambda: files.read(path),
        lambda: files.publish(path, b""),
        lambda: files.delete(path),
        lambda: files.make_folder(path),
        lambda: files.delete_folder(path),
        lambda: files.list(path),
        lambda: files.settle(path),
        lambda: claim.create(path),
    ):
        with pytest.raises(NameRefused, match="Nothing was done"):
            attempt()


def test_used_after_close(files: Files) -> None:
    claim = files.claim("shard")
    claim.create("a").seal()
    claim.close()
    with pytest.raises(Closed):
        claim.create("b")
    view = files.view("shard/a")
    view.close()
    with pytest.raises(Closed):
        view.length()
    with pytest.raises(Closed):
        view.read_into(0, memoryview(bytearray(1)))
