"""Clusters in one process: schedulers, readers and writers find each other, and a stream travels its tree."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from test_copies import STREAM, message_files

import tailrace
from conftest import wait_until
from tailrace.config import DATA_CACHE
from tailrace.coordination import SqliteCoordination
from tailrace.copytree.world_record import load, publish_trees
from tailrace.model import CopyTree, Hop
from tailrace.node.cluster import ClusterNode


class Clusters:
    """A world of clusters in one folder; each may have several nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteCoordination(str(folder / "world.db"))
        self._running: dict[str, ExitStack] = {}
        self.nodes: dict[str, ClusterNode] = {}

    def chain(self, *clusters: str) -> CopyTree:
        return self.tree(clusters[0], list(itertools.pairwise(clusters)))

    def tree(self, source: str, hops: Sequence[tuple[str, str]]) -> CopyTree:
        tree = CopyTree(
            stream=STREAM, source=source, hops=tuple(Hop(upstream=up, downstream=down) for up, down in hops)
        )
        publish_trees(self.store, {STREAM: tree})
        return tree

    def start(self, cluster: str, number: int = 0, roles: Sequence[str] = ("reader", "writer", "scheduler")) -> None:
        with ExitStack() as stack:
            root = self.folder / cluster
            world = stack.enter_context(tailrace.open(root))
            node = ClusterNode(world, str(root), cluster, self.store, roles, number=number)
            stack.callback(node.close)
            self.nodes[f"{cluster}-{number}"] = node
            self._running[f"{cluster}-{number}"] = stack.pop_all()

    def stop(self, name: str) -> None:
        del self.nodes[name]
        self._running.pop(name).close()

    def close(self) -> None:
        for name in list(self._running):
            self.stop(name)
        self.store.close()

    def is_copied(self, source: str, *targets: str) -> bool:
        files = message_files(self.folder / source)
        return bool(files) and all(message_files(self.folder / target) == files for target in targets)


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    made = Clusters(tmp_path)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def producing(clusters: Clusters, cluster: str, shards: int = 2) -> Iterator[tailrace.Producer]:
    with tailrace.open(clusters.folder / cluster) as world, world.producer(STREAM, shards=shards) as producer:
        yield producer


def send(producer: tailrace.Producer, count: int = 100) -> None:
    for number in range(count):
        producer.send(b"%d" % number * 20, key=b"%d" % number)
    producer.flush()


def test_a_stream_travels_two_hops(clusters: Clusters) -> None:
    clusters.chain("a", "b", "c")
    for name in "abc":
        clusters.start(name)
    with producing(clusters, "a") as producer:
        for _ in range(5):
            send(producer)
        wait_until(lambda: clusters.is_copied("a", "b", "c"), "all clusters to be equal")
    with tailrace.open(clusters.folder / "c") as world, world.consumer(STREAM, start="earliest") as consumer:
        count = 0
        for batch in consumer:
            count += batch.count
            if count == 500:
                break


def test_a_stream_that_begins_later_is_noticed(clusters: Clusters) -> None:
    clusters.chain("a", "b")
    clusters.start("a")
    clusters.start("b")
    wait_until(lambda: clusters.nodes["a-0"].reader, "the reader")
    with producing(clusters, "a") as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "it to be copied")


def test_operations_go_on_without_a_scheduler_and_it_finds_them_when_it_is_back(clusters: Clusters) -> None:
    clusters.chain("a", "b")
    clusters.start("a", 0, ["reader"])
    clusters.start("a", 1, ["scheduler"])
    clusters.start("b", 0, ["writer"])
    with producing(clusters, "a") as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "it to be copied")
        clusters.stop("a-1")
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "orphans to go on")
        reader = clusters.nodes["a-0"].reader
        assert reader is not None
        copyings = dict(reader._copyings)
        clusters.start("a", 1, ["scheduler"])
        scheduler = clusters.nodes["a-1"].scheduler
        assert scheduler is not None
        wait_until(lambda: len(scheduler.owners) == len(copyings), "the scheduler to know them again")
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "it to go on")
        assert reader._copyings == copyings  # none of them was begun anew


def test_a_new_tree_takes_over_while_the_stream_flows(clusters: Clusters) -> None:
    """From a chain to a star: c copies from a instead of b, without losing or repeating a byte."""
    clusters.chain("a", "b", "c")
    for name in "abc":
        clusters.start(name)
    with producing(clusters, "a") as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b", "c"), "the chain to carry it")
        clusters.tree("a", [("a", "b"), ("a", "c")])
        wait_until(
            lambda: {(opening.source) for opening in clusters.nodes["c-0"].writer.running} == {"a"},  # type: ignore[union-attr]
            "c to copy from a",
        )
        clusters.stop("b-0")
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "c"), "the star to carry it")


def test_readers_share_the_work_and_one_takes_over_from_another(clusters: Clusters) -> None:
    clusters.chain("a", "b")
    clusters.start("a", 0, ["scheduler"])
    clusters.start("a", 1, ["reader"])
    clusters.start("a", 2, ["reader"])
    clusters.start("b", 0, ["writer"])
    with producing(clusters, "a", shards=8) as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "it to be copied")
        scheduler = clusters.nodes["a-0"].scheduler
        assert scheduler is not None
        wait_until(lambda: len(set(scheduler.owners.values())) == 2, "both readers to have work")
        clusters.stop("a-1")
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "the other to take over")
        assert len(set(scheduler.owners.values())) == 1


def test_who_stands_by_has_opened_what_it_may_be_given_and_serves_nothing(clusters: Clusters) -> None:
    clusters.chain("a", "b")
    clusters.start("a", 0, ["reader", "scheduler"])
    clusters.start("b", 0, ["writer"])
    with producing(clusters, "a", shards=1) as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "it to be copied")
        wait_until(lambda: len(clusters.nodes["b-0"]._world._caches.serving()) == 2, "the caches to be served")
        clusters.start("b", 1, ["writer"])
        clusters.start("a", 1, ["reader"])
        writer, reader = clusters.nodes["b-1"], clusters.nodes["a-1"]
        wait_until(lambda: DATA_CACHE in writer._world._layers._served, "the writer to be ready")
        wait_until(lambda: DATA_CACHE in reader._world._layers._home, "the reader to be ready")
        assert writer.writer is not None
        assert writer.writer.running == []
        assert writer._world._caches.serving() == {}
        assert reader._world._caches.serving() == {}


def test_a_cluster_outside_the_tree_takes_no_copy(clusters: Clusters) -> None:
    clusters.chain("a", "b")
    clusters.start("b")
    clusters.start("c")
    from tailrace.errors import Denied
    from tailrace.wire import Opening, Operation

    writer = clusters.nodes["c-0"].writer
    assert writer is not None
    for stream in (STREAM, "another"):
        operation = Operation(stream, 0, "durable", "c")
        with pytest.raises(Denied):
            next(writer.copy(Opening(operation=operation, source="a", origin="a", settings=b"{}"), iter(()), print))


def test_a_parent_that_has_not_heard_does_not_bring_an_old_stream_back(clusters: Clusters) -> None:
    """The stream was made anew, and another sends it now: by the same tree, so only the streams tell which is newer."""
    from tailrace.copytree import Reader
    from tailrace.env import SystemClock
    from tailrace.node.cluster_place import ClusterPlace
    from tailrace.wire import Operation, Order

    with producing(clusters, "old", shards=1) as producer:
        send(producer)
    clusters.chain("a", "c")
    epoch = load(clusters.store).epochs[STREAM]
    clusters.start("c", 0, ["writer"])
    clusters.start("a", 0, ["reader", "scheduler"])
    with producing(clusters, "a", shards=1) as producer, tailrace.open(clusters.folder / "old") as world:
        send(producer, 200)
        wait_until(lambda: clusters.is_copied("a", "c"), "the new one to be copied")
        late = Reader("late", "old", ClusterPlace(world), SystemClock())
        try:
            address = clusters.nodes["c-0"].addresses["writer"]
            operation = Operation(STREAM, 0, "durable", "c")
            late.order([Order(operation=operation, writers=(address,), origin="a", epoch=epoch)])
            wait_until(lambda: late.running[0].state == "superseded", "the late one to be refused")
            send(producer)
            wait_until(lambda: clusters.is_copied("a", "c"), "the new one to go on")
        finally:
            late.close()


def test_consumers_of_a_copy_read_from_its_own_cache(clusters: Clusters) -> None:
    clusters.chain("a", "b", "c")
    for name in "abc":
        clusters.start(name)
    with producing(clusters, "a", shards=1) as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b", "c"), "the stream to be there")
        with tailrace.open(clusters.folder / "c") as world, world.consumer(STREAM, start="latest") as consumer:
            batches = iter(consumer)
            wait_until(lambda: world._find_layers() is not None, "the cache of c")
            layers = world._find_layers()
            assert layers is not None

            def from_cache_alone() -> bool:
                before = layers.bytes_from.copy()
                send(producer, 10)
                count = 0
                while count < 10:
                    count += next(batches).count
                return layers.bytes_from["relaxed"] > before["relaxed"] and (
                    layers.bytes_from["durable"] == before["durable"]
                )

            wait_until(from_cache_alone, "bytes to come from the cache of c")


def test_of_two_cache_operations_the_older_stops(clusters: Clusters) -> None:
    """Two writers, two schedulers that know nothing of each other: an operation each for the same cache."""
    clusters.chain("a", "b")
    clusters.start("b", 0, ["writer"])
    clusters.start("a", 0, ["reader", "scheduler"])
    with producing(clusters, "a", shards=1) as producer:
        send(producer)
        wait_until(lambda: clusters.is_copied("a", "b"), "it to be copied")
        older = clusters.nodes["a-0"].reader
        assert older is not None
        states = lambda: {one.operation.storage: one.state for one in older.running}  # noqa: E731
        wait_until(lambda: states() == {"durable": "running", "cache": "running"}, "both operations to run")
        clusters.start("b", 1, ["writer"])
        from tailrace.copytree import Reader
        from tailrace.env import SystemClock
        from tailrace.node.cluster_place import ClusterPlace
        from tailrace.wire import Operation, Order

        with tailrace.open(clusters.folder / "a") as world:
            newer = Reader("newer", "a", ClusterPlace(world), SystemClock())
            try:
                address = clusters.nodes["b-1"].addresses["writer"]
                epoch = load(clusters.store).epochs[STREAM]
                newer.order(
                    [
                        Order(operation=Operation(STREAM, 0, storage, "b"), writers=(address,), origin="a", epoch=epoch)
                        for storage in ("durable", "cache")
                    ]
                )
                wait_until(lambda: {one.state for one in newer.running} == {"running"}, "the newer operations to run")
                wait_until(lambda: "running" not in states().values(), "the older ones to stop")
                send(producer)
                wait_until(lambda: clusters.is_copied("a", "b"), "the newer ones to copy")
            finally:
                newer.close()
