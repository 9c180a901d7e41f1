"""Waiting at the end of a segment in a cache on another host: woken by its engine, each message comes once."""

import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.files.chunks import chunk_key
from tailrace.native import Records
from tailrace.native.client import HeadVigil, Watcher
from tailrace.native.engine import TICKET_BYTES, Engine

from .segment_in_a_cell import BASE, DATA, LENGTHS, Shard, versions

PATIENCE_S = 30.0  # a deadline that no test waits for


class Scene:
    """A shard with one message that everybody has, and whoever waits for more."""

    def __init__(self, folder: Path) -> None:
        self.shard = Shard(folder)
        self.shard.append([10])
        self.engine = Engine(str(folder), mutator=self.shard.cell.mutator(3_600_000_000))
        self.watcher = Watcher([LENGTHS], [0], (8, 20))
        ticket = secrets.token_bytes(TICKET_BYTES)
        self.engine.admit(ticket, PATIENCE_S)
        self.watcher.attach(0, *self.engine.address, ticket, PATIENCE_S)
        self.reading, self.counts, self.renewed = threading.Lock(), Counter[str](), 0
        follower = self.shard.follower
        follower.ahead_bytes = 1 << 20
        assert self.shard.look(0) is not None
        self.hold(PATIENCE_S)
        self.vigil = self.keep(Records)

    def keep(self, kind: type[Records], patience_s: float = PATIENCE_S) -> HeadVigil[Records]:
        place = "s", 3, 77, 1, BASE + 10
        given = self.shard.follower, self.watcher, self.reading, self.renew
        return HeadVigil(*given, kind, *place, 1 << 20, patience_s, self.counts, "relaxed")

    def hold(self, for_s: float) -> None:
        self.shard.follower.hold(self.shard.client, self.shard.client, for_s, PATIENCE_S)

    def renew(self) -> bool:
        self.renewed += 1
        self.hold(PATIENCE_S)
        return self.renewed < 2

    def next(self) -> list[int] | None:
        """The first byte of each message that comes."""
        batch = self.vigil.next(PATIENCE_S)
        if batch is None:
            return None
        return [message.value[0] for message in batch.messages() if message.value]

    def close(self) -> None:
        self.engine.close()
        self.shard.cell.close(remove=True)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_what_comes_is_there_once_and_counted(scene: Scene) -> None:
    scene.shard.append([20])
    assert scene.next() == [1]
    assert (scene.vigil.created_us, scene.vigil.entry, scene.vigil.position) == (77, 2, BASE + 30)
    assert scene.counts == {"relaxed": 20 + 24}
    assert scene.vigil.drained
    scene.shard.append([30, 40])
    assert scene.next() == [2, 3]
    before = scene.engine.stats()["received_bytes"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scene.next)
        wait_until(lambda: scene.engine.stats()["received_bytes"] > before, "the engine to be asked")
        scene.shard.append([50])
        assert waiting.result() == [4]
    assert scene.vigil.next(0.05) is None
    assert scene.vigil.waited_s >= 0.05


def test_a_beat_is_no_message(scene: Scene) -> None:
    scene.shard.append([20])
    assert scene.next() == [1]
    scene.shard.tell(scene.shard.lengths())
    assert scene.vigil.next(0.05) is None
    scene.shard.append([20])
    assert scene.next() == [2]


def test_it_is_over_when_its_patience_is(scene: Scene) -> None:
    vigil = scene.keep(Records, 0.05)
    assert vigil.next(PATIENCE_S) is None
    assert 0.05 <= vigil.waited_s < PATIENCE_S


def test_messages_that_are_not_there_are_left_to_others(scene: Scene) -> None:
    scene.shard.append([20])
    scene.shard.cell.erase(chunk_key(DATA, 0), (next(versions), 1, 0))
    assert scene.next() is None
    assert (scene.vigil.entry, scene.vigil.position) == (1, BASE + 10)


def test_lengths_that_are_gone_are_left_to_others(scene: Scene) -> None:
    scene.shard.append([20])
    assert scene.next() == [1]
    scene.shard.cell.erase(LENGTHS, (next(versions), 1, 0))
    assert scene.next() is None
    assert (scene.vigil.entry, scene.vigil.position) == (2, BASE + 30)


def test_while_somebody_else_reads_the_look_is_left_to_them(scene: Scene) -> None:
    scene.shard.append([20])
    with scene.reading:
        assert scene.next() is None
    assert not scene.reading.locked()
    assert (scene.vigil.entry, scene.vigil.position) == (1, BASE + 10)


def test_what_it_looks_with_is_renewed_and_else_it_is_over(scene: Scene) -> None:
    scene.hold(0.0)
    scene.shard.append([20])
    assert scene.next() == [1]
    assert scene.renewed == 1
    scene.hold(0.0)
    scene.shard.append([20])
    assert scene.next() is None
    assert scene.renewed == 2


def test_who_is_relieved_gives_nothing_more(scene: Scene) -> None:
    scene.shard.append([20])
    assert scene.next() == [1]
    before = scene.engine.stats()["received_bytes"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scene.next)
        wait_until(lambda: scene.engine.stats()["received_bytes"] > before, "the engine to be asked")
        assert scene.vigil.relieve() == (77, 2, BASE + 30)
        scene.shard.append([20])
        assert waiting.result() is None
    assert scene.next() is None


@pytest.mark.parametrize("is_gone", [False, True])
def test_whoever_waits_ends_when_the_watch_is_stopped_or_its_engine_goes_away(scene: Scene, is_gone: bool) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scene.next)
        wait_until(lambda: scene.engine.stats()["requests"] >= 1, "the engine to be asked")
        if is_gone:
            scene.engine.close()
        else:
            scene.watcher.stop()
        assert waiting.result() is None
    if is_gone:
        with pytest.raises(ConnectionError):
            scene.watcher.wait(0.0)


def test_batches_are_records(scene: Scene) -> None:
    with pytest.raises(TypeError, match="they are records"):
        scene.keep(bytes)  # type: ignore[arg-type]
