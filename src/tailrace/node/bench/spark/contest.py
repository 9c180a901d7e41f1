"""Source and sink beside Spark's own readers and writers and its Kafka source: the same bytes, one session, one run.

What is compared: a scan of all rows into Spark's `noop` sink, which takes every row and drops it; and a write of rows
that come from a text file. All systems take turns within a round, in changing order. The first rounds are thrown away:
the JVM compiles while it runs. Of the others the median counts, and ratios are made within a round.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

from ...world import open_world
from ..fanout.peers.install import Installer
from ..peers.server import PeerFailed, PeerMissing
from .kafka import Broker, connector_jars

SIZES = (100, 1000)  # bytes of a message
SHARDS = 4
_DISTINCT_BYTES = 20_000_000
_WORDS = [b"click", b"query", b"campaign", b"budget", b"impression", b"conversion", b"bid", b"cost"]
Progress = Callable[[str], None]
Act = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured: who does what with messages of which size."""

    who: str
    what: str  # all columns, value only, or write
    message_bytes: int

    @property
    def name(self) -> str:
        return f"{self.who} {self.what} {self.message_bytes} B"


class Contest:
    def __init__(self, folder: str, installer: Installer, stack: ExitStack, progress: Progress, total: int) -> None:
        self._folder, self._progress, self._order = folder, progress, Random(0)
        self.missing: list[str] = []
        jars, broker = self._kafka(installer, stack)
        from ....pipeline.spark import session
        from ....pipeline.spark.ceiling import CeilingDataSource

        progress("starting Spark")
        settings = {"spark.jars": ",".join(jars)} if jars else {}
        self.spark: Any = session("bench", memory="3g", settings=settings)
        self.spark.dataSource.register(CeilingDataSource)
        self.counts: dict[int, int] = {}
        self.acts: dict[Cell, Act] = {}
        for size in SIZES:
            self._fill(size, messages_of(size, total // size), broker)
        self._written = 0

    def round(self, *, slow: bool = True) -> dict[Cell, float]:
        """Seconds by cell. Scans first, in an order that changes from round to round, since what runs before leaves its
        traces; then writes, and what they wrote is on disk before the next round. `slow`: Kafka and writes, too."""
        seconds: dict[Cell, float] = {}
        scans = [cell for cell in self.acts if cell.what != "write" and (slow or cell.who != "kafka")]
        writes = [cell for cell in self.acts if cell.what == "write" and slow]
        self._order.shuffle(scans)
        self._order.shuffle(writes)
        for cell in scans + writes:
            begun_s = time.perf_counter()
            self.acts[cell]()
            seconds[cell] = time.perf_counter() - begun_s
            self._progress(f"{cell.name}: {self.counts[cell.message_bytes] / seconds[cell]:,.0f} rows/s")
        os.sync()
        return seconds

    def _kafka(self, installer: Installer, stack: ExitStack) -> tuple[list[str], Broker | None]:
        try:
            self._progress("starting kafka")
            jars = connector_jars(installer)
            broker = Broker(self._folder, installer)
        except (PeerMissing, PeerFailed) as seen:
            self.missing.append(f"kafka: {seen}")
            self._progress(self.missing[-1])
            return [], None
        stack.callback(broker.close)
        return jars, broker

    def _fill(self, size: int, messages: Sequence[bytes], broker: Broker | None) -> None:
        """The same messages everywhere."""
        self._progress(f"laying out {len(messages)} messages of {size} B")
        self.counts[size] = len(messages)
        world, stream = os.path.join(self._folder, "world"), f"messages-{size}"
        with open_world(world) as opened:
            opened.create_stream(stream, shards=SHARDS, cached=False)
            with opened.producer(stream) as producer:
                for place in range(SHARDS):
                    producer.send_many(list(messages[place::SHARDS]), shard=place)
        text = os.path.join(self._folder, f"text-{size}")
        os.makedirs(text)
        for place in range(SHARDS):
            with open(os.path.join(text, f"part-{place}.txt"), "wb") as file:
                file.write(b"\n".join(messages[place::SHARDS]) + b"\n")

        def ours(**options: str) -> Any:
            reading = self.spark.read.format("tailrace").option("world", world).option("stream", stream)
            return reading.options(**options).load()

        def ceiling(**options: str) -> Any:
            """What a source in Python can give at most: see pipeline/spark/ceiling.py."""
            sending = self.spark.read.format("tailrace_ceiling").option("rows", len(messages))
            tasks = len(os.sched_getaffinity(0))  # as many as the source makes of it
            return sending.option("partitions", tasks).option("valueBytes", size).options(**options).load()

        parquet = os.path.join(self._folder, f"parquet-{size}")
        ours().repartition(SHARDS).write.option("compression", "zstd").parquet(parquet)
        scans: dict[tuple[str, str], Callable[[], Any]] = {
            ("tailrace", "all columns"): lambda: ours(),
            ("tailrace", "value only"): lambda: ours(columns="value"),
            ("parquet", "all columns"): lambda: self.spark.read.parquet(parquet),
            ("parquet", "value only"): lambda: self.spark.read.parquet(parquet).select("value"),
            ("text", "value only"): lambda: self.spark.read.text(text),
            ("ceiling", "all columns"): lambda: ceiling(),
            ("ceiling", "value only"): lambda: ceiling(columns="value"),
        }
        if broker is not None:
            broker.fill(stream, messages, SHARDS)
            reading = self.spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
            reading = reading.option("subscribe", stream).option("minPartitions", str(SHARDS))
            scans["kafka", "all columns"] = lambda: reading.load()
            scans["kafka", "value only"] = lambda: reading.load().select("value")
        for (who, what), frame in scans.items():
            self.acts[Cell(who, what, size)] = lambda frame=frame: _drop(frame())  # type: ignore[misc]

        def rows() -> Any:
            return self.spark.read.text(text)

        def write_ours() -> None:
            name = self._new(f"written-{size}")
            writing = rows().write.format("tailrace").option("world", world).option("stream", name)
            writing.option("shards", str(SHARDS)).mode("append").save()
            with open_world(world) as opened:
                opened.delete_stream(name)

        def write_parquet() -> None:
            place = os.path.join(self._folder, self._new(f"written-{size}"))
            rows().write.option("compression", "zstd").parquet(place)
            shutil.rmtree(place)

        self.acts[Cell("tailrace", "write", size)] = write_ours
        self.acts[Cell("parquet", "write", size)] = write_parquet

    def _new(self, name: str) -> str:
        self._written += 1
        return f"{name}-{self._written}"


def _drop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def messages_of(size: int, count: int) -> list[bytes]:
    """Lines as logs have them: words and numbers, which compress to about a third. What follows the number comes again
    only after 20 MB, which is further than a compressor looks back."""
    random, tails = Random(size), []
    for _ in range(min(count, _DISTINCT_BYTES // size)):
        line = b""
        while len(line) < size:
            line += b" %s=%d" % (random.choice(_WORDS), random.randrange(100_000))
        tails.append(line[: size - 12])
    return [b"%012d" % number + tails[number % len(tails)] for number in range(count)]


def ratios(rounds: Sequence[dict[Cell, float]], peer: str, *, writes: bool) -> dict[Cell, list[float]]:
    """Our rows/s over the peer's, for each size and kind of scan, in each round that has both."""
    found: dict[Cell, list[float]] = {}
    for one in rounds:
        for cell in one:
            theirs = Cell(peer, cell.what, cell.message_bytes)
            if cell.who == "tailrace" and (cell.what == "write") == writes and theirs in one:
                found.setdefault(cell, []).append(one[theirs] / one[cell])
    return found
