"""What a simulated disk keeps, loses and tears; how a faulty one fails; how test clocks and dice behave."""

import doctest
import errno
import threading
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import tailrace.testing
from tailrace.env import Disk
from tailrace.errors import ConfigError
from tailrace.testing import Fault, FaultyDisk, ManualClock, SeededRandomness, SimulatedCrash, SimulatedDisk

SEEDS = range(300)


def raises(number):
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")


def make(disk, path, content=b"", *, durable=False):
    """A file with this content; its open handle."""
    handle = disk.create(path)
    disk.write(handle, 0, [content])
    if durable:
        disk.sync(handle)
        disk.sync_folder(path.rpartition("/")[0] or "/")
    return handle


def read(disk, handle):
    buffer = bytearray(disk.size(handle))
    assert disk.read_into(handle, 0, memoryview(buffer)) == len(buffer)
    return bytes(buffer)


def content(disk, path):
    handle = disk.open(path, write=False)
    try:
        return read(disk, handle)
    finally:
        disk.close(handle)


def tree(disk, path="/"):
    """Every path with its content; None for a folder."""
    found = {}
    for name in disk.list(path):
        child = path.rstrip("/") + "/" + name
        if disk.is_folder(child):
            found[child] = None
            found |= tree(disk, child)
        else:
            found[child] = content(disk, child)
    return found


def outcomes(scenario):
    """The trees that random crashes leave, over many seeds, after the scenario ran."""
    found = []
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        scenario(disk)
        disk.crash("random")
        found.append(tree(disk))
    return found


def test_the_door_is_small():
    assert tailrace.testing.__all__ == [
        "Fault",
        "FaultyDisk",
        "ManualClock",
        "SeededRandomness",
        "SimulatedCrash",
        "SimulatedDisk",
        "VirtualClock",
        "VirtualNetwork",
        "VirtualTime",
        "WideArea",
    ]


def test_the_example_runs():
    result = doctest.testmod(tailrace.testing)
    assert result.attempted > 0
    assert result.failed == 0


# A crash: content


def test_synced_content_under_a_synced_name_survives_every_crash():
    for keep in "nothing", "everything", "random":
        disk = SimulatedDisk()
        make(disk, "/a", b"abc", durable=True)
        disk.crash(keep)
        assert tree(disk) == {"/a": b"abc"}


def test_a_crash_loses_what_was_written_since_the_sync():
    disk = SimulatedDisk()
    handle = make(disk, "/a", b"0123456789", durable=True)
    disk.write(handle, 0, [b"xx"])
    disk.truncate(handle, 5)
    disk.write(handle, 5, [b"yyyyyyyyyyyy"])
    disk.crash()
    assert tree(disk) == {"/a": b"0123456789"}


def test_a_crash_that_keeps_everything_is_a_restart():
    disk = SimulatedDisk()
    handle = make(disk, "/a", b"0123456789", durable=True)
    disk.write(handle, 0, [b"xx"])
    disk.truncate(handle, 5)
    disk.make_folder("/folder")
    disk.link("/a", "/folder/b")
    disk.crash("everything")
    assert tree(disk) == {"/a": b"xx234", "/folder": None, "/folder/b": b"xx234"}


def test_sync_covers_the_writes_of_every_handle_and_process():
    disk = SimulatedDisk()
    first = make(disk, "/a", durable=True)
    other = disk.process()
    second = other.open("/a", write=True)
    disk.write(first, 0, [b"ab"])
    other.write(second, 2, [b"cd"])
    disk.sync(first)
    other.write(second, 4, [b"ef"])
    disk.crash()
    assert content(disk, "/a") == b"abcd"


def test_a_second_crash_finds_what_the_first_one_left():
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        disk.write(make(disk, "/a", b"abc", durable=True), 1, [b"XYZ"])
        disk.create("/b")
        disk.crash("random")
        left = tree(disk)
        disk.crash("random")
        assert tree(disk) == left


def test_an_unsynced_write_is_kept_lost_or_torn_at_any_byte():
    def scenario(disk):
        disk.write(make(disk, "/a", b"0123", durable=True), 2, [b"ab", b"cd"])

    found = {state["/a"] for state in outcomes(scenario)}
    heads = {b"01ab", b"01a3", b"01abc"}
    tails = {b"012bcd", b"0123cd", b"0123\0d"}
    only_longer = {b"0123\0\0"}
    assert found == {b"0123", b"01abcd"} | heads | tails | only_longer


def test_writes_survive_independently_of_each_other():
    def scenario(disk):
        handle = make(disk, "/a", durable=True)
        disk.write(handle, 0, [b"a"])
        disk.write(handle, 1, [b"b"])

    found = {state["/a"] for state in outcomes(scenario)}
    assert {b"", b"a", b"ab", b"\0b"} <= found


def test_bytes_that_nobody_wrote_read_as_zeros():
    def scenario(disk):
        handle = make(disk, "/a", b"x" * 100, durable=True)
        disk.truncate(handle, 10)
        disk.sync(handle)
        disk.write(handle, 50, [b"y" * 10])

    for state in outcomes(scenario):
        assert state["/a"][:10] == b"x" * 10
        assert set(state["/a"][10:50]) <= {0}
        assert set(state["/a"][50:]) <= {0, ord("y")}


def test_a_truncation_is_kept_or_lost():
    def scenario(disk):
        disk.truncate(make(disk, "/a", b"0123", durable=True), 1)

    assert {state["/a"] for state in outcomes(scenario)} == {b"0123", b"0"}


def test_sync_costs_what_was_written_not_the_size_of_the_file():
    disk = SimulatedDisk()
    handle = make(disk, "/a", bytes(64 << 20), durable=True)
    for number in range(2000):  # copying the file each time would take minutes
        disk.write(handle, number, [b"x"])
        disk.sync(handle)
    disk.crash()
    assert content(disk, "/a").startswith(b"x" * 2000 + b"\0")


# A crash: names


def test_synced_content_without_a_synced_name_is_gone():
    disk = SimulatedDisk()
    disk.sync(make(disk, "/a", b"abc"))
    disk.crash()
    assert tree(disk) == {}


def test_a_synced_name_without_synced_content_is_an_empty_file():
    disk = SimulatedDisk()
    make(disk, "/a", b"abc")
    disk.sync_folder("/")
    disk.crash()
    assert tree(disk) == {"/a": b""}


def test_a_folder_without_a_synced_name_is_gone_with_all_it_holds():
    disk = SimulatedDisk()
    disk.make_folder("/folder")
    make(disk, "/folder/a", b"abc", durable=True)
    disk.crash()
    assert tree(disk) == {}


def test_syncing_a_folder_does_not_sync_the_folders_in_it():
    disk = SimulatedDisk()
    disk.make_folder("/folder")
    disk.sync_folder("/")
    make(disk, "/folder/a", b"abc")
    disk.sync_folder("/")
    disk.crash()
    assert tree(disk) == {"/folder": None}


def test_an_open_folder_syncs_its_names_through_its_handle():
    disk = SimulatedDisk()
    make(disk, "/a", b"abc")
    disk.sync(disk.open("/", write=False))
    disk.crash()
    assert tree(disk) == {"/a": b""}


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda disk: disk.unlink("/a"), {"/b": b"B", "/empty": None}),
        (lambda disk: disk.rename("/a", "/b"), {"/b": b"A", "/empty": None}),
        (lambda disk: disk.link("/a", "/c"), {"/a": b"A", "/b": b"B", "/c": b"A", "/empty": None}),
        (lambda disk: disk.make_folder("/c"), {"/a": b"A", "/b": b"B", "/c": None, "/empty": None}),
        (lambda disk: disk.remove_folder("/empty"), {"/a": b"A", "/b": b"B"}),
        (lambda disk: disk.rename("/empty", "/full"), {"/a": b"A", "/b": b"B", "/full": None}),
    ],
)
def test_a_name_operation_is_durable_from_the_sync_of_its_folder_on(change, after):
    for synced in False, True:
        disk = SimulatedDisk()
        make(disk, "/a", b"A", durable=True)
        make(disk, "/b", b"B", durable=True)
        disk.make_folder("/empty")
        disk.sync_folder("/")
        before = tree(disk)
        change(disk)
        assert tree(disk) == after
        if synced:
            disk.sync_folder("/")
        disk.crash()
        assert tree(disk) == (after if synced else before)


def test_an_unlinked_file_comes_back_with_its_name_and_its_synced_bytes():
    disk = SimulatedDisk()
    handle = make(disk, "/a", b"abc", durable=True)
    disk.unlink("/a")
    disk.write(handle, 3, [b"def"])
    disk.sync(handle)
    disk.crash()
    assert tree(disk) == {"/a": b"abcdef"}
    assert disk.linked(disk.open("/a", write=False))


def test_names_in_one_folder_survive_as_a_prefix_of_their_order():
    def scenario(disk):
        make(disk, "/a", b"A", durable=True)
        disk.link("/a", "/b")
        disk.unlink("/a")
        disk.rename("/b", "/c")
        disk.make_folder("/d")

    found = {frozenset(state) for state in outcomes(scenario)}
    assert found == {
        frozenset(names) for names in [{"/a"}, {"/a", "/b"}, {"/b"}, {"/c"}, {"/c", "/d"}]
    }  # fmt: skip


def test_a_replaced_file_is_either_the_old_or_the_new_one():
    def scenario(disk):
        make(disk, "/a", b"old", durable=True)
        disk.sync(make(disk, "/new", b"new"))
        disk.rename("/new", "/a")

    assert {state["/a"] for state in outcomes(scenario)} == {b"old", b"new"}


def test_a_file_renamed_into_place_before_its_sync_may_be_anything():
    def scenario(disk):
        make(disk, "/a", b"old", durable=True)
        make(disk, "/new", b"new")
        disk.rename("/new", "/a")

    assert {b"old", b"new", b"", b"\0\0\0"} <= {state["/a"] for state in outcomes(scenario)}


def two_folders(disk):
    for name in "/x", "/y":
        disk.make_folder(name)
    disk.sync_folder("/")


def test_names_in_different_folders_survive_independently():
    def scenario(disk):
        two_folders(disk)
        disk.create("/x/a")
        disk.create("/y/b")

    found = {frozenset(state) - {"/x", "/y"} for state in outcomes(scenario)}
    assert found == {frozenset(names) for names in [(), ("/x/a",), ("/y/b",), ("/x/a", "/y/b")]}


def test_a_rename_between_folders_survives_wholly_or_not_at_all():
    def scenario(disk):
        two_folders(disk)
        make(disk, "/x/a", b"abc", durable=True)
        disk.rename("/x/a", "/y/a")

    assert {frozenset(state) - {"/x", "/y"} for state in outcomes(scenario)} == {
        frozenset(["/x/a"]),
        frozenset(["/y/a"]),
    }


@pytest.mark.parametrize("synced", ["/x", "/y"])
def test_syncing_either_folder_of_a_rename_makes_both_sides_durable(synced):
    disk = SimulatedDisk()
    two_folders(disk)
    disk.create("/x/before")
    make(disk, "/x/a", b"abc")
    disk.rename("/x/a", "/y/a")
    disk.create("/y/after")
    disk.sync_folder(synced)
    disk.crash()
    after = {"/y/after"} if synced == "/y" else set()
    assert set(tree(disk)) == {"/x", "/y", "/x/before", "/y/a"} | after


def test_a_link_may_be_lost_while_the_unlinking_elsewhere_is_kept():
    disk = SimulatedDisk()
    two_folders(disk)
    make(disk, "/x/a", b"abc", durable=True)
    disk.link("/x/a", "/y/a")
    disk.unlink("/x/a")
    disk.sync_folder("/x")
    disk.crash()
    assert set(tree(disk)) == {"/x", "/y"}


def test_a_file_moved_out_of_a_folder_does_not_vanish_with_the_folder():
    def scenario(disk):
        two_folders(disk)
        make(disk, "/x/a", b"abc", durable=True)
        disk.rename("/x/a", "/y/a")
        disk.remove_folder("/x")

    for state in outcomes(scenario):
        assert b"abc" in state.values()
    disk = SimulatedDisk()
    scenario(disk)
    disk.sync_folder("/")
    disk.crash()
    assert tree(disk) == {"/y": None, "/y/a": b"abc"}


def test_folders_that_moved_about_never_end_up_inside_each_other():
    def scenario(disk):
        two_folders(disk)
        for name in "/x/a", "/y/b":
            disk.make_folder(name)
            disk.sync_folder(name.rpartition("/")[0])
        disk.rename("/x/a", "/y/b/a")
        disk.sync_folder("/y/b")
        disk.rename("/y/b/a", "/x/a")
        disk.rename("/y/b", "/x/a/b")

    for state in outcomes(scenario):
        assert sorted(path.rpartition("/")[2] for path in state) == ["a", "b", "x", "y"]
    disk = SimulatedDisk()
    scenario(disk)
    disk.sync_folder("/y")
    disk.crash()
    assert set(tree(disk)) == {"/x", "/x/a", "/x/a/b", "/y"}


# A crash: handles, locks, identity


def test_a_crash_takes_all_handles_and_locks_and_changes_the_boot():
    disk = SimulatedDisk()
    handle = make(disk, "/a", durable=True)
    assert disk.try_lock(handle)
    assert disk.try_lock(disk.open("/", write=False))
    before = disk.identity()
    disk.crash()
    for use in disk.size, disk.sync, disk.try_lock, disk.close:
        with raises(errno.EBADF):
            use(handle)
    assert disk.try_lock(disk.open("/a", write=False))
    assert disk.try_lock(disk.open("/", write=False))
    assert disk.identity().host == before.host
    assert disk.identity().boot != before.boot


def test_the_same_seed_and_calls_give_the_same_disk():
    def history(seed):
        disk = SimulatedDisk(seed)
        seen = []
        for number in range(20):
            disk.write(make(disk, f"/{number}"), number, [bytes(range(number))])
            disk.crash("random")
            seen.append((disk.identity(), disk.list("/"), tree(disk)))
        return seen

    assert history(7) == history(7)
    assert history(7) != history(8)
    assert SimulatedDisk(7).identity() != SimulatedDisk(8).identity()


def test_names_are_listed_in_no_useful_order():
    disk = SimulatedDisk()
    names = [f"{number:03}" for number in range(20)]
    for name in names:
        disk.create("/" + name)
    assert disk.list("/") != names
    assert sorted(disk.list("/")) == names


# Processes


def test_a_killed_process_leaves_its_bytes_and_loses_its_handles_and_locks():
    disk = SimulatedDisk()
    process = disk.process()
    handle = make(process, "/a", b"abc")
    own = disk.open("/a", write=False)
    boot = process.identity()
    assert process.try_lock(handle)
    assert not disk.try_lock(own)
    process.kill()
    assert disk.try_lock(own)
    assert read(disk, own) == b"abc"
    assert disk.identity() == boot
    for use in (lambda: process.size(handle), lambda: process.open("/a", write=False)):
        with raises(errno.EBADF):
            use()
    process.kill()  # dead is dead
    disk.crash()
    assert tree(disk) == {}


def test_handles_belong_to_their_process():
    disk = SimulatedDisk()
    first, second = disk.process(), disk.process()
    handle = make(first, "/a", b"abc")
    for other in disk, second:
        with raises(errno.EBADF):
            other.size(handle)
    second.kill()
    assert read(first, handle) == b"abc"


def test_locks_hold_between_processes():
    disk = SimulatedDisk()
    first, second = disk.process(), disk.process()
    held = make(first, "/a")
    wanted = second.open("/a", write=True)
    assert first.try_lock(held)
    assert not second.try_lock(wanted)
    first.close(held)
    assert second.try_lock(wanted)


def test_processes_die_with_the_machine():
    disk = SimulatedDisk()
    process = disk.process()
    disk.crash()
    with raises(errno.EBADF):
        process.list("/")
    assert disk.process().list("/") == []


def test_calls_are_counted_over_all_processes():
    disk = SimulatedDisk()
    process = disk.process()
    make(process, "/a")
    disk.sync(disk.open("/a", write=True))
    process.sync_folder("/")
    assert disk.calls == process.calls == {"create": 1, "write": 1, "open": 1, "sync": 1, "sync_folder": 1}
    assert disk.calls.total() == 5


def test_threads_may_share_a_disk():
    disk = SimulatedDisk()
    handle = make(disk, "/a")
    threads = [
        threading.Thread(target=lambda n=n: [disk.write(handle, 4 * (n + 8 * i), [b"%04d" % n]) for i in range(200)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(disk, handle) == b"".join(b"%04d" % n for n in range(8)) * 200
    assert disk.calls["write"] == 1601


def test_paths_are_absolute():
    with pytest.raises(ValueError, match="absolute"):
        SimulatedDisk().create("a")


@pytest.mark.parametrize("call", ["unlink", "remove_folder"])
def test_the_root_stays(call):
    with pytest.raises(OSError, match="/"):
        getattr(SimulatedDisk(), call)("/")


# Capacity


def test_a_full_disk_takes_what_fits_and_then_says_so():
    disk = SimulatedDisk(capacity_bytes=10)
    handle = make(disk, "/a", b"012345")
    with raises(errno.ENOSPC):
        disk.write(handle, 6, [b"67", b"89", b"xx"])
    assert read(disk, handle) == b"0123456789"
    with raises(errno.ENOSPC):
        disk.write(handle, 10, [b"x"])
    disk.write(handle, 0, [b"overwriting"[:10]])
    with raises(errno.ENOSPC):
        disk.truncate(handle, 11)
    assert read(disk, handle) == b"overwritin"


def test_a_write_that_begins_past_the_capacity_does_nothing():
    disk = SimulatedDisk(capacity_bytes=10)
    handle = make(disk, "/a", b"0")
    with raises(errno.ENOSPC):
        disk.write(handle, 100, [b"x"])
    assert read(disk, handle) == b"0"


@pytest.mark.parametrize(
    "make_room",
    [
        lambda disk, handle: disk.truncate(handle, 0),
        lambda disk, handle: (disk.unlink("/a"), disk.close(handle)),
        lambda disk, handle: (disk.close(handle), disk.unlink("/a")),
        lambda disk, handle: (disk.close(handle), disk.rename("/b", "/a")),
        lambda disk, handle: setattr(disk, "capacity_bytes", 20),
        lambda disk, handle: setattr(disk, "capacity_bytes", None),
        lambda disk, handle: disk.crash("nothing"),
    ],
)
def test_room_can_be_made(make_room):
    disk = SimulatedDisk(capacity_bytes=10)
    handle = make(disk, "/a", b"0123456789")
    disk.create("/b")
    make_room(disk, handle)
    assert read(disk, make(disk, "/c", b"0123456789")) == b"0123456789"


def test_an_unlinked_file_takes_room_while_it_is_open():
    disk = SimulatedDisk(capacity_bytes=10)
    process = disk.process()
    make(process, "/a", b"0123456789")
    disk.unlink("/a")
    with raises(errno.ENOSPC):
        make(disk, "/b", b"x")
    process.kill()
    make(disk, "/c", b"0123456789")


def test_room_that_a_crash_did_not_free_is_still_taken():
    disk = SimulatedDisk(capacity_bytes=10)
    disk.close(make(disk, "/a", b"0123456789", durable=True))
    disk.unlink("/a")
    disk.crash()
    with raises(errno.ENOSPC):
        make(disk, "/b", b"x")


def test_a_crash_forgets_the_handles_and_names_that_kept_a_file():
    disk = SimulatedDisk(capacity_bytes=10)
    make(disk, "/a", b"0123456789", durable=True)
    disk.link("/a", "/b")
    disk.crash()
    handle = disk.open("/a", write=False)
    disk.unlink("/a")
    assert not disk.linked(handle)
    disk.close(handle)
    make(disk, "/c", b"0123456789")


# Faults


def test_an_error_before_the_effect():
    disk = FaultyDisk(SimulatedDisk(), Fault(at=2, only=frozenset({"write"}), errno=errno.ENOSPC))
    handle = make(disk, "/a", b"abc")
    assert not disk.fired
    with raises(errno.ENOSPC):
        disk.write(handle, 3, [b"def"])
    assert (disk.fired, disk.calls) == (True, 2)
    assert read(disk, handle) == b"abc"
    disk.write(handle, 3, [b"ghi"])  # only the n-th one fails
    assert read(disk, handle) == b"abcghi"


def test_an_error_after_half_of_a_write():
    disk = FaultyDisk(SimulatedDisk(), Fault(at=1, effect="half", only=frozenset({"write", "create"})))
    with raises(errno.EIO):
        disk.create("/a")
    assert disk.list("/") == []  # what cannot be halved does nothing
    disk = FaultyDisk(SimulatedDisk(), Fault(at=2, effect="half"))
    handle = disk.create("/a")
    with raises(errno.EIO):
        disk.write(handle, 0, [b"ab", b"cd", b"ef"])
    assert read(disk, handle) == b"abc"


def test_an_error_after_the_whole_effect():
    disk = FaultyDisk(SimulatedDisk(), Fault(at=1, effect="whole"))
    with raises(errno.EIO):
        disk.make_folder("/a")
    assert disk.is_folder("/a")


@pytest.mark.parametrize(("effect", "left"), [("none", b""), ("half", b"abc"), ("whole", b"abcdef")])
def test_a_crash_before_within_or_after_the_effect(effect, left):
    inner = SimulatedDisk()
    disk = FaultyDisk(inner, Fault(at=2, kind="crash", effect=effect))
    handle = disk.create("/a")
    with pytest.raises(SimulatedCrash, match="write, call 2"):
        disk.write(handle, 0, [b"abcdef"])
    assert content(inner, "/a") == left


def test_no_handler_of_exceptions_survives_a_crash():
    assert not issubclass(SimulatedCrash, Exception)


def test_a_crashed_process_does_nothing_more_until_healed():
    inner = SimulatedDisk()
    disk = FaultyDisk(inner, Fault(at=2, kind="crash", only=frozenset({"create", "write"}), effect="whole"))
    handle = disk.create("/a")
    with pytest.raises(SimulatedCrash):
        disk.write(handle, 0, [b"abc"])
    for clean_up in (lambda: disk.unlink("/a"), lambda: disk.write(handle, 0, [b"xxx"])):
        with pytest.raises(SimulatedCrash):
            clean_up()
    assert content(inner, "/a") == b"abc"
    disk.heal()
    disk.unlink("/a")
    assert inner.list("/") == []


def test_a_sticky_error_fails_all_matching_calls_until_healed():
    disk = FaultyDisk(SimulatedDisk(), Fault(at=1, effect="half", only=frozenset({"write"}), sticky=True))
    handle = disk.create("/a")
    for offset in range(3):  # only the first one has its effect
        with raises(errno.EIO):
            disk.write(handle, offset, [b"abcd"])
        assert read(disk, handle) == b"ab"
    disk.heal()
    disk.write(handle, 0, [b"abcd"])
    assert read(disk, handle) == b"abcd"
    assert disk.calls == 4


def test_a_disk_healed_too_early_never_fails():
    disk = FaultyDisk(SimulatedDisk(), Fault(at=1))
    disk.heal()
    disk.list("/")
    assert not disk.fired


@pytest.mark.parametrize("name", sorted(name for name in vars(Disk) if not name.startswith("_")))
def test_every_call_can_fail(name):
    disk = FaultyDisk(SimulatedDisk(), Fault(at=1, only=frozenset({name})))
    arguments = {
        "identity": (),
        "read_into": (3, 0, memoryview(bytearray(1))),
        "write": (3, 0, [b"x"]),
        "truncate": (3, 0),
        "rename": ("/a", "/b"),
        "link": ("/a", "/b"),
    }
    by_handle = {"close", "sync", "syncing", "size", "linked", "try_lock", "unlock"}
    with raises(errno.EIO):
        getattr(disk, name)(
            *arguments.get(name, (3,) if name in by_handle else ("/a",)), **({"write": True} if name == "open" else {})
        )
    assert disk.fired


@pytest.mark.parametrize("wrong", [{"at": 0}, {"at": 1, "only": frozenset({"fsync"})}])
def test_a_fault_that_could_never_happen_is_refused(wrong):
    with pytest.raises(ConfigError, match="fault"):
        Fault(**wrong)


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_a_sweep_fails_every_call_once_and_ends(keep):
    """Replace a file safely, crash at every call: it is always the old or the new one, whole."""

    def replace(disk):
        handle = disk.create("/new")
        disk.write(handle, 0, [b"new"])
        disk.sync(handle)
        disk.close(handle)
        disk.rename("/new", "/a")
        disk.sync_folder("/")

    for at in range(1, 100):
        inner = SimulatedDisk(seed=at)
        make(inner, "/a", b"old", durable=True)
        disk = FaultyDisk(inner, Fault(at=at, kind="crash", effect="half"))
        try:
            replace(disk)
        except SimulatedCrash:
            inner.crash(keep)
        assert content(inner, "/a") in ({b"old", b"new"} if disk.fired else {b"new"})
        if not disk.fired:
            break
    assert at == 7  # six calls, and a run without a fault


# Clock and randomness


def test_the_clock_moves_when_told_to():
    clock = ManualClock(start_us=1_000_000)
    assert (clock.time_us(), clock.monotonic_s()) == (1_000_000, 0.0)
    clock.advance(1.5)
    assert (clock.time_us(), clock.monotonic_s()) == (2_500_000, 1.5)
    clock.jump_wall(-2)
    assert (clock.time_us(), clock.monotonic_s()) == (500_000, 1.5)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_waiting_takes_the_whole_timeout_at_once_unless_the_event_is_set():
    clock = ManualClock(start_us=0)
    event = threading.Event()
    assert not clock.wait(event, 60)
    assert not clock.wait(event, 0)
    assert (clock.time_us(), clock.monotonic_s()) == (60_000_000, 60.0)
    event.set()
    assert clock.wait(event, 60)
    assert clock.monotonic_s() == 60.0


def test_a_loop_towards_a_deadline_ends():
    clock = ManualClock()
    clock.advance(0.3)
    deadline_s = clock.monotonic_s() + 1e-7
    turns = 0
    while (rest_s := deadline_s - clock.monotonic_s()) > 0:
        assert not clock.wait(threading.Event(), rest_s / 3)
        turns += 1
    assert turns < 10


def test_nonces_repeat_with_their_seed_and_use_all_bits():
    def some(seed):
        randomness = SeededRandomness(seed)
        return [randomness.nonce() for _ in range(200)]

    assert some(1) == some(1) != some(2)
    assert all(0 < nonce < 1 << 64 for nonce in some(1))
    assert any(nonce >= 1 << 63 for nonce in some(1))


# Against a dumb model


class ModelFile:
    def __init__(self, content=b""):
        self.sync(content)

    def change(self, content):
        self.now = content
        self.dirty = True
        self.longest = max(self.longest, len(content))  # since the last sync

    def sync(self, content):
        self.now = self.synced = content
        self.dirty = False
        self.longest = len(content)


class ModelFolder:
    def __init__(self):
        self.now = {}
        self.history = [{}]  # the synced names first, then the names after each operation


FOLDERS = st.sampled_from(["/x", "/y"])
PATHS = st.tuples(FOLDERS, st.sampled_from("abc"))


class DiskAgainstModel(RuleBasedStateMachine):
    """Two folders of files. The model copies everything at every step, and so cannot be wrong in an interesting way.

    Renames stay in their folder: what those between folders promise has its own tests above.
    """

    def __init__(self):
        super().__init__()
        self.disk = SimulatedDisk(seed=1)
        self.folders = {"/x": ModelFolder(), "/y": ModelFolder()}
        for path in self.folders:
            self.disk.make_folder(path)
        self.disk.sync_folder("/")

    def expect(self, number, call):
        with raises(number):
            call()

    def found(self, place):
        folder, name = place
        return self.folders[folder].now.get(name)

    def change(self, folder, names):
        self.folders[folder].now = names
        self.folders[folder].history.append(names)

    @rule(place=PATHS)
    def create(self, place):
        if self.found(place):
            return self.expect(errno.EEXIST, lambda: self.disk.create("/".join(place)))
        self.disk.close(self.disk.create("/".join(place)))
        return self.change(place[0], self.folders[place[0]].now | {place[1]: ModelFile()})

    def use(self, place, call):
        """Call with the open file and its model, if there is one."""
        if (model := self.found(place)) is None:
            return self.expect(errno.ENOENT, lambda: self.disk.open("/".join(place), write=True))
        handle = self.disk.open("/".join(place), write=True)
        call(handle, model)
        return self.disk.close(handle)

    @rule(place=PATHS, offset=st.integers(0, 12), buffers=st.lists(st.binary(max_size=5), max_size=3))
    def write(self, place, offset, buffers):
        def call(handle, model):
            self.disk.write(handle, offset, buffers)
            if data := b"".join(buffers):
                padded = model.now.ljust(offset, b"\0")
                model.change(padded[:offset] + data + padded[offset + len(data) :])

        self.use(place, call)

    @rule(place=PATHS, size=st.integers(0, 15))
    def truncate(self, place, size):
        def call(handle, model):
            self.disk.truncate(handle, size)
            model.change(model.now[:size].ljust(size, b"\0"))

        self.use(place, call)

    @rule(place=PATHS)
    def sync(self, place):
        def call(handle, model):
            self.disk.sync(handle)
            model.sync(model.now)

        self.use(place, call)

    @rule(folder=FOLDERS)
    def sync_folder(self, folder):
        self.disk.sync_folder(folder)
        self.folders[folder].history = [self.folders[folder].now]

    @rule(place=PATHS)
    def unlink(self, place):
        if self.found(place) is None:
            return self.expect(errno.ENOENT, lambda: self.disk.unlink("/".join(place)))
        self.disk.unlink("/".join(place))
        names = self.folders[place[0]].now
        return self.change(place[0], {name: file for name, file in names.items() if name != place[1]})

    @rule(source=PATHS, second=PATHS)
    def link(self, source, second):
        link = partial(self.disk.link, "/".join(source), "/".join(second))
        if (model := self.found(source)) is None:
            return self.expect(errno.ENOENT, link)
        if self.found(second):
            return self.expect(errno.EEXIST, link)
        link()
        return self.change(second[0], self.folders[second[0]].now | {second[1]: model})

    @rule(source=PATHS, second=st.sampled_from("abc"))
    def rename(self, source, second):
        folder, name = source
        rename = partial(self.disk.rename, "/".join(source), f"{folder}/{second}")
        if (model := self.found(source)) is None:
            return self.expect(errno.ENOENT, rename)
        rename()
        if self.found((folder, second)) is not model:
            names = {other: file for other, file in self.folders[folder].now.items() if other != name}
            self.change(folder, names | {second: model})
        return None

    @rule(keep=st.sampled_from(["nothing", "everything", "random"]))
    def crash(self, keep):
        boot = self.disk.identity().boot
        self.disk.crash(keep)
        assert self.disk.identity().boot != boot
        for path, folder in self.folders.items():
            allowed = {"nothing": folder.history[:1], "everything": folder.history[-1:], "random": folder.history}[keep]
            found = {name: content(self.disk, f"{path}/{name}") for name in self.disk.list(path)}
            assert any(self.may_be(names, found, keep) for names in allowed), (path, found)
        self.go_on_from_what_is_there()

    def may_be(self, names, found, keep):
        def right(model, data):
            if keep == "random" and model.dirty:
                return len(data) <= model.longest
            return data == (model.now if keep == "everything" else model.synced)

        return names.keys() == found.keys() and all(right(model, found[name]) for name, model in names.items())

    def go_on_from_what_is_there(self):
        met = []
        for path, folder in self.folders.items():
            names = {}
            for name in self.disk.list(path):
                handle = self.disk.open(f"{path}/{name}", write=False)
                model = next((model for other, model in met if self.same(handle, other)), None)
                names[name] = model or ModelFile(read(self.disk, handle))
                met.append((handle, names[name]))
            folder.now, folder.history = names, [names]
        for handle, _ in met:
            self.disk.close(handle)

    def same(self, one, other):
        """Whether two handles lead to one file: then they cannot both have its lock."""
        assert self.disk.try_lock(other)
        same = not self.disk.try_lock(one)
        self.disk.unlock(other)
        self.disk.unlock(one)
        return same

    @invariant()
    def reads_show_what_was_written(self):
        for path, folder in self.folders.items():
            assert sorted(self.disk.list(path)) == sorted(folder.now)
            for name, model in folder.now.items():
                assert content(self.disk, f"{path}/{name}") == model.now


TestDiskAgainstModel = DiskAgainstModel.TestCase
TestDiskAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)
