"""A world in one folder: files, coordination and streams put together, for this process. No server to start."""

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ..config import (
    DATA_CACHE,
    CacheConfig,
    ConsumerConfig,
    ProducerConfig,
    Retention,
    StreamConfig,
    TlsConfig,
    WorldConfig,
    decode,
    parse_world,
)
from ..coordination import Coordination
from ..env import Clock, SystemClock
from ..errors import Closed, ConfigError, CoordinationError, FileProblem, StreamExists
from ..files import Files, PosixFiles
from ..files.lengths import hint_slot
from ..files.origins import read_origin
from ..model import check_name
from ..native.hints import Hints
from ..native.sheets import Sheets
from ..streams import (
    SHARDS_MAX,
    Appended,
    Board,
    Catalog,
    Checkpoints,
    Collected,
    Consumer,
    Layers,
    Monitor,
    Nearby,
    OnChange,
    Producer,
    Shadow,
    ShardLog,
    ShardStatus,
    ShardTail,
    SheetPaths,
    Showing,
    Snapshot,
    Snapshots,
    SnapshotStatus,
    View,
    begin_sheets,
    collect,
    complete_stale,
)
from .coordination_store import has_coordination, may_coordinate, open_coordination
from .hosts import host_tag, make_world_folder, world_folder
from .membership import Membership, read_membership

if TYPE_CHECKING:
    from ..cache import Cache, Standing
    from .ambassador import HostAmbassador
    from .caches import Caches, Doors, Served
    from .layers import WorldLayers
    from .neighbours import Moving, Neighbours

_CONFIG = "tailrace.toml"
CATALOG_SLOT = hint_slot("streams")  # is raised when somebody begins to produce: there may be a new stream
_HOST = "TAILRACE_HOST"  # names this host, where its own knowledge does not serve


def open_world(path: str | os.PathLike[str], *, config: WorldConfig | None = None) -> "World":
    """The world in a folder, made on first use. Settings come from `config`, or from tailrace.toml in the folder."""
    root = os.fspath(path)
    files = PosixFiles(root)
    settings = config if config is not None else read_config(root)
    if settings.host is None and (host := os.environ.get(_HOST)):
        settings = dataclasses.replace(settings, host=host)
    coordination = settings.coordination
    return World(
        files=files,
        coordination=lambda: open_coordination(coordination, root),
        has_coordination=lambda: has_coordination(coordination, root),
        may_coordinate=lambda: may_coordinate(coordination, root),
        clock=SystemClock(),
        config=settings,
        root=root,
    )


def read_config(folder: str) -> WorldConfig:
    """tailrace.toml of a folder; as by default if there is none."""
    path = os.path.join(folder, _CONFIG)
    try:
        with open(path, encoding="utf-8") as file:
            return parse_world(file.read(), path)
    except FileNotFoundError:
        return WorldConfig()
    except (OSError, UnicodeDecodeError) as seen:
        raise ConfigError(f"{path} cannot be read: {seen}. Mend or remove it; nothing has started") from seen


def _world_store(world_file: str) -> Coordination:
    from .world_file import read_world_file

    config, folder = read_world_file(world_file).coordination, os.path.dirname(world_file)
    if not may_coordinate(config, folder):
        raise CoordinationError(f"there is no store beside {world_file} that may be used from here")
    return open_coordination(config, folder)


def _world_tls(membership: Membership) -> TlsConfig | None:
    """Who we are to other clusters, as the world's file has it for ours."""
    from .world_file import read_world_file

    path = membership.world_file
    return read_world_file(path).tls_of(membership.cluster, os.path.dirname(path))


class World:
    """Streams, producers, consumers. Close what you open; `with` does it.

    Coordination is opened when it is first needed, for checkpoints: who only reads needs no right to write.
    """

    def __init__(
        self,
        *,
        files: Files,
        coordination: Callable[[], Coordination],
        has_coordination: Callable[[], bool],
        may_coordinate: Callable[[], bool],
        clock: Clock,
        config: WorldConfig,
        root: str,
    ) -> None:
        self.config = config
        self._has_coordination, self._may_coordinate = has_coordination, may_coordinate
        self._files, self._open_coordination, self._clock = files, coordination, clock
        self._coordination: Coordination | None = None
        self._opening = threading.Lock()
        self._closed = False
        self._catalog = Catalog(files, clock)
        self._root = root
        self._caches_here: Caches | None = None
        self._layers_here: WorldLayers | None = None
        self._hints_here: Hints | None = None
        self._membership = read_membership(root)
        self._neighbours: Neighbours | None = None

    # ---- streams

    def streams(self) -> list[str]:
        """The names of all streams."""
        return self._catalog.names()

    def create_stream(self, name: str, config: StreamConfig | None = None, **settings: Any) -> StreamConfig:
        """Make a stream, with the world's settings for it unless told otherwise: create_stream("prices", shards=4)."""
        base = config or self.config.stream(name)
        return self._catalog.create(name, decode(StreamConfig, settings, base=base))

    def stream_config(self, name: str) -> StreamConfig:
        return self._catalog.config(name)

    def stream_status(self, name: str) -> list[ShardStatus]:
        """What each shard holds."""
        return [self._catalog.shard(name, shard) for shard in range(self.stream_config(name).shards)]

    def set_retention(self, name: str, retention: Retention) -> StreamConfig:
        """In force from the next new file, trim() or opening of a producer on."""
        return self._catalog.set_retention(name, retention)

    def delete_stream(self, name: str) -> None:
        """With all its messages and checkpoints."""
        self._catalog.delete(name)
        if self._has_coordination():
            self._checkpoints.forget_all(name)

    def trim(self, name: str) -> list[Collected]:
        """Delete what the stream's retention allows, now. Producers do it whenever they begin a new file."""
        return [self._trim(name, shard) for shard in range(self.stream_config(name).shards)]

    def checkpoints(self, stream: str) -> dict[str, dict[int, int]]:
        """{name: {shard: position}}."""
        incarnation = self._incarnation(stream)
        return self._checkpoints.load_all(incarnation) if self._has_coordination() else {}

    def forget_checkpoint(self, stream: str, name: str) -> None:
        self._checkpoints.forget(self._incarnation(stream), name)

    # ---- messages

    def producer(
        self, stream: str, *, shards: int | None = None, only: Sequence[int] | None = None, **settings: Any
    ) -> Producer:
        """A producer of all shards, or `only` of some; each shard has one producer at a time, and the newest wins.

        The stream is made on first use, with `shards`. Settings are those of ProducerConfig, as in buffer_s=0.01.
        """
        self._check_open()
        config = self._catalog.open(stream, self.config.stream(stream), shards)
        if (origin := read_origin(self._files, stream)) is not None:
            raise StreamExists(
                f"the stream {stream!r} here is a copy of the one in {origin}: produce there, and it arrives here. "
                "Nothing was changed"
            )
        wanted = range(config.shards) if only is None else sorted(set(only))
        if not wanted or wanted[0] < 0 or wanted[-1] >= config.shards:
            raise ConfigError(f"only={only!r}: {stream} has shards 0 to {config.shards - 1}")
        producer_config = decode(ProducerConfig, settings, base=self.config.producer)
        logs: dict[int, ShardLog] = {}
        sheets: dict[int, Sheets] = {}
        shadow = self.shadow(stream)
        on_append: Callable[[Appended], object] = shadow.appended if shadow else lambda appended: None
        showing: Showing | None = None
        try:
            for shard in wanted:
                logs[shard] = ShardLog(
                    self._files,
                    self._clock,
                    stream,
                    shard,
                    config,
                    lambda shard: self._trim(stream, shard),
                    lambda appended: on_append(appended),
                    lambda: config.cached and shadow is not None and shadow.taking,
                    lambda *of: None if showing is None else showing.notice(*of),
                )
            if (hints := self._hints()) is not None:
                hints.raise_(CATALOG_SLOT)
                # Whoever wrote before may have been killed before it could say what it had flushed.
                _, incarnation = self._incarnation(stream)
                hints.raise_(hint_slot(incarnation))
                if config.cached and isinstance(self._clock, SystemClock):
                    with suppress(OSError):  # there is no memory to share: then there are only files and cache
                        make_world_folder(self._root, self.config.host)
                        sheets = begin_sheets(self._sheets_folder(), incarnation, wanted, config.in_place_bytes)
                        showing = Showing(sheets, hints, incarnation, on_append)
                        on_append = showing.appended
            return Producer(
                stream, config.shards, logs, producer_config, self._clock, config.message_bytes_max, shadow, sheets
            )
        except BaseException:
            for one in sheets.values():
                one.close()
            for log in logs.values():
                log.close()
            if shadow is not None:
                shadow.close()
            raise

    def shadow(self, stream: str) -> Shadow | None:
        """What brings messages to the stream's cache, for those who append them by other ways than a producer; None if
        it has no cache. To be closed by them."""
        config = self._catalog.config(stream)
        if not config.cached:
            return None
        _, incarnation = self._incarnation(stream)
        return Shadow(
            lambda: self._layers.serve(config.cache),
            self._hints(),
            incarnation,
            stream,
            self._clock,
            config.chunk_bytes,
            host_tag(self.config.host),
            alone=self._host_tag is None and read_membership(self._root) is None,
        )

    def consumer(
        self,
        *streams: str,
        start: Literal["earliest", "latest"] | datetime | Mapping[int, int] = "latest",
        shards: Sequence[int] | None = None,
        checkpoint: str | None = None,
        follow: bool = True,
        **settings: Any,
    ) -> Consumer:
        """A consumer of one or more streams, or of some shards of one.

        It begins where the named checkpoint stands, if it has one; else at `start`: 'earliest', 'latest', a datetime,
        or positions by shard, as in {0: 4096}. Settings are those of ConsumerConfig, as in bytes_per_s=1e6.
        """
        self._check_open()
        if not streams:
            raise ConfigError("consumer() needs the name of a stream")
        if len(streams) > 1 and (shards is not None or isinstance(start, Mapping)):
            raise ConfigError(
                "shards and positions belong to one stream: open one consumer for each, or leave them out"
            )
        if checkpoint is not None:
            check_name(checkpoint, "checkpoint")
        config = decode(ConsumerConfig, settings, base=self.config.consumer)
        board = Board(self._hints, self._clock, self._host_tag)
        tails: list[ShardTail] = []
        try:
            for stream in dict.fromkeys(streams):
                with suppress(FileProblem):  # who may only read sees what is there
                    complete_stale(self._files, self._clock, stream, self.stream_config(stream))
                found = self._tails(stream, start, shards, checkpoint, config, board)
                tails += found
                if checkpoint is not None:
                    positions = {tail.shard: tail.position for tail in found}
                    self._checkpoints.declare(self._incarnation(stream), checkpoint, positions)
        except BaseException:
            for tail in tails:
                tail.close()
            raise
        commit = None if checkpoint is None else self._committer(checkpoint, streams)
        moves = self._moving(tails, config) if config.moves else None
        return Consumer(tails, config, self._clock, follow=follow, commit=commit, board=board, moves=moves)

    # ---- keys and values

    def snapshot(self, stream: str, shard: int | None = None, *, position: int | None = None) -> list[Snapshot]:
        """Fold the newest snapshot of a shard, or of each, and the messages behind it into a new one: up to now, or up
        to a position of one shard. Producers go on meanwhile."""
        shards = self._shards(stream, None if shard is None else [shard])
        snapshots = self._snapshots(stream)
        if position is None:
            return snapshots.take_all(shards)
        if shard is None:
            raise ConfigError(f"position {position} of which shard? Name it: snapshot({stream!r}, 0, position=…)")
        return [snapshots.take(shard, position)]

    def write_snapshot(
        self, stream: str, shard: int, position: int, keys: Any, values: Any, times_us: Any = None
    ) -> Snapshot:
        """Publish a state that another system knows, as a snapshot: Arrow arrays or lists of all keys of a shard and
        their values, after all messages before `position`."""
        self._shards(stream, [shard])
        return self._snapshots(stream).write(shard, position, keys, values, times_us)

    def snapshots(self, stream: str) -> list[SnapshotStatus]:
        """The snapshots of all shards, of each the newest first."""
        snapshots = self._snapshots(stream)
        return [status for shard in self._shards(stream, None) for status in snapshots.status(shard)]

    def view(
        self,
        stream: str,
        *,
        shards: Sequence[int] | None = None,
        wait: bool = True,
        on_change: OnChange | None = None,
        **settings: Any,
    ) -> View:
        """The stream as keys and values in this process: loads the newest snapshots and follows the updates.

        wait: return when all that is durable now is applied; else as soon as the snapshots are loaded. on_change hears
        of every update behind the snapshots. Settings are those of ConsumerConfig.
        """
        wanted, config = self._shards(stream, shards), self.stream_config(stream)
        settings = {**settings, "bytes_per_s": None}  # a view that holds back cannot tell whether it is fresh
        return View(
            stream,
            wanted,
            config.shards,
            self._snapshots(stream),
            lambda positions: self.consumer(stream, start=positions, **settings),
            self._clock,
            wait=wait,
            on_change=on_change,
        )

    def monitor(self, *streams: str, compare: bool = True) -> Monitor:
        """Follows streams from now on and measures: delays, sources of bytes, equality with the durable files."""
        self._check_open()
        board = Board(self._hints, self._clock, self._host_tag)
        tails = [
            tail
            for name in dict.fromkeys(streams)
            for tail in self._tails(name, "latest", None, None, self.config.consumer, board)
        ]
        consumer = Consumer(tails, self.config.consumer, self._clock, board=board)
        shards = []
        for tail in tails:
            durable = ShardTail(self._files, self._clock, tail.stream, tail.shard, tail.position)
            if not compare:
                durable.close()  # it still tells where the shard ends
            shards.append(((tail.stream, tail.shard), durable if compare else None, durable.end))
        return Monitor(consumer, board, shards, self._clock)

    def ambassador(self, *streams: str, memory_bytes: int | None = None) -> "HostAmbassador":
        """Brings streams from other hosts' caches into this host's memory, where all consumers on it find them. All
        streams that have a cache, if none is named."""
        from .ambassador import MEMORY_BYTES, HostAmbassador

        self._check_open()
        return HostAmbassador(
            streams,
            self._caches,
            self._layers,
            self._catalog,
            self._files,
            self._hints(),
            self._clock,
            self.config.host,
            memory_bytes or MEMORY_BYTES,
        )

    # ---- caches

    def caches(self) -> list[str]:
        """The names of all caches."""
        return self._caches.names() if self._has_coordination() else []

    def create_cache(self, name: str, config: CacheConfig | None = None, **settings: Any) -> CacheConfig:
        """Make a cache, with the world's settings for it unless told otherwise: create_cache("prices", mode="R=3.2",
        backends=3)."""
        return self._caches.create(name, config, **settings)

    def configure_cache(self, name: str, config: CacheConfig) -> CacheConfig:
        """Other settings, which backends and clients take up. The number of backends and the mode stay."""
        return self._caches.configure(name, config)

    def delete_cache(self, name: str) -> None:
        """With all it holds. Whoever serves it stops."""
        self._caches.delete(name)

    def cache(self, name: str, *, serving: bool = True, create: bool = True, **settings: Any) -> "Cache":
        """A cache, made on first use. This process serves those of its backends that nobody does, unless told not to.

        Settings are those of CacheConfig for a new cache, as in mode="R=3.2", and of CacheClientConfig, as in
        deadline_s=0.1.
        """
        self._check_open()
        return self._caches.open(name, serving=serving, create=create, **settings)

    def cache_standing(self, name: str) -> "Standing":
        """A cache's settings, and which backends are there."""
        return self._caches.standing(name)

    def serve_caches(
        self, names: Sequence[str], backends: Sequence[int] | None, doors: "Doors"
    ) -> "list[tuple[str, Served]]":
        """Serve backends in this process until the world is closed: these of each cache, or those that nobody does."""
        return self._caches.serve_all(names, backends, doors)

    def serving_caches(self) -> dict[tuple[str, int], bool]:
        """The backends that this process serves, by cache and number, and whether each has all that it should."""
        return {} if self._caches_here is None else self._caches_here.serving()

    def close(self) -> None:
        if self._neighbours is not None:
            self._neighbours.close()
        if self._caches_here is not None:
            self._caches_here.close()
        with self._opening:
            self._closed = True
            if self._coordination is not None:
                self._coordination.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside

    @property
    def files(self) -> Files:
        return self._files

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this world was closed; open it again")

    def _incarnation(self, stream: str) -> tuple[str, str]:
        return stream, self._catalog.incarnation(stream)

    def _committer(self, checkpoint: str, streams: Sequence[str]) -> Callable[[Mapping[tuple[str, int], int]], None]:
        incarnations = {stream: self._incarnation(stream) for stream in streams}
        checkpoints = self._checkpoints

        def commit(positions: Mapping[tuple[str, int], int]) -> None:
            checkpoints.commit(
                {(incarnations[stream], shard): at for (stream, shard), at in positions.items()}, checkpoint
            )

        return commit

    @property
    def _store(self) -> Coordination:
        with self._opening:
            self._check_open()
            if self._coordination is None:
                self._coordination = self._open_coordination()
            return self._coordination

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._store)

    @property
    def _caches(self) -> "Caches":
        from .caches import Caches  # with it comes the wire, which a world without caches does not wait for

        with self._opening:
            self._check_open()
            if self._caches_here is None:
                self._caches_here = Caches(self._root, lambda: self._store, self.config, self._clock)
            return self._caches_here

    @property
    def _layers(self) -> "WorldLayers":
        from .layers import WorldLayers

        with self._opening:
            self._check_open()
            if self._layers_here is None:
                self._layers_here = WorldLayers(lambda: self._caches, self._clock, self.config.host)
            return self._layers_here

    @property
    def _host_tag(self) -> int | None:
        """Of this host, if the world may have others: with SQLite it has none, unless hosts are named."""
        alone = self.config.host is None and not self.config.coordination.etcd
        return None if alone else host_tag(self.config.host)

    def _hints(self) -> Hints | None:
        """What wakes consumers on this host. They lie in the world's folder, so that whoever may use that shares them.
        None: they cannot be had; then consumers look now and then."""
        with self._opening, suppress(OSError):
            if self._hints_here is None:
                self._hints_here = Hints(
                    os.path.join(self._root, "hints" if self.config.host is None else f"hints-{self.config.host}"),
                    make=True,
                )
        return self._hints_here

    def _sheets_folder(self) -> str:
        return os.path.join(world_folder(self._root, self.config.host), "sheets")

    def _find_layers(self, cache: str = DATA_CACHE) -> Layers | None:
        """The cache beside the files, if it is there and we may use it: finding it takes the right to coordinate."""
        if self._layers_here is not None:
            return self._layers_here.find(cache)
        return self._layers.find(cache) if self._may_coordinate() else None

    def _snapshots(self, stream: str) -> Snapshots:
        self._check_open()
        return Snapshots(self._files, self._clock, self._catalog, stream)

    def _shards(self, stream: str, shards: Sequence[int] | None) -> list[int]:
        """Those that are meant, or all; ConfigError for one that is not there."""
        count = self.stream_config(stream).shards
        wanted = list(range(count)) if shards is None else sorted(set(shards))
        if not wanted or wanted[0] < 0 or wanted[-1] >= count:
            raise ConfigError(f"shards={wanted}: {stream} has shards 0 to {count - 1}")
        return wanted

    def _tails(
        self,
        stream: str,
        start: str | datetime | Mapping[int, int],
        shards: Sequence[int] | None,
        checkpoint: str | None,
        config: ConsumerConfig,
        board: Board,
    ) -> list[ShardTail]:
        stream_config, (_, incarnation) = self.stream_config(stream), self._incarnation(stream)
        through, folder = stream_config.cached, None
        if config.in_place and through:
            with suppress(OSError):
                folder = self._sheets_folder()
        if isinstance(start, Mapping):
            shards = sorted(start) if shards is None else shards
        wanted = self._shards(stream, shards)
        find = partial(self._find_layers, stream_config.cache)
        if through:
            find()  # now: hundreds who open it when the first message comes would all be late
        known = {} if checkpoint is None else self._checkpoints.load(self._incarnation(stream), checkpoint)
        tails: list[ShardTail] = []
        try:
            for shard in wanted:
                begin: Any = known.get(shard, start[shard] if isinstance(start, Mapping) else start)
                nearby = None
                if folder is not None and len(wanted) <= SHARDS_MAX:
                    paths = SheetPaths.of(folder, incarnation, shard)
                    nearby = Nearby(paths, self._clock, config.in_place_batch_bytes)
                sizes = config.near_batch_bytes, config.far_batch_bytes
                followed = board.follow(stream, shard, incarnation, find, nearby, *sizes) if through else None
                tails.append(
                    ShardTail(
                        self._files,
                        self._clock,
                        stream,
                        shard,
                        begin,
                        in_place=config.in_place,
                        in_place_bytes=config.in_place_batch_bytes,
                        followed=followed,
                        incarnation=incarnation,
                    )
                )
        except BaseException:
            for tail in tails:
                tail.close()
            raise
        return tails

    def _moving(self, tails: Sequence[ShardTail], config: ConsumerConfig) -> "Moving | None":
        """Where else a consumer may read, if this is a cluster of a world."""
        with self._opening:
            if self._neighbours is None and self._membership is not None:
                from .neighbours import Neighbours

                membership = self._membership
                self._neighbours = Neighbours(
                    membership,
                    lambda: _world_store(membership.world_file),
                    self._clock,
                    lambda: _world_tls(membership) or self.config.tls,
                )
            neighbours = self._neighbours
        if neighbours is None:
            return None
        from .neighbours import Moving

        followed = {(tail.stream, tail.shard): tail.followed for tail in tails}
        incarnations = {tail.stream: tail.incarnation for tail in tails}

        def at_home(stream: str, shard: int, position: int) -> ShardTail:
            return ShardTail(
                self._files,
                self._clock,
                stream,
                shard,
                position,
                in_place=config.in_place,
                in_place_bytes=config.in_place_batch_bytes,
                followed=followed[stream, shard],
                incarnation=incarnations[stream],
            )

        return Moving(
            neighbours,
            self._files,
            at_home,
            list(followed),
            self._clock,
            in_place=config.in_place,
            incarnations=incarnations,
        )

    def _trim(self, stream: str, shard: int) -> Collected:
        policy = self.stream_config(stream).retention
        passed = []
        if policy.waits_for:
            known = self.checkpoints(stream)
            # One that was never declared has passed nothing: keep everything rather than guess.
            passed = [known.get(name, {}).get(shard, 0) for name in policy.waits_for]
        return collect(self._files, stream, shard, policy, self._clock.time_us(), passed)
