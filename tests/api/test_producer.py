"""The producer as a user meets it, on a real disk."""

import asyncio
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from conftest import wait_until
from tailrace.errors import Closed, ConfigError, DiskFull, Fenced, FlushFailed, SendRefused, StreamExists
from tailrace.native import Packed


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as world:
        yield world


def rows(world: tailrace.World, stream: str = "s") -> list[tuple[int, bytes | None, bytes | None]]:
    with world.consumer(stream, start="earliest", follow=False) as consumer:
        return [(m.shard, m.key, m.value) for batch in consumer for m in batch]


def test_a_key_always_goes_to_the_same_shard_and_all_shards_are_used(world: tailrace.World) -> None:
    with world.producer("s", shards=8) as producer:
        for i in range(400):
            producer.send(b"%d" % i, key=b"key-%d" % (i % 40))
    shards: dict[bytes | None, set[int]] = {}
    for shard, key, _ in rows(world):
        shards.setdefault(key, set()).add(shard)
    assert all(len(used) == 1 for used in shards.values())
    assert len({shard for used in shards.values() for shard in used}) == 8


def test_messages_without_a_key_take_turns(world: tailrace.World) -> None:
    with world.producer("s", shards=3) as producer:
        for i in range(6):
            producer.send(b"%d" % i)
    assert rows(world) == [(i % 3, None, b"%d" % i) for i in (0, 3, 1, 4, 2, 5)]


def test_the_background_flushes_without_being_told(world: tailrace.World) -> None:
    with world.producer("s", buffer_s=0.01) as producer:
        producer.send(b"x")
        wait_until(lambda: rows(world), "the message to arrive by itself")


def test_no_buffering_at_all(world: tailrace.World) -> None:
    with world.producer("s", buffer_s=0) as producer:
        for i in range(50):
            producer.send(b"%d" % i)
        wait_until(lambda: len(rows(world)) == 50, "all messages to arrive by themselves")


def test_without_a_timer_bytes_force_a_flush(world: tailrace.World) -> None:
    with world.producer("s", buffer_s=math.inf, buffer_bytes=1000) as producer:
        producer.send(b"x" * 100)
        assert rows(world) == []
        producer.send(b"x" * 1000)
        assert len(rows(world)) == 2


def test_lists_tuples_generators_and_arrow_in_all_its_shapes(world: tailrace.World) -> None:
    array = pa.array([b"a", b"bb", b"ccc"])
    with world.producer("s") as producer:
        assert producer.send_many([b"a", b"bb", b"ccc"]) == 3
        assert producer.send_many((b"a", b"bb", b"ccc")) == 3
        assert producer.send_many(value for value in [b"a", b"bb", b"ccc"]) == 3
        assert producer.send_many(array) == 3
        assert producer.send_many(array.cast(pa.large_binary())) == 3
        assert producer.send_many(pa.array(["a", "bb", "ccc"])) == 3
        assert producer.send_many(pa.chunked_array([["a"], ["bb", "ccc"]])) == 3
        assert producer.send_many(pa.array([b"zz", b"a", b"bb", b"ccc", b"zz"]).slice(1, 3)) == 3
        assert producer.send_many(pa.table({"value": array})) == 3
        assert producer.send_many(pa.record_batch({"value": array, "other": [1, 2, 3]})) == 3
        assert producer.send_many([]) == producer.send_many(pa.array([], pa.binary())) == 0
    assert [value for _, _, value in rows(world)] == [b"a", b"bb", b"ccc"] * 10


def test_keys_come_along(world: tailrace.World) -> None:
    keys, values = [b"k1", None, b"", b"k4"], [b"a", b"b", b"", None]
    with world.producer("s") as producer:
        producer.send_many(values, keys)
        producer.send_many(pa.array(values), pa.array(keys))
        producer.send_many(pa.table({"key": pa.array(keys), "value": pa.array(values)}))
        producer.send_many(pa.array([b"x", *values]).slice(1), pa.array([b"x", *keys]).slice(1))
    assert [(key, value) for _, key, value in rows(world)] == list(zip(keys, values, strict=True)) * 4


@pytest.mark.parametrize(
    ("send", "error", "says"),
    [
        (lambda p: p.send("text"), TypeError, "str; send bytes"),
        (lambda p: p.send(7), TypeError, "value is int"),
        (lambda p: p.send(b"x", key="text"), TypeError, "key is a str"),
        (lambda p: p.send(None), ValueError, "deletes a key, so it needs one"),
        (lambda p: p.send(b"x", shard=2), ValueError, "shards 0 to 1"),
        (lambda p: p.send(b"x", shard=-1), ValueError, "shards 0 to 1"),
        (lambda p: p.send(b"x" * 5000), ValueError, "message_bytes_max=4096"),
        (lambda p: p.send_many([b"x", "y"]), TypeError, "value 1 is str"),
        (lambda p: p.send_many([b"x", None]), TypeError, "value 1 is NoneType"),
        (lambda p: p.send_many([b"x"], [b"k", b"l"]), ValueError, "1 values with 2 keys"),
        (lambda p: p.send_many([b"x", b"y" * 5000]), ValueError, "message_bytes_max=4096"),
        (lambda p: p.send_many(pa.array([1, 2])), TypeError, "type int64"),
        (lambda p: p.send_many(pa.table({"v": [b"x"]})), ValueError, "none named `value`"),
        (lambda p: p.send_many(pa.array([b"x", None])), ValueError, "row 1 has no value and no key"),
    ],
)
def test_what_cannot_be_sent_is_refused_whole(world: tailrace.World, send, error, says) -> None:  # type: ignore[no-untyped-def]
    world.create_stream("s", shards=2, message_bytes_max=4096)
    with world.producer("s") as producer:
        with pytest.raises(error, match=says) as refused:
            send(producer)
        assert "not" in str(refused.value).lower()  # it says that nothing, or it, was not sent
        producer.send(b"good", shard=0)
    assert rows(world) == [(0, None, b"good")]


def test_back_pressure_blocks_the_sender_until_there_is_room(world: tailrace.World) -> None:
    with world.producer("s", buffer_s=0.001, buffer_bytes=2000, pending_bytes_max=4000) as producer:
        for i in range(2000):
            producer.send(b"%08d" % i * 10)
            assert producer._pending_bytes() < 4000 + 200
    assert [value for _, _, value in rows(world)] == [b"%08d" % i * 10 for i in range(2000)]


def test_a_sender_that_waits_too_long_is_told(world: tailrace.World, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"buffer_s": 0.001, "buffer_bytes": 500, "pending_bytes_max": 500, "send_deadline_s": 0.05}
    stuck = threading.Event()
    producer = world.producer("s", **settings)
    monkeypatch.setattr(producer._logs[0], "append", lambda packed: stuck.wait())
    taken = 0
    with pytest.raises(SendRefused, match="not taken") as refused:
        for _ in range(100):
            producer.send(b"x" * 100)
            taken += 1
    assert refused.value.took_effect is False
    monkeypatch.undo()
    stuck.set()
    producer.close()


def test_the_async_twins(world: tailrace.World) -> None:
    async def story() -> None:
        async with world.producer("s", buffer_s=0.001, buffer_bytes=2000, pending_bytes_max=4000) as producer:
            for i in range(500):
                await producer.send_async(b"%04d" % i + b"x" * 60)
            await producer.send_many_async([b"y"] * 3)
            await producer.flush_async()
            assert len(rows(world)) == 503
            with pytest.raises(TypeError):
                await producer.send_async("text")  # type: ignore[arg-type]

    asyncio.run(story())
    assert [value[:4] for _, _, value in rows(world)[:500] if value] == [b"%04d" % i for i in range(500)]


def test_several_threads_share_a_producer(world: tailrace.World) -> None:
    with world.producer("s", buffer_s=0.001) as producer:

        def work(name: int) -> None:
            for i in range(300):
                producer.send(b"%d:%d" % (name, i))
                if i % 50 == 0:
                    producer.flush()

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [value for _, _, value in rows(world) if value]
    for name in range(4):
        own = [value for value in values if value.startswith(b"%d:" % name)]
        assert own == [b"%d:%d" % (name, i) for i in range(300)], "each thread's messages stay in order"


def test_producers_of_different_shards_work_side_by_side(world: tailrace.World) -> None:
    world.create_stream("s", shards=2)
    with world.producer("s", only=[0]) as one, world.producer("s", only=[1]) as two:
        one.send(b"a")
        two.send(b"b")
        one.send(b"c")
        with pytest.raises(ValueError, match="not among those"):
            one.send(b"x", shard=1)
    assert rows(world) == [(0, None, b"a"), (0, None, b"c"), (1, None, b"b")]
    with pytest.raises(ConfigError, match="shards 0 to 1"):
        world.producer("s", only=[2])


def test_a_newer_producer_shuts_the_older_one_out(world: tailrace.World) -> None:
    older = world.producer("s", buffer_s=math.inf)
    older.send(b"flushed")
    older.flush()
    older.send(b"too late")
    newer = world.producer("s", buffer_s=math.inf)
    with pytest.raises(Fenced, match="owns it now"):
        older.flush()
    with pytest.raises(Fenced, match="takes no more messages"):
        older.send(b"x")
    with pytest.raises(Fenced, match="1 messages that were not flushed are dropped"):
        older.close()
    newer.send(b"newer")
    newer.close()
    assert [value for _, _, value in rows(world)] == [b"flushed", b"newer"]


def test_used_after_close(world: tailrace.World) -> None:
    producer = world.producer("s")
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(b"x")
    with pytest.raises(Closed):
        producer.flush()


def test_the_number_of_shards_is_fixed(world: tailrace.World) -> None:
    world.producer("s", shards=4).close()
    world.producer("s").close()
    world.producer("s", shards=4).close()
    with pytest.raises(StreamExists, match="4 shards, not 5"):
        world.producer("s", shards=5)


def test_unknown_settings_are_refused(world: tailrace.World) -> None:
    for settings, complaint in (
        ({"bufer_s": 1}, "bufer_s: no such setting"),
        ({"buffer_s": -1}, "buffer_s=-1"),
        ({"buffer_s": "1"}, "buffer_s='1': use a number"),
        ({"buffer_s": 1e10}, "buffer_s=1"),
        ({"buffer_s": math.nan}, "buffer_s=nan"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            world.producer("s", **settings)  # type: ignore[arg-type]


def test_a_producer_that_was_shut_out_in_the_background_says_so_when_it_is_closed(world: tailrace.World) -> None:
    older = world.producer("s", buffer_s=0.001)
    newer = world.producer("s")
    older.send(b"lost")
    wait_until(lambda: older._fenced, "the background to meet the fence")
    with pytest.raises(Fenced, match="1 messages that were not flushed are dropped"):
        older.close()
    newer.close()
    assert rows(world) == []


def test_a_message_is_taken_or_refused_but_never_lost_while_the_producer_closes(world: tailrace.World) -> None:
    producer = world.producer("s", buffer_s=math.inf)
    flush, sent = producer._flush, list[bytes]()

    def flush_and_meet_a_sender() -> None:
        flush()
        if not sent:  # after what seemed to be the last flush, another thread sends
            producer.send(b"late")
            sent.append(b"late")

    producer._flush = flush_and_meet_a_sender  # type: ignore[method-assign]
    producer.close()
    with pytest.raises(Closed):
        producer._packer.add(b"too late")
    assert [value for _, _, value in rows(world)] == sent


def test_what_close_could_not_flush_is_counted(world: tailrace.World, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = world.producer("s", buffer_s=math.inf)
    producer.send_many([b"a", b"b"])

    def full(packed: object) -> None:
        raise DiskFull("no space")

    monkeypatch.setattr(producer._logs[0], "append", full)
    with pytest.raises(FlushFailed, match=r"2 messages that were not flushed are dropped.*no space"):
        producer.close()


def test_appending_what_is_there_already_changes_nothing(world: tailrace.World) -> None:
    """An interrupt can come after the messages are durable and before that was noted; a retry must not repeat them."""
    producer = world.producer("s", buffer_s=math.inf)
    producer.send(b"once")
    taken = producer._packer.take()
    for _ in range(3):
        producer._logs[0].append(taken[0][0])
    producer.send(b"twice")
    producer.close()
    assert [value for _, _, value in rows(world)] == [b"once", b"twice"]


def test_an_interrupt_in_a_flush_costs_nothing(world: tailrace.World, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = world.producer("s", shards=2, buffer_s=math.inf)
    producer.send_many([b"a"], shard=0)
    producer.send_many([b"b"], shard=1)
    append = producer._logs[0].append

    def interrupted(packed: Packed) -> None:
        append(packed)
        raise KeyboardInterrupt

    monkeypatch.setattr(producer._logs[0], "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    monkeypatch.undo()
    producer.send_many([b"c"], shard=0)
    producer.close()
    assert rows(world) == [(0, None, b"a"), (0, None, b"c"), (1, None, b"b")]


def test_a_forked_child_cannot_write_into_its_parents_files(world: tailrace.World) -> None:
    producer = world.producer("s", buffer_s=math.inf)
    producer.send(b"parent")
    producer.flush()
    child = os.fork()
    if child == 0:
        try:
            producer.send(b"child")
            producer.flush()
        except Fenced as refused:
            os._exit(0 if "forked" in str(refused) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.send(b"parent again")
    producer.close()
    assert [value for _, _, value in rows(world)] == [b"parent", b"parent again"]
