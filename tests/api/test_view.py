"""Snapshots and keyed views as a user meets them, on a real disk, against a dict."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from conftest import wait_until
from tailrace.errors import Closed, ConfigError, Corrupt, SnapshotMissing, StreamMissing
from tailrace.streams import Checked, verify_shard

Model = dict[bytes, bytes]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as world:
        yield world


def send(producer: tailrace.Producer, model: Model, key: bytes, value: bytes | None) -> None:
    producer.send(value, key=key)
    if value is None:
        model.pop(key, None)
    else:
        model[key] = value


def send_random(producer: tailrace.Producer, model: Model, source: random.Random, count: int) -> None:
    for _ in range(count):
        key = b"key-%d" % source.randrange(200)
        send(producer, model, key, None if source.random() < 0.2 else source.randbytes(source.randrange(20)))


def fill(world: tailrace.World, stream: str = "s", **pairs: bytes | None) -> None:
    with world.producer(stream) as producer:
        for key, value in pairs.items():
            producer.send(value, key=key.encode())


def state(view: tailrace.View) -> Model:
    pairs = list(view.items())
    assert len(dict(pairs)) == len(pairs), "a key twice"
    return dict(pairs)


def snapshot_paths(folder: Path, stream: str = "s", shard: int = 0) -> list[Path]:
    """Newest first."""
    return sorted((folder / "streams" / stream / "snapshots" / f"{shard:05d}").glob("*.arrow"), reverse=True)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


# ---- reading


def test_a_view_is_the_last_value_of_each_key(world: tailrace.World) -> None:
    fill(world, a=b"1", b=b"2", c=b"", d=b"4")
    fill(world, a=b"new", b=None)
    with world.view("s") as view:
        assert view.get(b"a") == view[b"a"] == b"new"
        assert view.get(b"b") is None
        assert view.get(b"b", b"?") == b"?"
        assert view.get(b"c") == b""
        assert (b"a" in view, b"b" in view, b"c" in view) == (True, False, True)
        assert len(view) == 3
        assert sorted(view.items()) == [(b"a", b"new"), (b"c", b""), (b"d", b"4")]
        assert sorted(view.keys()) == sorted(view) == [b"a", b"c", b"d"]
        assert sorted(view.values()) == [b"", b"4", b"new"]
        assert view.get(bytearray(b"a")) == b"new"  # type: ignore[call-overload]
        with pytest.raises(KeyError):
            view[b"b"]
        with pytest.raises(TypeError, match="keys are bytes"):
            view.get("a")  # type: ignore[call-overload]
        assert repr(view) == "<View s, 1 shards, 3 keys>"


def test_messages_without_a_key_set_nothing(world: tailrace.World) -> None:
    with world.producer("s") as producer:
        producer.send_many([b"x"] * 100)
        producer.send(b"1", key=b"a")
    with world.view("s") as view:
        assert state(view) == {b"a": b"1"}
    assert [taken.keys for taken in world.snapshot("s")] == [1]


def test_an_empty_stream_can_be_viewed_and_followed(world: tailrace.World) -> None:
    world.create_stream("s", shards=2)
    with world.view("s") as view:
        assert len(view) == 0
        fill(world, a=b"1")
        wait_until(lambda: view.get(b"a") == b"1", "the first key")
    with pytest.raises(StreamMissing):
        world.view("nope")


def test_a_view_of_some_shards_has_only_their_keys(world: tailrace.World) -> None:
    with world.producer("s", shards=4) as producer:
        producer.send_many([b"%d" % number for number in range(100)], [b"%d" % number for number in range(100)])
    parts = []
    for shard in range(4):
        with world.view("s", shards=[shard]) as view:
            parts.append(set(view.keys()))
            assert all(key in view for key in parts[-1])
            assert list(view.positions) == [shard]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 100
    with pytest.raises(ConfigError, match="shards 0 to 3"):
        world.view("s", shards=[4])


def test_a_key_that_was_sent_elsewhere_by_hand_is_found(world: tailrace.World) -> None:
    with world.producer("s", shards=8) as producer:
        for number in range(8):
            producer.send(b"%d" % number, key=b"k%d" % number, shard=3)
    with world.view("s") as view:
        assert [view.get(b"k%d" % number) for number in range(8)] == [b"%d" % number for number in range(8)]
        assert view.get(b"k9") is None


# ---- against a dict


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_views_agree_with_a_dict(world: tailrace.World, seed: int) -> None:
    """Random updates, snapshots, restarts, collections; the views that were opened at the start and in between, too."""
    source, model = random.Random(seed), Model()
    keeps = source.choice((None, 1, 2))
    shards = source.choice((1, 3))
    world.create_stream("s", shards=shards, file_bytes=300, retention=tailrace.Retention(keeps_snapshots=keeps))
    views = [world.view("s")]
    producer = world.producer("s")
    try:
        for _ in range(40):
            act = source.random()
            if act < 0.6:
                send_random(producer, model, source, source.choice((1, 5, 200)))
                producer.flush()
            elif act < 0.75:
                world.snapshot("s", source.choice((None, source.randrange(shards))))
            elif act < 0.85:
                producer.close()
                producer = world.producer("s")
            elif act < 0.95:
                world.trim("s")
            elif len(views) < 4:
                views.append(world.view("s"))
        producer.flush()
        with world.view("s") as fresh:
            assert state(fresh) == model
        for view in views:
            assert view.wait_for(producer, 60), view.problem
            assert state(view) == model
            assert view.problem is None
    finally:
        producer.close()
        for view in views:
            view.close()


def test_producers_go_on_while_snapshots_are_taken_and_views_load(world: tailrace.World) -> None:
    world.create_stream("s", shards=3, file_bytes=20_000, retention=tailrace.Retention(keeps_snapshots=1))
    model, source, stop = Model(), random.Random(7), threading.Event()
    producer = world.producer("s", buffer_s=0.002)

    def produce() -> None:
        while not stop.is_set():
            send_random(producer, model, source, 50)
            producer.flush()  # as fast as the disk lets it: in this process views could not keep up with more

    thread = threading.Thread(target=produce)
    thread.start()
    views = []
    try:
        wait_until(lambda: producer.flushed_count > 1000, "messages")
        for _ in range(4):
            before = producer.positions
            taken = world.snapshot("s")
            assert all(one.position >= before[one.shard] for one in taken)
            views.append(world.view("s"))
            assert all(at >= before[shard] for shard, at in views[-1].positions.items()), "wait: all that was durable"
            count = producer.flushed_count
            wait_until(lambda count=count: producer.flushed_count > count + 1000, "more messages")
        for view in views:  # it never pauses, and is fresh all the same
            wait_until(lambda view=view: view.freshness_ms < 5000, "a fresh view")
        wait_until(lambda: any(status.start > 0 for status in world.stream_status("s")), "old files to be collected")
        stop.set()
        thread.join()
        producer.flush()
        for view in views:
            assert view.wait_for(producer, 60), view.problem
            assert state(view) == model
    finally:
        stop.set()
        thread.join()
        for view in views:
            view.close()
        producer.close()


# ---- snapshots


def test_a_restart_begins_with_the_snapshot_and_applies_only_what_came_after(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        fill(world, a=b"1", b=b"2", c=b"3")
        (taken,) = world.snapshot("s")
        assert (taken.shard, taken.keys, taken.fresh) == (0, 3, True)
        fill(world, b=None, d=b"4")
    with tailrace.open(tmp_path) as world, world.view("s") as view:
        assert state(view) == {b"a": b"1", b"c": b"3", b"d": b"4"}
        assert view.updates == 2
        assert view.notes == ()


def test_a_snapshot_of_nothing_new_is_the_one_that_is_there(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, a=b"1")
    (first,) = world.snapshot("s")
    (again,) = world.snapshot("s")
    assert not again.fresh
    assert (again.position, again.created_us, again.keys) == (first.position, first.created_us, 1)
    assert len(snapshot_paths(tmp_path)) == 1
    (status,) = world.snapshots("s")
    assert (status.shard, status.position, status.size_bytes) == (0, first.position, first.size_bytes)


def test_a_snapshot_up_to_a_position_has_exactly_what_came_before(world: tailrace.World) -> None:
    fill(world, a=b"1", b=b"2", c=b"3")
    (message_c,) = [m for batch in world.consumer("s", start={0: 4}, follow=False) for m in batch]
    (taken,) = world.snapshot("s", 0, position=message_c.position)
    assert (taken.position, taken.keys) == (4, 2)
    (later,) = world.snapshot("s")
    assert (later.position, later.keys) == (6, 3)
    (earlier,) = world.snapshot("s", 0, position=2)
    assert earlier.keys == 1, "a newer snapshot is no base for an older one"
    with pytest.raises(ValueError, match="goes from 0 to 6"):
        world.snapshot("s", 0, position=7)
    with pytest.raises(ConfigError, match="of which shard"):
        world.snapshot("s", position=2)
    with pytest.raises(ConfigError, match="shards 0 to 0"):
        world.snapshot("s", 1)


def test_a_batch_system_can_write_what_it_knows(world: tailrace.World) -> None:
    world.create_stream("s", shards=2)
    with world.producer("s") as producer:
        for number in range(10):
            producer.send(b"old", key=b"%d" % number)
    ends = {status.shard: status.end for status in world.stream_status("s")}
    keys = {shard: [] for shard in ends}  # type: dict[int, list[str]]
    for batch in world.consumer("s", start="earliest", follow=False):
        keys[batch.shard] += [message.key.decode() for message in batch if message.key]
    for shard, end in ends.items():
        values = pa.array(["new"] * len(keys[shard]))
        taken = world.write_snapshot("s", shard, end, pa.array(keys[shard]), values)
        assert taken.keys == len(keys[shard])
    with world.view("s") as view:
        assert state(view) == {b"%d" % number: b"new" for number in range(10)}
        assert view.updates == 0
    with pytest.raises(ValueError, match="more than once"):
        world.write_snapshot("s", 0, 0, [b"a", b"a"], [b"1", b"2"])
    with pytest.raises(ValueError, match="goes from 0 to"):
        world.write_snapshot("s", 0, ends[0] + 1, [b"a"], [b"1"])
    with pytest.raises(ConfigError, match="shards 0 to 1"):
        world.write_snapshot("s", 2, 0, [b"a"], [b"1"])


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "another version of the stream"])
def test_a_damaged_snapshot_gives_way_to_the_one_before(world: tailrace.World, tmp_path: Path, harm: str) -> None:
    fill(world, a=b"1", b=b"2")
    world.snapshot("s")
    fill(world, a=b"3")
    world.snapshot("s")
    fill(world, c=b"4")
    newest = snapshot_paths(tmp_path)[0]
    if harm == "flip":
        damage(newest)
    elif harm == "cut":
        newest.write_bytes(newest.read_bytes()[:-1])
    elif harm == "empty":
        newest.write_bytes(b"")
    else:
        with tailrace.open(tmp_path / "other") as other:
            fill(other, **{"x" * (number + 1): b"9" for number in range(3)})
            other.snapshot("s")
        stranger = snapshot_paths(tmp_path / "other")[0]
        newest.with_name(stranger.name.replace(stranger.name[:20], newest.name[:20])).write_bytes(stranger.read_bytes())
        newest.unlink()
    with world.view("s") as view:
        assert state(view) == {b"a": b"3", b"b": b"2", b"c": b"4"}
        (note,) = view.notes
        assert "snapshots/00000" in note
        assert "restore or delete it" in note
        assert view.updates == 2
    (taken,) = world.snapshot("s")
    assert taken.keys == 3


def test_without_a_good_snapshot_all_messages_do_and_else_it_is_said_what_to_do(
    world: tailrace.World, tmp_path: Path
) -> None:
    world.create_stream("s", file_bytes=1)
    fill(world, a=b"1", b=b"2")
    fill(world, c=b"3")
    world.snapshot("s")
    damage(snapshot_paths(tmp_path)[0])
    with world.view("s") as view:
        assert state(view) == {b"a": b"1", b"b": b"2", b"c": b"3"}
        assert len(view.notes) == 1
    world.set_retention("s", tailrace.Retention(size_bytes=1))
    assert world.trim("s")[0].segments > 0
    for attempt in (lambda: world.view("s"), lambda: world.snapshot("s")):
        with pytest.raises(SnapshotMissing, match=r"write_snapshot\('s', 0") as seen:
            attempt()
        assert "checksum" in seen.value.__notes__[0]
    world.write_snapshot("s", 0, world.stream_status("s")[0].end, [b"a"], [b"mended"])
    with world.view("s") as view:
        assert state(view) == {b"a": b"mended"}


def test_snapshots_go_with_their_stream(world: tailrace.World) -> None:
    fill(world, a=b"1")
    world.snapshot("s")
    world.delete_stream("s")
    fill(world, b=b"2")
    assert world.snapshots("s") == []
    with world.view("s") as view:
        assert state(view) == {b"b": b"2"}


def test_verify_reads_snapshots_too(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, a=b"1")
    world.snapshot("s")
    fill(world, a=b"2")
    world.snapshot("s")
    checked = Checked()
    assert not list(verify_shard(world.files, "s", 0, checked))
    assert checked.files == 2 + 2
    newest, _ = snapshot_paths(tmp_path)
    damage(newest)
    newest.with_name("notes.txt").write_text("?")
    findings = list(verify_shard(world.files, "s", 0, Checked()))
    assert [(finding.kind, Path(finding.file).name) for finding in findings] == [
        ("damage", newest.name),
        ("leftover", "notes.txt"),
    ]


# ---- following


def test_callbacks_hear_every_change_in_order(world: tailrace.World) -> None:
    heard: list[tuple[bytes, bytes | None]] = []
    fill(world, old=b"0")
    world.snapshot("s")
    with world.view("s", on_change=lambda key, value: heard.append((key, value))) as view, world.producer("s") as out:
        for number in range(500):
            out.send(None if number % 7 == 0 else b"%d" % number, key=b"%d" % (number % 3))
            if number % 50 == 0:
                out.flush()
        out.flush()
        assert view.wait_for(out)
        assert len(heard) == 500, "the snapshot itself is no change"
        for key in range(3):
            expected = [None if n % 7 == 0 else b"%d" % n for n in range(500) if n % 3 == key]
            assert [value for heard_key, value in heard if heard_key == b"%d" % key] == expected


def test_a_callback_can_begin_with_what_is_there_and_end(
    world: tailrace.World, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world, a=b"1", b=b"2")
    heard: list[tuple[bytes, bytes | None]] = []

    def listen(key: bytes, value: bytes | None) -> None:
        heard.append((key, value))
        if key == b"bad":
            raise RuntimeError("a listener fell over")

    with world.view("s") as view, world.producer("s") as out:
        end = view.on_change(listen, present=True)
        assert sorted(heard) == [(b"a", b"1"), (b"b", b"2")]
        for key in (b"bad", b"c"):
            out.send(b"3", key=key)
        out.flush()
        assert view.wait_for(out)
        assert heard[2:] == [(b"bad", b"3"), (b"c", b"3")]
        assert "a listener fell over" in caplog.text
        end()
        end()
        out.send(b"4", key=b"d")
        out.flush()
        assert view.wait_for(out)
        assert len(heard) == 4


def test_reads_do_not_wait_for_a_slow_callback(world: tailrace.World) -> None:
    fill(world, a=b"1")
    entered, leave = threading.Event(), threading.Event()

    def slow(key: bytes, value: bytes | None) -> None:
        entered.set()
        leave.wait(60)

    with world.view("s") as view:
        view.on_change(slow)
        fill(world, a=b"2")
        assert entered.wait(60)
        try:
            assert view[b"a"] == b"2"
            assert state(view) == {b"a": b"2"}
            assert not view.wait_for({0: 4}, timeout_s=0.01), "not before the callback is done"
        finally:
            leave.set()
        assert view.wait_for({0: 4})


def test_waiting_for_positions(world: tailrace.World) -> None:
    fill(world, a=b"1")
    with world.view("s") as view:
        assert view.wait_for(view)
        assert view.wait_for({("s", 0): 2, ("other", 0): 99})
        assert not view.wait_for({0: 3}, timeout_s=0.01)
        with pytest.raises(ValueError, match="does not follow s/7"):
            view.wait_for({7: 1})
        waiting = threading.Thread(target=view.close)
        waiting.start()
        with pytest.raises(Closed):
            view.wait_for({0: 3}, timeout_s=60)
        waiting.join()
    assert view[b"a"] == b"1", "what was there stays"


def test_a_quiet_stream_stays_fresh_and_a_closed_view_does_not(world: tailrace.World) -> None:
    fill(world, a=b"1")
    view = world.view("s")
    samples_ms = [view.freshness_ms]

    def looked_again() -> bool:
        samples_ms.append(view.freshness_ms)
        return samples_ms[-1] < samples_ms[-2]

    try:
        for _ in range(3):
            wait_until(looked_again, "another look")
        assert max(samples_ms) < 10_000
    finally:
        view.close()
    first_ms = view.freshness_ms
    wait_until(lambda: view.freshness_ms > first_ms, "time to pass")


def test_without_waiting_a_view_catches_up_by_itself(world: tailrace.World) -> None:
    fill(world, **{f"k{number}": b"1" for number in range(100)})
    with world.view("s", wait=False) as view:
        wait_until(lambda: len(view) == 100, "all keys")
        wait_until(lambda: view.freshness_ms < 10_000, "freshness")


def test_retention_that_overtakes_a_view_makes_it_load_the_newest_snapshot(world: tailrace.World) -> None:
    """The view is held up in a callback while files go, and loads anew. Listeners hear what changed."""
    world.create_stream("s", shards=2, file_bytes=1, retention=tailrace.Retention(keeps_snapshots=1))
    model, source, heard = Model(), random.Random(1), Model()
    held, go_on = threading.Event(), threading.Event()

    def listen(key: bytes, value: bytes | None) -> None:
        if value is None:
            heard.pop(key, None)
        else:
            heard[key] = value
        if key == b"stop":
            held.set()
            go_on.wait(60)

    with world.producer("s") as producer:
        for number in range(20):
            send(producer, model, b"doomed-%d" % number, b"x")
        producer.flush()
        with world.view("s") as view:
            view.on_change(listen, present=True)
            send(producer, model, b"stop", b"here")
            producer.flush()
            assert held.wait(60)
            try:
                for number in range(20):
                    send(producer, model, b"doomed-%d" % number, None)
                for _ in range(5):
                    send_random(producer, model, source, 100)
                    producer.flush()
                world.snapshot("s")
                send_random(producer, model, source, 100)
                producer.flush()
                world.trim("s")
                before = view.positions
                assert all(status.start > before[status.shard] for status in world.stream_status("s"))
            finally:
                go_on.set()
            assert view.wait_for(producer, 60), view.problem
            assert state(view) == model
            assert heard == model
            assert all(view.positions[shard] > at for shard, at in before.items())
            assert view.problem is None


def test_damage_holds_one_shard_up_until_there_is_a_snapshot_behind_it(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", shards=2, cached=False)
    with world.producer("s") as producer:
        producer.send(b"1", key=b"a", shard=0)
        producer.send(b"1", key=b"b", shard=1)
        producer.flush()
        with world.view("s") as view:
            entered, leave = threading.Event(), threading.Event()
            view.on_change(lambda key, value: (entered.set(), leave.wait(60)))
            producer.send(b"2", key=b"hold", shard=1)
            producer.flush()
            assert entered.wait(60)  # so that the damage is there before the view sees the message
            producer.send(b"broken", key=b"a", shard=0)
            producer.send(b"behind", key=b"c", shard=0)
            producer.send(b"3", key=b"b", shard=1)
            producer.flush()
            (path,) = (tmp_path / "streams" / "s" / "00000").glob("*.data")
            content = path.read_bytes()
            path.write_bytes(content.replace(b"broken", b"BROKEN"))
            leave.set()
            wait_until(lambda: isinstance(view.problem, Corrupt), "the damage to be seen")
            wait_until(lambda: view[b"b"] == b"3", "the other shard to go on")
            assert view[b"a"] == b"1", "nothing is skipped in silence"
            stale_ms = view.freshness_ms
            wait_until(lambda: view.freshness_ms > stale_ms, "time to pass")
            world.write_snapshot("s", 0, world.stream_status("s")[0].end, [b"a"], [b"mended"])
            wait_until(lambda: view.get(b"a") == b"mended", "the snapshot to be taken")
            producer.send(b"5", key=b"a", shard=0)
            producer.flush()
            assert view.wait_for(producer)
            assert state(view) == {b"a": b"5", b"b": b"3", b"hold": b"2"}
            wait_until(lambda: view.problem is None, "the problem to be over")


def test_a_view_says_so_when_its_stream_is_deleted(world: tailrace.World) -> None:
    fill(world, a=b"1")
    with world.view("s") as view:
        world.delete_stream("s")
        wait_until(lambda: isinstance(view.problem, StreamMissing), "the deletion to be seen")
        fill(world, a=b"2")
        wait_until(lambda: "made anew" in str(view.problem), "the new stream not to be taken for the old one")
        assert view[b"a"] == b"1"


def test_a_view_ends_when_its_world_is_closed(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        fill(world, a=b"1")
        with tailrace.open(tmp_path) as other:
            view = other.view("s")
        fill(world, a=b"2")
        wait_until(lambda: view.problem is not None or view[b"a"] == b"2", "the end, or the news")
        view.close()
        assert view[b"a"] in (b"1", b"2")


# ---- retention


def grow(world: tailrace.World, count: int) -> None:
    """Files of one message each."""
    with world.producer("s") as producer:
        for number in range(count):
            producer.send(b"%d" % number, key=b"k%d" % (number % 3))
            producer.flush()


def test_files_go_when_enough_snapshots_cover_them(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", file_bytes=1, retention=tailrace.Retention(keeps_snapshots=2))
    grow(world, 5)
    world.snapshot("s")
    assert world.trim("s")[0].segments == 0, "one is not enough"
    first = world.stream_status("s")[0].end
    grow(world, 5)
    world.snapshot("s")
    collected = world.trim("s")[0]
    assert (collected.start, collected.snapshots) == (first, 0)
    grow(world, 5)
    world.snapshot("s")
    collected = world.trim("s")[0]
    assert collected.start > first
    assert collected.snapshots == 1
    assert len(snapshot_paths(tmp_path)) == 2
    damage(snapshot_paths(tmp_path)[0])
    with world.view("s") as view:
        assert len(view) == 3, "the older one and its updates are still there"


def test_a_damaged_snapshot_does_not_count(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", file_bytes=1, retention=tailrace.Retention(keeps_snapshots=1))
    grow(world, 5)
    world.snapshot("s")
    good = snapshot_paths(tmp_path)[0]
    start = world.stream_status("s")[0].end
    grow(world, 5)
    world.snapshot("s")
    damage(snapshot_paths(tmp_path)[0])
    assert world.trim("s")[0].start == start
    assert good.exists(), "the newest good one"
    assert len(snapshot_paths(tmp_path)) == 2, "the damaged one may be looked into"
    with world.view("s") as view:
        assert len(view) == 3
    grow(world, 1)
    world.snapshot("s")
    assert world.trim("s")[0].snapshots == 2
    assert len(snapshot_paths(tmp_path)) == 1


def test_other_limits_still_need_the_snapshots(world: tailrace.World, tmp_path: Path) -> None:
    policy = tailrace.Retention(size_bytes=1, keeps_snapshots=1, waits_for=("billing",))
    world.create_stream("s", file_bytes=1, retention=policy)
    consumer = world.consumer("s", start="earliest", checkpoint="billing", follow=False)
    grow(world, 5)
    for _ in consumer:
        consumer.commit()
    assert world.trim("s")[0].segments == 0
    world.snapshot("s")
    assert world.trim("s")[0].segments == 4


def test_without_the_setting_snapshots_that_lead_nowhere_go(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", file_bytes=1)
    for _ in range(3):
        grow(world, 2)
        world.snapshot("s")
    assert world.trim("s")[0].snapshots == 0, "nothing set: everything is kept"
    world.set_retention("s", tailrace.Retention(size_bytes=1))
    assert world.trim("s")[0].snapshots == 2
    assert len(snapshot_paths(tmp_path)) == 1
    with world.view("s") as view:
        assert len(view) == 2
