"""A whole world of clusters in one thread: virtual time, network, disks and caches, everything from one seed.

What runs is the product: producers' logs, both halves of both kinds of operations, the scheduler's core, consumers'
tails. What is made here are the threads and calls between them. `PYTHONPATH=tests python tests/sim/copytree_world.py
17` runs one schedule of faults and tells what happened; `1-500` runs many.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from typing_extensions import Buffer

from tailrace.config import ProducerConfig, Retention, StreamConfig, encode
from tailrace.copytree import CacheSource, CacheTarget, DurableSource, DurableTarget, Route, StreamSettings
from tailrace.copytree.copying import SILENT_S
from tailrace.copytree.routes import orders_for
from tailrace.copytree.schedule import Joined, Left, Reported, Schedule, Tick, Wanted
from tailrace.copytree.settings import adopt, read_settings
from tailrace.copytree.window import Window
from tailrace.errors import CacheUnavailable, PositionRetired, StreamMissing, Superseded, TailraceError
from tailrace.files import PosixFiles
from tailrace.files.chunks import ChunkedFile, chunk_size_for, file_key
from tailrace.files.lengths import SegmentLengths, ShardLengths, lengths_key
from tailrace.model import CopyTree, Hop
from tailrace.model.segment import segments_of
from tailrace.streams import Board, Layers, Producer, ShardLog, ShardTail
from tailrace.streams.retention import collect
from tailrace.testing import SeededRandomness, SimulatedDisk, VirtualClock, VirtualNetwork, VirtualTime
from tailrace.testing.virtual_network import End
from tailrace.wire import Batch, Opening, Operation, Order, Running, Standing

STREAM, SHARDS = "prices", 2
CONFIG = StreamConfig(shards=SHARDS, file_bytes=3000, message_bytes_max=4096, chunk_bytes=1024)
WINDOW_BYTES = 4096
BEAT_S, BACK_S = 0.5, 2.0
LOOK_S, POLL_S = 0.1, 0.07  # of readers and consumers
FAULTS_PER_S = 2.0


def settings_of(generation: int) -> bytes:
    """Of the stream as it was made the first time, the second time …"""
    return json.dumps({"version": 1, "incarnation": f"{generation:016x}", **encode(CONFIG)}).encode()


def generation_of(incarnation: str) -> int:
    return int(incarnation, 16)


class Cell:
    """A cache of one cluster: what is in it may be lost at any moment."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.down = False

    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        only: list[int] | None = None,
    ) -> list[int]:
        sizes, view = [-1] * count, memoryview(buffer).cast("B")
        if self.down:
            return sizes
        for number in range(count) if only is None else only:
            found = self.entries.get(prefix + (first + number).to_bytes(4, "little"))
            if found is not None:
                sizes[number] = len(found)
                view[number * stride : number * stride + len(found)] = found
        return sizes

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._up().get(key) for key in keys]

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> None:
        self._up().update({key: bytes(value) for key, value in dict(items).items()})

    def _up(self) -> dict[bytes, bytes]:
        if self.down:
            raise CacheUnavailable("the cache is down")
        return self.entries


@dataclass
class Process:
    """Something that can be killed. `start` makes it run; it is called again after each end."""

    name: str
    site: "Site"
    start: Callable[["Process"], None]
    alive: bool = False
    life: int = 0  # which of its lives this is: what an earlier one had planned does not happen
    files: Any = None
    disk: Any = None
    does: Any = None  # what runs in it, in this life
    ends: list[End] | None = None
    stalled_until_s: float = 0.0  # its disk hangs for so long
    stalls: int = 0  # that have met nothing yet

    def run(self) -> None:
        self.alive, self.life, self.ends = True, self.life + 1, []
        self.disk = self.site.disk.process()
        world = self.site.world
        seed = world.random.randrange(1 << 30)
        self.files = PosixFiles(
            "/root", disk=self.disk, clock=self.site.clock, randomness=SeededRandomness(seed), owner=self.name
        )
        self.start(self)

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Unless it has died by then."""
        life = self.life
        self.site.world.time.after(delay_s, lambda: act() if self.alive and self.life == life else None)

    def kill(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self.disk.kill()
        for end in self.ends or []:
            end.close()

    def dial(self, other: "Process") -> End | None:
        """A line to another process, if it lives."""
        if not other.alive:
            return None
        near, far = self.site.world.network.connect(self.site.name, other.site.name)
        assert self.ends is not None
        assert other.ends is not None
        self.ends.append(near)
        other.ends.append(far)
        other.site.world.accept(other, far)
        return near


class Site:
    """A cluster: a disk, a clock, a cache, and its processes."""

    def __init__(self, world: "World", name: str, number: int) -> None:
        self.world, self.name = world, name
        self.disk = SimulatedDisk(seed=world.random.randrange(1 << 30))
        self.clock = VirtualClock(world.time)
        self.jumped = 0  # jumps that have met nothing yet
        self.layers = Layers(Cell(), Cell())
        self.writers = [Process(f"{name}/writer-{i}", self, lambda process: None) for i in range(2)]
        self.readers = [Process(f"{name}/reader-{i}", self, Reader) for i in range(2)]
        self.schedulers = [Process(f"{name}/scheduler-{i}", self, Scheduler) for i in range(2)]
        self.processes = [*self.writers, *self.readers, self.schedulers[0]]
        self.consumer = Consumer(self, layered=number % 2 == 1)


class World:
    """Clusters a … ; the stream is produced in a. `trace` keeps what happened, for a person to read."""

    def __init__(self, seed: int, clusters: int = 4) -> None:
        self.random, self.time = Random(seed), VirtualTime()
        self.network = VirtualNetwork(self.time, Random(seed + 1))
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()  # of problems, by kind
        self.tried: Counter[str] = Counter()  # faults, by kind …
        self.effective: Counter[str] = Counter()  # … and those that met something
        self.epoch = 1
        self.sites = {name: Site(self, name, number) for number, name in enumerate("abcdef"[:clusters])}
        self.origin = self.sites["a"]
        self.generation = 1  # how often the stream was made
        self.acked = [0] * SHARDS
        self.made = 0  # messages of all of them
        self.tree = self.random_tree()
        self.making = True
        self.producer = Process("a/producer", self.origin, Producing)
        for process in self.everybody():
            process.run()
        for site in self.sites.values():
            site.consumer.begin()

    def everybody(self) -> list[Process]:
        return [self.producer, *(process for site in self.sites.values() for process in site.processes)]

    def say(self, what: str) -> None:
        self.trace.append(f"{self.time.now_s:8.3f} {what}")

    def random_tree(self) -> CopyTree:
        names = list(self.sites)[1:]
        self.random.shuffle(names)
        inside, hops = ["a"], []
        for name in names:
            hops.append(Hop(upstream=self.random.choice(inside), downstream=name))
            inside.append(name)
        return CopyTree(stream=STREAM, source="a", hops=tuple(hops))

    def replant(self) -> None:
        self.tree, self.epoch = self.random_tree(), self.epoch + 1
        self.say(f"tree {self.epoch}: " + ", ".join(f"{hop.upstream}>{hop.downstream}" for hop in self.tree.hops))

    def accept(self, process: Process, end: End) -> None:
        if "writer" in process.name:
            end.on_message = lambda message: Writing(process, end, message)
        else:
            scheduler = process.site.world.running.get(process.name)
            if scheduler is not None:
                scheduler.accept(end)

    @property
    def running(self) -> dict[str, "Scheduler"]:
        return Scheduler.running.setdefault(id(self), {})


# ---- producing


class Producing:
    """Numbered messages in each shard; a number is durable before the next flush begins."""

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.site.world
        self._files: dict[int, tuple[SegmentLengths, ChunkedFile, ChunkedFile]] = {}
        self._told: dict[int, ShardLengths] = {}
        if read_settings(process.files, STREAM) is None:
            process.files.make_folder(f"streams/{STREAM}")
            settings = settings_of(self._world.generation)
            process.files.publish(f"streams/{STREAM}/stream.json", settings, replace=False)
        self._generation = self._world.generation
        self._incarnation = f"{self._generation:016x}"
        try:
            logs = {
                shard: ShardLog(process.files, process.site.clock, STREAM, shard, CONFIG, on_append=self._shadow)
                for shard in range(SHARDS)
            }
        except TailraceError as problem:
            raise AssertionError(f"a producer cannot start: {problem}") from problem
        self._numbers = [logs[shard]._number for shard in range(SHARDS)]
        self._producer = Producer(
            STREAM, SHARDS, logs, ProducerConfig(buffer_s=math.inf, buffer_bytes=1 << 20), process.site.clock, 4096
        )
        if self._producer._pool is not None:
            self._producer._pool.shutdown()
            self._producer._pool = None
        self._send()

    def _send(self) -> None:
        random = self._world.random
        if self._world.making:
            for shard in range(SHARDS):
                for _ in range(random.choice([0, 1, 1, 3, 10])):
                    value = message(self._generation, shard, self._numbers[shard])
                    self._producer.send_many([value], shard=shard)
                    self._numbers[shard] += 1
            self._producer.flush()
            for shard in range(SHARDS):
                self._world.made += max(0, self._numbers[shard] - self._world.acked[shard])
                self._world.acked[shard] = max(self._world.acked[shard], self._numbers[shard])
        self._process.after(random.choice([0.01, 0.05, 0.2]), self._send)

    def _shadow(self, one: Any) -> None:
        """What the producer's shadow does, without its thread."""
        layers, segment = self._process.site.layers, one.segment
        data, entries = memoryview(one.packed.data).cast("B"), memoryview(one.packed.entries).cast("B")
        chunks: dict[bytes, Buffer] = {}
        found = self._files.get(one.shard)
        told = self._told.get(one.shard, ShardLengths())
        if found is None or found[0].segment != segment:
            size = CONFIG.chunk_bytes or chunk_size_for(len(data))
            files = [
                ChunkedFile(file_key(self._incarnation, one.shard, name, size), size)
                for name in (segment.data_name, segment.index_name)
            ]
            found = SegmentLengths(segment, size, size), files[0], files[1]
            told = told.begin(found[0])
            self._world.effective["clock jump"] += self._process.site.jumped  # clocks name files
            self._process.site.jumped = 0
            chunks.update(found[2].append(memoryview(one.header)))
        chunks.update(found[1].append(data))
        chunks.update(found[2].append(entries))
        lengths = SegmentLengths(
            segment,
            found[0].data_chunk_bytes,
            found[0].index_chunk_bytes,
            found[1].length,
            found[2].length,
            one.data_length,
            one.index_length,
        )
        self._files[one.shard] = lengths, found[1], found[2]
        self._told[one.shard] = told = told.with_newest(lengths)
        try:
            layers.data.set_many(chunks)
            layers.lengths.set_many({lengths_key(self._incarnation, one.shard): told.encode()})
        except TailraceError:
            pass


def message(generation: int, shard: int, number: int) -> bytes:
    return b"%d/%d/%d " % (generation, shard, number) + b"." * (number * 7 % 90)


def number_of(value: bytes) -> int:
    return int(value.split(b" ")[0].split(b"/")[2])


# ---- writers


class Writing:
    """One call at a writer."""

    def __init__(self, process: Process, end: End, opening: Opening) -> None:
        self._process, self._end = process, end
        site, self._world = process.site, process.site.world
        self._waiting: list[Batch] = []
        self._busy = False
        end.on_message, end.on_closed = self._receive, self._close
        try:
            before = read_settings(process.files, STREAM)
            settings = StreamSettings.parse(opening.settings, STREAM)
            settings = adopt(process.files, STREAM, opening.origin, settings)
            if before is not None and before.incarnation != settings.incarnation:
                world = self._world
                assert generation_of(settings.incarnation) > generation_of(before.incarnation)
                world.effective["re-creation"] += 1
                world.counts["made anew"] += 1
                world.say(f"{process.name}: {before.incarnation} becomes {settings.incarnation}, by {opening.reader}")
            self._target: DurableTarget | CacheTarget
            if opening.operation.storage == "durable":
                self._target = DurableTarget(
                    process.files, opening, incarnation=settings.incarnation, window_bytes=WINDOW_BYTES
                )
                self._begun(self._target.begin())
            else:
                holder = self._world.random.randbytes(16)
                self._target = CacheTarget(
                    process.files, opening, settings, site.layers, site.clock, holder, pause=self._cannot_wait
                )
                self._lock()
        except TailraceError as problem:
            self._refuse(problem)

    def _cannot_wait(self, pause_s: float) -> None:
        raise _Later

    def _lock(self) -> None:
        try:
            self._begun(self._target.begin())
        except _Later:
            self._process.after(0.02, self._lock)
        except TailraceError as problem:
            self._refuse(problem)

    def _begun(self, standing: Standing) -> None:
        self._end.send(_granting(standing))

    def _receive(self, batch: Batch) -> None:
        now_s = self._world.time.now_s
        hangs_s = max(0.0, self._process.stalled_until_s - now_s)
        self._waiting.append(batch)
        if not hangs_s and not self._take():
            return
        if not self._busy:
            self._busy = True
            if hangs_s > SILENT_S and self._process.stalls:  # so long that it is given up, and wakes as a ghost
                self._process.stalls -= 1
                self._world.effective["stall"] += 1
            self._process.after(hangs_s + self._world.random.uniform(0.0005, 0.01), self._work)

    def _take(self) -> bool:
        waiting, self._waiting = self._waiting, []
        try:
            for batch in waiting:
                self._target.take(batch)
        except TailraceError as problem:
            self._refuse(problem)
            return False
        return True

    def _work(self) -> None:
        self._busy = False
        if self._end.closed or not self._take():
            return
        try:
            self._end.send(_granting(self._target.settle()))
        except TailraceError as problem:
            self._refuse(problem)

    def _refuse(self, problem: TailraceError) -> None:
        self._world.counts[type(problem).__name__] += 1
        self._end.send(problem)
        self._end.close()
        self._close()

    def _close(self) -> None:
        if self._process.alive and hasattr(self, "_target"):
            self._target.close()


class _Later(Exception):
    """A lock is waited for: come again."""


def _granting(standing: Standing) -> Standing:
    from dataclasses import replace

    return replace(standing, window_bytes=WINDOW_BYTES)


# ---- readers


class Copying:
    """One operation at a reader, as `tailrace.copytree.copying` does it with threads."""

    def __init__(self, reader: "Reader", order: Order, turn: int = 0) -> None:
        self.reader, self.order = reader, order
        self.stopped = False
        self.state = "starting"
        self._turn = self.writer_turn = turn  # which writer is next, and which was last
        self._open()

    def _open(self) -> None:
        process = self.reader.process
        if self.stopped:
            return
        self._window, self._begun, self._beat_s = Window(), False, 0.0
        self._heard_s = process.site.world.time.now_s
        operation = self.order.operation
        writer = process.site.world.sites[operation.target].writers[self._turn % 2]
        self.writer_turn = self._turn
        self._turn += 1
        self._end = process.dial(writer)
        if self._end is None:
            self._again()
            return
        settings = read_settings(process.files, STREAM)
        if settings is None:
            self._end.close()
            self._again()
            return
        layers = process.site.layers
        self._source: DurableSource | CacheSource
        if operation.storage == "durable":
            self._source = DurableSource(
                process.files, process.site.clock, operation, settings.incarnation, piece_bytes=700
            )
        else:
            self._source = CacheSource(
                process.files,
                operation,
                settings.incarnation,
                lambda: layers,
                piece_bytes=700,
                behind_bytes_max=8192,
                clock=process.site.clock,
            )
        self._end.on_message, self._end.on_closed = self._hear, self._lost
        self._end.send(
            Opening(
                operation=operation,
                source=process.site.name,
                origin=self.order.origin,
                settings=settings.raw,
                epoch=self.order.epoch,
                reader=process.name,
            )
        )
        self._look(self._end)

    def stop(self) -> None:
        self.stopped = True
        if self._end is not None:
            self._end.close()

    def _again(self) -> None:
        if not self.stopped:
            self.state = "failed"
            self.reader.process.after(self.reader.process.site.world.random.uniform(0.02, 0.5), self._open)

    def _hear(self, answer: Standing | TailraceError) -> None:
        self._heard_s = self.reader.process.site.world.time.now_s
        if isinstance(answer, Superseded):
            self.state = "superseded"
            assert self._end is not None
            self._end.close()
            self.reader.process.after(BACK_S * self.reader.process.site.world.random.uniform(1, 3), self._come_back)
        elif isinstance(answer, TailraceError):
            assert self._end is not None
            self._end.close()
            self._lost()
        else:
            if not self._begun:
                self._begun, self.state = True, "running"
                self._source.begin(answer)
            assert self._window.taken(answer.taken_bytes, answer.window_bytes, self._heard_s)
            self._send()

    def _come_back(self) -> None:
        if not self.stopped and self.state == "superseded":
            self.state = "starting"  # or it would not try again when this try is lost, too
            self._open()

    def _lost(self) -> None:
        if self.state != "superseded":
            self._again()

    def _look(self, end: End) -> None:
        """Now and then, and when the writer has fallen silent."""
        if self.stopped or end.closed:
            return
        now_s = self.reader.process.site.world.time.now_s
        if now_s > self._heard_s + SILENT_S:
            end.close()
            self._lost()
            return
        self._send()
        self.reader.process.after(LOOK_S, lambda: self._look(end))

    def _send(self) -> None:
        assert self._end is not None
        now_s = self.reader.process.site.world.time.now_s
        while self._begun and not self._end.closed and self._window.room_bytes:
            try:
                batch = self._source.next_batch(self._window.room_bytes)
            except TailraceError:
                self._end.close()
                self._lost()
                return
            if batch is None:
                if now_s < self._beat_s + BEAT_S:
                    return
                batch = self._source.beat()
            self._beat_s = now_s
            self._window.sent(batch.size, now_s)
            self._end.send(batch)


class Reader:
    def __init__(self, process: Process) -> None:
        self.process = process
        process.does = self
        self.copyings: dict[Operation, Copying] = {}
        self._orders: dict[str, dict[Operation, Order]] = {}
        self._lines: dict[str, End] = {}
        self._find_schedulers()

    def _find_schedulers(self) -> None:
        for scheduler in self.process.site.schedulers:
            line = self._lines.get(scheduler.name)
            if (line is None or line.closed) and (end := self.process.dial(scheduler)) is not None:
                self._lines[scheduler.name] = end
                end.on_message = lambda orders, name=scheduler.name: self._obey(name, orders)  # type: ignore[misc]
        for line in self._lines.values():
            line.send((self.process.name, self._report()))
        self.process.after(0.2, self._find_schedulers)

    def _report(self) -> list[Running]:
        return [
            Running(operation=operation, state=copying.state)  # type: ignore[arg-type]
            for operation, copying in self.copyings.items()
        ]

    def _obey(self, scheduler: str, orders: tuple[Order, ...]) -> None:
        mine = {order.operation: order for order in orders}
        for other, theirs in self._orders.items():
            if other != scheduler and (line := self._lines.get(other)) is not None and line.closed:
                for operation in mine:
                    theirs.pop(operation, None)
        self._orders[scheduler] = mine
        wanted = {one: order for theirs in self._orders.values() for one, order in theirs.items()}
        for operation in list(self.copyings):
            if wanted.get(operation) != self.copyings[operation].order:
                self.copyings.pop(operation).stop()
        for operation, order in wanted.items():
            if operation not in self.copyings:
                self.copyings[operation] = Copying(self, order)


class Scheduler:
    """Both schedulers of a cluster, if both run, see to all operations: they know nothing of each other."""

    running: dict[int, dict[str, "Scheduler"]] = {}  # noqa: RUF012

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.site.world
        self._schedule = Schedule()
        self._lines: dict[str, End] = {}
        self._world.running[process.name] = self
        self._tick()

    def accept(self, end: End) -> None:
        end.on_message = lambda report: self._hear(end, *report)

    def _hear(self, end: End, reader: str, running: list[Running]) -> None:
        if self._lines.get(reader) is not end:
            if reader in self._lines:
                self._handle(Left(reader))
            self._lines[reader] = end
            end.on_closed = lambda: self._left(reader, end)
            self._handle(Joined(reader))
        self._handle(Reported(reader, running))

    def _left(self, reader: str, end: End) -> None:
        if self._lines.get(reader) is end:
            del self._lines[reader]
            self._handle(Left(reader))

    def _tick(self) -> None:
        tree, here = self._world.tree, self._process.site.name
        routes = [
            Route(stream=STREAM, origin="a", target=target, writers=("w0", "w1"), epoch=self._world.epoch)
            for target in tree.downstream(here)
        ]
        self._handle(Wanted(orders_for(routes, lambda stream: read_settings(self._process.files, stream))))
        self._handle(Tick())
        self._process.after(0.25, self._tick)

    def _handle(self, event: Any) -> None:
        for tell in self._schedule.handle(event, self._world.time.now_s):
            if (line := self._lines.get(tell.reader)) is not None:
                line.send(tell.orders)


# ---- consuming


class Consumer:
    """Follows all shards of its cluster, through the files alone or through both layers, and checks each message. What
    retention took before it came is skipped; when the stream is made anew, it begins again."""

    def __init__(self, site: Site, layered: bool) -> None:
        self._site, self._layered = site, layered
        self.generation = 0
        self.seen, self.positions = [0] * SHARDS, [0] * SHARDS
        self._skipping: set[int] = set()  # shards of which the next message may be a later one
        self._process = Process(f"{site.name}/consumer", site, self._start)
        self._tails: dict[int, ShardTail] = {}

    def begin(self) -> None:
        self._process.run()

    def restart(self) -> None:
        self._process.kill()
        self._process.run()

    def _start(self, process: Process) -> None:
        self._begin_again()  # a position counts in the stream it was noted of, as a checkpoint does
        self._tails = {}
        self._board = Board(lambda: None, self._site.clock)
        process.after(0.0, self._poll)

    def _poll(self) -> None:
        self._board.begin_round()
        for shard in range(SHARDS):
            try:
                self._take(shard)
            except PositionRetired as gone:
                self._skip(gone)
            except StreamMissing:
                assert self._begin_again()
        self._process.after(POLL_S, self._poll)

    def _begin_again(self) -> bool:
        """Whether the stream is another than before."""
        settings = read_settings(self._process.files, STREAM)
        generation = 0 if settings is None else generation_of(settings.incarnation)
        if generation == self.generation:
            return False
        self._site.world.say(f"{self._process.name} reads stream {generation} from now on")
        self.generation, self._tails, self._skipping = generation, {}, set()
        self.seen, self.positions = [0] * SHARDS, [0] * SHARDS
        return True

    def _skip(self, gone: PositionRetired) -> None:
        shard = gone.shard
        self.positions[shard] = gone.retained_start
        self._tails.pop(shard, None)
        self._skipping.add(shard)
        self._site.world.say(f"{self._process.name} skips to {gone.retained_start} in shard {shard}")

    def _take(self, shard: int) -> None:
        if not self.generation and not self._begin_again():
            return
        while (batch := self._tail(shard).poll(2000)) is not None:
            for found in batch:
                if shard in self._skipping:
                    self._skipping.remove(shard)
                    assert number_of(found.value) >= self.seen[shard]
                    self.seen[shard] = number_of(found.value)
                expected = message(self.generation, shard, self.seen[shard])
                assert found.value == expected, f"{self._process.name}: {found.value!r} instead of {expected!r}"
                self.seen[shard] += 1
            self.positions[shard] = self._tails[shard].position

    def _tail(self, shard: int) -> ShardTail:
        if shard not in self._tails:
            layers, incarnation = self._site.layers, f"{self.generation:016x}"
            followed = self._board.follow(STREAM, shard, incarnation, lambda: layers) if self._layered else None
            self._tails[shard] = ShardTail(
                self._process.files,
                self._site.clock,
                STREAM,
                shard,
                self.positions[shard],
                followed=followed,
                incarnation=incarnation,
            )
        return self._tails[shard]


# ---- faults


class Faults:
    """A schedule of faults from a seed. Each is undone after a while; in the end all are. It is counted which of them
    met anything: a kind that never does tests nothing."""

    def __init__(self, world: World, until_s: float) -> None:
        self._world, self._until_s = world, until_s
        self._next()

    def _next(self) -> None:
        world = self._world
        if world.time.now_s >= self._until_s:
            return
        kind = world.random.choice(KINDS)
        world.tried[kind] += 1
        getattr(self, f"_{kind.replace(' ', '_').replace('-', '_')}")()
        world.time.after(world.random.expovariate(FAULTS_PER_S), self._next)

    def _some_site(self) -> Site:
        return self._world.random.choice(list(self._world.sites.values()))

    def _some_way(self) -> tuple[str, str]:
        one, other = self._world.random.sample(list(self._world.sites), 2)
        return one, other

    def _later(self, act: Callable[[], None], mean_s: float = 1.0) -> None:
        self._world.time.after(self._world.random.expovariate(1 / mean_s), act)

    def _kill(self) -> None:
        victim = self._world.random.choice(self._world.everybody())
        if victim.alive:
            self._world.say(f"kill {victim.name}")
            self._world.effective["kill"] += victim is self._world.producer or any(
                not end.closed for end in victim.ends or []
            )
            victim.kill()
            self._later(lambda: None if victim.alive else victim.run())

    def _crash(self) -> None:
        """The machine of a cluster goes down: its cache is gone, and what was not synced may be."""
        site, world = self._some_site(), self._world
        world.say(f"crash {site.name}")
        mine = [process for process in world.everybody() if process.site is site]
        for process in [*mine, site.schedulers[1], site.consumer._process]:
            process.kill()
        before = disk_content(site)
        site.disk.crash(world.random.choice(["nothing", "everything", "random"]))
        world.effective["crash"] += disk_content(site) != before
        site.layers.data.entries.clear()  # type: ignore[attr-defined]
        site.layers.lengths.entries.clear()  # type: ignore[attr-defined]

        def back() -> None:
            for process in [*mine, site.consumer._process]:
                if not process.alive:
                    process.run()

        self._later(back)

    def _cut(self) -> None:
        self._part("cut", both=True)

    def _one_way_cut(self) -> None:
        self._part("one-way cut", both=False)

    def _part(self, kind: str, *, both: bool) -> None:
        (one, other), network = self._some_way(), self._world.network
        self._world.say(f"{kind} {one} {other}")
        held = network.held
        network.cut(one, other, both=both)

        def heal() -> None:
            self._world.effective[kind] += network.held > held
            network.heal_way(one, other)

        self._later(heal, 3.0)

    def _slow_link(self) -> None:
        (one, other), network = self._some_way(), self._world.network
        self._world.say(f"slow {one} {other}")
        slowed = network.slowed
        network.slow(one, other, self._world.random.choice([5, 30, 150]))

        def heal() -> None:
            self._world.effective["slow link"] += network.slowed > slowed
            network.heal_way(one, other)

        self._later(heal, 3.0)

    def _stall(self) -> None:
        """The disk of a writer hangs, and what it was given comes down long after others have taken over."""
        victim = self._world.random.choice(self._some_site().writers)
        seconds = self._world.random.choice([1.0, 5.0, 9.0])
        self._world.say(f"{victim.name} hangs for {seconds:g} s")
        victim.stalled_until_s, victim.stalls = self._world.time.now_s + seconds, 1

    def _lost_cache(self) -> None:
        site, what = self._some_site(), self._world.random.choice(["data", "lengths", "both", "some", "down"])
        self._world.say(f"lose {what} of the cache of {site.name}")
        data: Any = site.layers.data
        lengths: Any = site.layers.lengths
        before = len(data.entries) + len(lengths.entries)
        if what in ("data", "both"):
            data.entries.clear()
        if what in ("lengths", "both"):
            lengths.entries.clear()
        if what == "some":
            for key in list(data.entries):
                if self._world.random.random() < 0.5:
                    del data.entries[key]
        self._world.effective["lost cache"] += what == "down" or len(data.entries) + len(lengths.entries) < before
        if what == "down":
            data.down = lengths.down = True

            def up() -> None:
                data.down = lengths.down = False

            self._later(up)

    def _dueling_schedulers(self) -> None:
        second, world = self._some_site().schedulers[1], self._world
        if not second.alive:
            world.say(f"a second scheduler {second.name}")
            second.run()
            superseded = world.counts["Superseded"]

            def end() -> None:
                world.effective["dueling schedulers"] += world.counts["Superseded"] > superseded
                second.kill()

            self._later(end, 4.0)

    def _clock_jump(self) -> None:
        site = self._world.origin if self._world.random.random() < 0.5 else self._some_site()
        seconds = self._world.random.choice([-3600.0, -5.0, 5.0, 3600.0])
        self._world.say(f"the clock of {site.name} jumps by {seconds:g} s")
        site.clock.jump_wall(seconds)
        site.jumped += 1

    def _retention(self) -> None:
        """What is kept may differ from cluster to cluster."""
        site, policy = self._some_site(), Retention(size_bytes=self._world.random.choice([1000, 4000, 15000]))
        files = PosixFiles("/root", disk=site.disk.process(), clock=site.clock)
        gone = [collect(files, STREAM, shard, policy, site.clock.time_us(), []).segments for shard in range(SHARDS)]
        self._world.say(f"retention in {site.name} takes {gone}")
        self._world.effective["retention"] += any(gone)

    def _re_creation(self) -> None:
        """The stream is deleted where it is produced, and made anew; whoever produces it begins again."""
        world = self._world
        files = PosixFiles("/root", disk=world.origin.disk.process(), clock=world.origin.clock)
        if read_settings(files, STREAM) is None:
            return
        world.producer.kill()
        files.delete_folder(f"streams/{STREAM}")
        world.generation, world.acked = world.generation + 1, [0] * SHARDS
        world.say(f"stream {world.generation}")
        self._later(lambda: None if world.producer.alive else world.producer.run())

    def _new_tree(self) -> None:
        before = set(self._world.tree.hops)
        self._world.replant()
        self._world.effective["new tree"] += set(self._world.tree.hops) != before


KINDS = (
    "kill",
    "kill",
    "crash",
    "cut",
    "one-way cut",
    "slow link",
    "stall",
    "lost cache",
    "dueling schedulers",
    "clock jump",
    "new tree",
    "new tree",
    "retention",
    "re-creation",
)


def disk_content(site: Site) -> dict[str, bytes]:
    """Everything on a cluster's disk, by path."""
    disk, found = site.disk.process(), {}
    todo = ["/"]
    while todo:
        folder = todo.pop()
        for name in disk.list(folder):
            path = f"{folder.rstrip('/')}/{name}"
            if disk.is_folder(path):
                todo.append(path)
                continue
            handle = disk.open(path, write=False)
            content = bytearray(disk.size(handle))
            disk.read_into(handle, 0, memoryview(content))
            disk.close(handle)
            found[path] = bytes(content)
    return found


# ---- one run


def files_of(site: Site, shard: int) -> dict[str, bytes]:
    """Names and bytes of all message files of a shard, as far as the next one's base says."""
    files = PosixFiles("/root", disk=site.disk.process(), clock=site.clock)
    found = {}
    folder = f"streams/{STREAM}/{shard:05d}"
    segments = segments_of(files.list(folder))
    for segment, later in zip(segments, [*segments[1:], None], strict=False):
        if later is not None and later.index_base == segment.index_base:
            continue  # it was never finished
        for track in ("data", "index"):
            with files.view(f"{folder}/{segment.name(track)}") as view:  # type: ignore[arg-type]
                length = view.length().readable_bytes
                if later is not None:
                    length = later.base(track) - segment.base(track)  # type: ignore[arg-type]
                content = bytearray(length)
                assert view.read_into(0, memoryview(content)) == length
                found[segment.name(track)] = bytes(content)  # type: ignore[arg-type]
    return found


def run(seed: int, faults_s: float = 10.0, settle_s: float = 60.0) -> World:
    """Faults for a while, then peace: in the end all clusters have the same bytes, and consumers have seen all."""
    world = World(seed, clusters=3 + seed % 3)
    try:
        _run(world, faults_s, settle_s)
    except BaseException as problem:
        problem.add_note("\n".join([f"seed {seed}:", *world.trace[-60:]]))
        raise
    finally:
        Scheduler.running.pop(id(world), None)
    return world


def _run(world: World, faults_s: float, settle_s: float) -> None:
    Faults(world, faults_s)
    world.time.run(faults_s)
    world.network.heal()
    world.time.run(world.time.now_s + 5.0)
    world.say("peace")
    world.network.heal()
    for site in world.sites.values():
        site.schedulers[1].kill()
        cells: list[Any] = [site.layers.data, site.layers.lengths]
        for cell in cells:
            cell.down = False
    for process in world.everybody():
        if not process.alive:
            process.run()
    world.time.run(world.time.now_s + 2.0)
    world.making = False
    end_s = world.time.now_s + settle_s
    while world.time.now_s < end_s and not is_settled(world):
        world.time.run(world.time.now_s + 1.0)
    kept = all_files(world)
    origin = kept["a"]
    assert min(map(len, origin)), "retention takes never all"
    for name, site in world.sites.items():
        assert generation_in(site) == site.consumer.generation == world.generation, name
        for mine, copy in zip(origin, kept[name], strict=True):
            assert copy.keys() == mine.keys(), (name, sorted(mine.keys() ^ copy.keys()))
            assert copy == mine, f"{name} has other bytes"
        assert min(seen >= acked for seen, acked in zip(site.consumer.seen, world.acked, strict=True)), (
            name,
            site.consumer.seen,
            world.acked,
        )
        assert site.consumer.seen == world.origin.consumer.seen, name


def generation_in(site: Site) -> int:
    settings = read_settings(PosixFiles("/root", disk=site.disk.process(), clock=site.clock), STREAM)
    return 0 if settings is None else generation_of(settings.incarnation)


def all_files(world: World) -> dict[str, list[dict[str, bytes]]]:
    """By cluster and shard, what lies behind the place where all of them begin."""
    found = {name: [files_of(site, shard) for shard in range(SHARDS)] for name, site in world.sites.items()}
    for shard in range(SHARDS):
        begins = [min(one[shard], default="") for one in found.values()]
        for one in found.values():
            one[shard] = {name: content for name, content in one[shard].items() if name >= max(begins)}
    return found


def is_settled(world: World) -> bool:
    seen = world.origin.consumer.seen
    if (
        any(site.consumer.generation != world.generation or site.consumer.seen != seen for site in world.sites.values())
        or min(map(int.__sub__, seen, world.acked)) < 0
    ):
        return False
    kept = all_files(world)
    return all(one == kept["a"] for one in kept.values())


def coverage(worlds: Iterable[World]) -> dict[str, tuple[int, int]]:
    """Of each kind of fault: how often it was tried, and how often it met something."""
    tried, effective = Counter[str](), Counter[str]()
    for world in worlds:
        tried += world.tried
        effective += world.effective
    return {kind: (tried[kind], effective[kind]) for kind in dict.fromkeys(KINDS)}


def main(words: Sequence[str]) -> int:
    """Seeds, or ranges of them as in 1-200; a single one tells its story."""
    seeds = [seed for word in words for seed in range(int(word.split("-")[0]), int(word.split("-")[-1]) + 1)]
    failed, ran = [], []
    for seed in seeds:
        try:
            world = run(seed)
        except Exception as problem:
            failed.append(seed)
            if len(seeds) == 1:
                raise
            print(f"seed {seed} FAILED: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
            continue
        if len(seeds) == 1:
            print("\n".join(world.trace))
            print(f"{sum(world.acked)} messages, {world.time.now_s:.0f} s of virtual time, {dict(world.counts)}")
        told = World.__new__(World)  # what is counted of it: the rest would fill the memory
        told.tried, told.effective = world.tried, world.effective
        ran.append(told)
        if len(ran) % 100 == 0:
            print(f"{len(ran)} of {len(seeds)} held so far", flush=True)
    found = coverage(ran)
    for kind, (tried, effective) in found.items():
        print(f"{kind:20} {tried:7,} times, {effective:7,} with an effect")
    holes = [kind for kind, (_, effective) in found.items() if not effective and len(ran) >= 50]
    print(f"{len(ran)} of {len(seeds)} schedules held" + (f"; failed: {failed}" if failed else ""))
    if holes:
        print(f"never had an effect, so nothing was tested: {', '.join(holes)}")
    return 1 if failed or holes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
