"""The benchmark of the copy tree, all in processes of their own on this machine.

hop        three clusters in a row, a wide area between them (a relay that delays, subtracted), a constant rate;
           followers in the first and in the last cluster say when they had each position. Caches are full before
           it begins, as they are in any world that has run for a while
pair       one reader and one writer copy a backlog; before and after it as many bytes go over a bare gRPC stream, and
           to the disk alone: a durable copy can be no faster than the slower of them
reschedule whoever works is killed, readers and then writers, again and again: the longest pause at the follower
reroute    the cluster in the middle is killed: the longest pause in the last one
peer       a hop and a backlog by Kafka with MirrorMaker 2, if it can be had
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ....config import DATA_CACHE
from ....errors import PeerFailed, TailraceError
from ....wire.raw_stream import send_raw
from ...hosts import world_folder
from ...world import open_world
from ..report import Figure, result
from ..system import process_cpu_s
from .reschedule import Pair, pauses_ms
from .world import STREAM, BenchWorld, Follower, Process, wait_for

FIGURES = (
    Figure("hop_p50_ms", "ms", "delay that one hop adds, half of the time", 5.0),
    Figure("hop_p99_ms", "ms", "… 99 % of the time", 15.0),
    Figure("hop_load_mb_per_s", "MB/s", "… at this rate"),
    Figure("pair_mb_per_s", "MB/s", "one reader and one writer, durable"),
    Figure("raw_grpc_mb_per_s", "MB/s", "a bare gRPC stream"),
    Figure("of_raw_grpc", "", "of that, the pair carries", 0.7),
    Figure("disk_mb_per_s", "MB/s", "the disk alone, synced after each 8 MiB"),
    Figure("of_slower", "", "of the slower of the two"),
    Figure("cpu_s_per_gb", "s", "CPU of reader and writer together, for each GB"),
    Figure("reschedule_ms", "ms", "longest pause when a worker is killed, half of the times", 50.0),
    Figure("reschedule_p90_ms", "ms", "… 90 % of the times"),
    Figure("reschedule_max_ms", "ms", "… every time"),
    Figure("reroute_s", "s", "pause when a cluster is lost", 2.0),
)
_MB = 1e6
_PIECE_BYTES = 1 << 20
_SYNC_BYTES = 8 << 20
_CACHE_BYTES = 64 << 20
_TICK_S = 0.01  # between flushes


AT_MOST = frozenset(
    {"hop_p50_ms", "hop_p99_ms", "reschedule_ms", "reschedule_p90_ms", "reschedule_max_ms", "reroute_s"}
)
PEER = "kafka with mirrormaker 2"


def run(
    *,
    repeats: int,
    directory: str,
    wan_s: float,
    progress: Callable[[str], None],
    quick: bool = False,
    peers_folder: str | None = None,
) -> dict[str, Any]:
    """`peers_folder`: where peers are fetched to; None: there is none to compare with."""
    runs = []
    for number in range(repeats):
        progress(f"run {number + 1} of {repeats}")
        runs.append(
            {
                **_in_folder(directory, lambda folder: hop(folder, wan_s, 1.0 if quick else 8.0, progress)),
                **_in_folder(directory, lambda folder: pair(folder, (16 if quick else 512) << 20, progress)),
                **_in_folder(directory, lambda folder: reschedule(folder, 1 if quick else 6, progress)),
                **_in_folder(directory, lambda folder: reroute(folder, progress)),
            }
        )
    settings = {"wan_ms": wan_s * 1000, "wan": "delaying relay", "directory": directory, "quick": quick}
    told = result(FIGURES, runs, settings)
    if peers_folder is not None:
        told["peers"] = {PEER: _peer(directory, peers_folder, progress, quick=quick)}
    return told


def _peer(directory: str, peers_folder: str, progress: Callable[[str], None], *, quick: bool) -> dict[str, Any]:
    """Its figures, or why there are none."""
    from .mirror import measure

    try:
        return _in_folder(
            directory,
            lambda folder: measure(
                folder,
                peers_folder,
                backlog_bytes=(16 if quick else 512) << 20,
                seconds=1.0 if quick else 8.0,
                progress=progress,
                fetch=not quick,
            ),
        )
    except TailraceError as problem:
        progress(f"{PEER} is left out: {problem}")
        return {"left_out": str(problem)}


def _in_folder(directory: str, measure: Callable[[str], dict[str, float]]) -> dict[str, float]:
    folder = tempfile.mkdtemp(prefix="tailrace-copytree-", dir=directory)
    try:
        return measure(folder)
    finally:
        for cluster in "abc":
            shutil.rmtree(world_folder(os.path.join(folder, cluster)), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


class _Pouring:
    """A producer with a constant rate, in this process."""

    def __init__(self, folder: str, bytes_per_s: float, message_bytes: int = 1024) -> None:
        self._world = open_world(folder)
        self._producer = self._world.producer(STREAM, buffer_s=float("inf"))
        self._message, self._rate = os.urandom(message_bytes), bytes_per_s
        self.sent: list[tuple[float, int]] = []  # when a flush returned, and how far it went

    def pour(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        begin_s = time.monotonic()
        done, tick = 0.0, 0
        while (now_s := time.monotonic()) < begin_s + seconds and not until():
            due = (now_s - begin_s) * self._rate
            count = max(1, round((due - done) / len(self._message)))
            self._producer.send_many([self._message] * count)
            self._producer.flush()
            done += count * len(self._message)
            self.sent.append((time.monotonic(), sum(self._producer.positions.values())))
            tick += 1
            time.sleep(max(0.0, begin_s + tick * _TICK_S - time.monotonic()))

    @property
    def position(self) -> int:
        return sum(self._producer.positions.values())

    def close(self) -> None:
        self._producer.close()
        self._world.close()


def hop(folder: str, wan_s: float, seconds: float, progress: Callable[[str], None]) -> dict[str, float]:
    progress(f"delay of a hop, {wan_s * 1000:g} ms between clusters")
    world = BenchWorld(folder, "abc", [("a", "b"), ("b", "c")], "")
    for cluster in "abc":
        with open_world(world.cluster(cluster)) as here:
            here.create_cache(DATA_CACHE, memory_bytes=_CACHE_BYTES)
    pouring = _Pouring(world.cluster("a"), 20 * _MB)
    try:
        world.node("c", "reader,writer,scheduler", delay_s=wan_s)
        world.node("b", "reader,writer,scheduler", delay_s=wan_s)
        world.node("a", "reader,writer,scheduler")
        first, last = _followers(world, pouring, ["a", "c"])
        pouring.pour(seconds / 2)  # 80 MB: caches are full
        begin = pouring.position
        pouring.pour(seconds)
        end = pouring.position
        wait_for(lambda: min(first.position(), last.position()) >= end, "the last bytes")
        _check(first, last)
        positions = range(begin, end, max(1, (end - begin) // 5000))
        added_ms = sorted((last.when(at) - first.when(at) - 2 * wan_s) / 2 * 1000 for at in positions)
        return {
            "hop_p50_ms": statistics.median(added_ms),
            "hop_p99_ms": added_ms[len(added_ms) * 99 // 100],
            "hop_load_mb_per_s": (end - begin) / seconds / _MB,
        }
    finally:
        pouring.close()
        world.close()


def pair(folder: str, backlog_bytes: int, progress: Callable[[str], None]) -> dict[str, float]:
    progress(f"one pair with a backlog of {backlog_bytes >> 20} MiB, and a bare gRPC stream")
    raw, disk = _raw(folder), _disk(folder, backlog_bytes)
    world = BenchWorld(folder, "ab", [("a", "b")], "cached = false\nfile_bytes = 268435456")
    with open_world(world.cluster("a")) as here, here.producer(STREAM, buffer_bytes=8 << 20) as producer:
        message = os.urandom(16 << 10)
        for _ in range(backlog_bytes // (64 * len(message))):
            producer.send_many([message] * 64)
    try:
        writer = world.node("b", "writer")
        reader = world.node("a", "reader,scheduler")

        def copied() -> int:
            data = os.path.join(world.cluster("b"), "streams", STREAM, "00000")
            if not os.path.isdir(data):
                return 0
            return sum(entry.stat().st_size for entry in os.scandir(data) if entry.name.endswith(".data"))

        begin_s = wait_for(lambda: copied() > 0, "the copy to begin")
        cpu_s, already = process_cpu_s(writer.pid) + process_cpu_s(reader.pid), copied()
        end_s = wait_for(lambda: copied() >= backlog_bytes, "the backlog to be copied", 300.0)
        cpu_s = process_cpu_s(writer.pid) + process_cpu_s(reader.pid) - cpu_s
        rate = (backlog_bytes - already) / (end_s - begin_s)
        raw = statistics.mean([raw, _raw(folder)])
        disk = statistics.mean([disk, _disk(folder, backlog_bytes)])
        return {
            "pair_mb_per_s": rate / _MB,
            "raw_grpc_mb_per_s": raw / _MB,
            "of_raw_grpc": rate / raw,
            "disk_mb_per_s": disk / _MB,
            "of_slower": rate / min(raw, disk),
            "cpu_s_per_gb": cpu_s / ((backlog_bytes - already) / 1e9),
        }
    finally:
        world.close()


def _raw(folder: str, seconds: float = 2.0) -> float:
    os.chmod(folder, 0o700)
    address = f"unix:{folder}/raw"
    server = Process(address, "8", module="tailrace.node.bench.copytree.raw_server")
    try:
        return send_raw(address, _PIECE_BYTES, seconds)
    finally:
        server.close()


def _disk(folder: str, size: int) -> float:
    """Bytes per second."""
    path, content = os.path.join(folder, "disk"), os.urandom(_SYNC_BYTES)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        begin_s = time.monotonic()
        for at in range(0, size, _SYNC_BYTES):
            os.pwrite(file, content, at)
            os.fdatasync(file)
            if at > 2 * _SYNC_BYTES:  # as a writer does, or memory would be ever fresh
                os.posix_fadvise(file, 0, at - 2 * _SYNC_BYTES, os.POSIX_FADV_DONTNEED)
        return size / (time.monotonic() - begin_s)
    finally:
        os.close(file)
        os.unlink(path)


def reschedule(folder: str, kills: int, progress: Callable[[str], None]) -> dict[str, float]:
    progress(f"{kills} readers and {kills} writers are killed")
    world = BenchWorld(folder, "ab", [("a", "b")], "")
    pouring = _Pouring(world.cluster("a"), 1 * _MB, 500)
    try:
        world.node("b", "cache")  # or it would die with a writer
        writers = Pair(world, "b", "writer", (0, 1))
        world.node("a", "scheduler")
        readers = Pair(world, "a", "reader", (1, 2))
        (follower,) = _followers(world, pouring, ["b"])
        pouring.pour(1.0)
        found = {
            role: pauses_ms(pair, follower, pouring.pour, kills)
            for role, pair in (("reader", readers), ("writer", writers))
        }
        _check(follower)
        for role, pauses in found.items():
            progress(f"  a {role} killed, pauses in ms: " + " ".join(f"{pause:.0f}" for pause in pauses))
        together = sorted(pause for pauses in found.values() for pause in pauses)
        return {
            "reschedule_ms": max(map(statistics.median, found.values())),
            "reschedule_p90_ms": together[len(together) * 9 // 10],
            "reschedule_max_ms": together[-1],
        }
    finally:
        pouring.close()
        world.close()


def reroute(folder: str, progress: Callable[[str], None]) -> dict[str, float]:
    progress("the cluster in the middle is lost")
    world = BenchWorld(folder, "abc", [("a", "b"), ("b", "c")], "")
    pouring = _Pouring(world.cluster("a"), 1 * _MB, 500)
    try:
        world.node("c", "reader,writer,scheduler")
        middle = world.node("b", "reader,writer,scheduler")
        world.node("a", "reader,writer,scheduler")
        (follower,) = _followers(world, pouring, ["c"])
        pouring.pour(1.0)
        begin = len(follower.times_s)
        middle.kill()
        killed = pouring.position
        pouring.pour(20.0, until=lambda: follower.position() > killed + 50_000)
        times_s = follower.times_s[max(0, begin - 1) :]
        _check(follower)
        return {"reroute_s": max(b - a for a, b in pairwise(times_s))}
    finally:
        pouring.close()
        world.close()


def _followers(world: BenchWorld, pouring: _Pouring, clusters: list[str]) -> list[Follower]:
    """Followers that are at the head."""
    pouring.pour(0.05)
    for cluster in clusters:
        shard = os.path.join(world.cluster(cluster), "streams", STREAM, "00000")
        wait_for(lambda shard=shard: os.path.isdir(shard) and len(os.listdir(shard)) > 2, f"the stream in {cluster}")  # type: ignore[misc]
    followers = [world.follower(cluster) for cluster in clusters]
    pouring.pour(30.0, until=lambda: all(one.position() for one in followers))
    for one in followers:
        wait_for(lambda one=one: one.position() >= pouring.position, "a follower to be at the head")  # type: ignore[misc]
    return followers


def _check(*followers: Follower) -> None:
    for one in followers:
        if one.problem:
            raise PeerFailed(f"a follower ended: {one.problem}")
