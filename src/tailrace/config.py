"""Every setting, typed, with its unit in its name, and refused early with the exact path of the bad value.

Configuration is read once, in `node`, and handed down; no room reads a file or the environment for itself.
"""

import dataclasses
import functools
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_origin

from .errors import ConfigError, NameRefused
from .model import check_name

T = TypeVar("T")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_WAIT_S_MAX = 1e6  # longer waits overflow the system's timers


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """When message files may go. Whole files only, oldest first, never the newest.

    A file may go when it is older than age_s or when the shard holds more than size_bytes, and every checkpoint in
    waits_for has passed it, and the newest keeps_snapshots snapshots of the shard all stand behind it. With only the
    latter two set, files go as soon as both hold. With nothing set, everything is kept.

    Older snapshots than those go too; without keeps_snapshots, those that lead to no message that is kept.
    """

    age_s: float | None = None
    size_bytes: int | None = None  # per shard, data and index together
    waits_for: tuple[str, ...] = ()
    keeps_snapshots: int | None = None  # per shard; files wait until there are so many

    def __post_init__(self) -> None:
        _check_types(self)
        _require(
            self.keeps_snapshots is None or 1 <= self.keeps_snapshots <= 10_000,
            "keeps_snapshots",
            self.keeps_snapshots,
            "1 to 10000, or leave it out",
        )
        _require(self.age_s is None or self.age_s > 0, "age_s", self.age_s, "more than 0, or leave it out")
        _require(self.size_bytes is None or self.size_bytes > 0, "size_bytes", self.size_bytes, "more than 0")
        for name in self.waits_for:
            try:
                check_name(name, "checkpoint")
            except NameRefused as refused:
                raise ConfigError(f"waits_for: {refused}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What a stream is made with. The number of shards is fixed for its life: it decides where keys go."""

    shards: int = 1
    file_bytes: int = 256 * MIB  # a new message file after this many data bytes …
    file_s: float = 3600.0  # … or this age, whichever comes first
    message_bytes_max: int = 16 * MIB
    cached: bool = True  # hot bytes lie in a cache beside the files …
    cache: str = "tailrace-data"  # … this one: a stream with its own cannot be pushed out by others
    chunk_bytes: int | None = None  # of the cache; None: chosen by how much a flush brings
    in_place_bytes: int = 512 * MIB  # of each shard's newest messages, where consumers of the producer's host read them
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        _check_types(self)
        _require(1 <= self.shards <= 65536, "shards", self.shards, "1 to 65536")
        _require(self.file_bytes >= 1, "file_bytes", self.file_bytes, "1 or more")
        _require(self.file_s > 0, "file_s", self.file_s, "more than 0")
        try:
            check_name(self.cache, "cache")
        except NameRefused as refused:
            raise ConfigError(f"cache: {refused}") from None
        _require(
            self.chunk_bytes is None or 1024 <= self.chunk_bytes <= 128 * KIB,
            "chunk_bytes",
            self.chunk_bytes,
            f"1024 to {128 * KIB}, or leave it out",
        )
        _require(
            0 <= self.in_place_bytes <= GIB,
            "in_place_bytes",
            self.in_place_bytes,
            f"0 (nothing is read in place) to {GIB}",
        )
        _require(1 <= self.message_bytes_max <= GIB, "message_bytes_max", self.message_bytes_max, f"1 to {GIB}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer buffers. buffer_s=0: flush as soon as the disk is free; inf: when told, or when bytes force it."""

    buffer_s: float = 0.1
    buffer_bytes: int = 4 * MIB  # a flush begins at the latest when this much waits
    pending_bytes_max: int = 16 * MIB  # waiting and on its way to disk; send() blocks at this line
    send_deadline_s: float = 30.0  # … for so long, then it refuses the message

    def __post_init__(self) -> None:
        _check_types(self)
        _require(0 <= self.buffer_s <= _WAIT_S_MAX or self.buffer_s == math.inf, "buffer_s", self.buffer_s, "0 or more")
        _require(self.buffer_bytes >= 1, "buffer_bytes", self.buffer_bytes, "1 or more")
        _require(
            self.pending_bytes_max >= self.buffer_bytes,
            "pending_bytes_max",
            self.pending_bytes_max,
            f"at least buffer_bytes={self.buffer_bytes}",
        )
        _require(0 < self.send_deadline_s <= _WAIT_S_MAX, "send_deadline_s", self.send_deadline_s, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer reads. A batch holds at least one message, however large."""

    batch_bytes: int | None = None  # at most, but for one large message; None: as is best for how it is read
    poll_s: float = 0.005  # how soon a waiting consumer looks again
    bytes_per_s: float | None = None  # passive rate limit; None: as fast as it can
    in_place: bool = True  # large batches lie where a producer of this host, or the kernel, has them; False: copies
    moves: bool = True  # in a world of clusters: read in a near one while this one is ill

    def __post_init__(self) -> None:
        _check_types(self)
        _require(
            self.batch_bytes is None or 1 <= self.batch_bytes <= GIB,
            "batch_bytes",
            self.batch_bytes,
            f"1 to {GIB}, or leave it out",
        )
        _require(0 < self.poll_s <= _WAIT_S_MAX, "poll_s", self.poll_s, "more than 0")
        _require(
            self.bytes_per_s is None or self.bytes_per_s > 0,
            "bytes_per_s",
            self.bytes_per_s,
            "more than 0, or leave it out",
        )

    @property
    def copied_batch_bytes(self) -> int:
        """Of a batch that is copied from a file: it fits a core's cache, where it is written and summed. Smaller where
        a rate is to be kept, which is done batch by batch."""
        return self.batch_bytes or (1 * MIB if self.bytes_per_s is None else 512 * KIB)

    @property
    def far_batch_bytes(self) -> int:
        """Of one that comes through a connection: larger, since what it costs beside its bytes is more."""
        return self.batch_bytes or (4 * MIB if self.bytes_per_s is None else self.copied_batch_bytes)

    @property
    def near_batch_bytes(self) -> int:
        """Of one that is copied from memory of this host: with its source it fits a core's cache."""
        return self.batch_bytes or 512 * KIB

    @property
    def in_place_batch_bytes(self) -> int:
        """Of one that lies where its producer or the kernel has it: no byte of it is moved, so it may be larger."""
        return self.batch_bytes or (4 * MIB if self.bytes_per_s is None else self.copied_batch_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """What a cache is made with. Equal for all its backends and clients."""

    mode: str = "R=1"  # or R=2/immutable: two copies, set once; R=3.2: three copies, of which two must agree
    backends: int = 1
    memory_bytes: int = 256 * MIB  # of each backend's data; collecting begins at 80 % of it
    keys_expected: int = 1024  # of each backend; its index grows beyond that, this only saves the growing
    policy: str = "lrm"  # who goes first: lrm, least recently modified; lru, least recently used; arc, adaptive
    ttl_s: float | None = None  # of entries that are set without one; None: they stay until room is needed
    chaining: bool = True  # keep keys that find no place in the index, answered by the backend itself
    tombstones: int = 4096  # of each backend: erased keys whose versions are known exactly
    repair_s: float = 30.0  # how often backends compare what they have
    read_bytes_per_s: float | None = None  # of each backend, to other hosts; None: as fast as it goes …
    write_bytes_per_s: float | None = None  # … and from them. Reading never keeps writing waiting, whatever these are
    clients: tuple[str, ...] = ()  # who may use it, by a name in their certificate; empty: whoever has one we trust
    clock_error_s: float = 0.1  # the largest difference between two clocks; a restarted backend waits twice as long
    embedded: bool = True  # whoever uses it serves backends that nobody does; false: `tailrace node` alone serves it

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self.mode in CACHE_MODES, "mode", self.mode, " or ".join(CACHE_MODES))
        _require(
            self.copies <= self.backends <= 65536, "backends", self.backends, f"{self.copies} to 65536 for {self.mode}"
        )
        _require(MIB <= self.memory_bytes <= 1 << 37, "memory_bytes", self.memory_bytes, f"{MIB} to {1 << 37}")
        _require(1 <= self.keys_expected <= 1 << 31, "keys_expected", self.keys_expected, f"1 to {1 << 31}")
        _require(self.policy in ("lrm", "lru", "arc"), "policy", self.policy, "lrm, lru or arc")
        _require(self.ttl_s is None or 1 <= self.ttl_s <= 1e9, "ttl_s", self.ttl_s, "1 or more, or leave it out")
        _require(0 <= self.tombstones <= 1 << 24, "tombstones", self.tombstones, f"0 to {1 << 24}")
        _require(0 < self.repair_s <= _WAIT_S_MAX, "repair_s", self.repair_s, "more than 0")
        for name in ("read_bytes_per_s", "write_bytes_per_s"):
            rate = getattr(self, name)
            _require(rate is None or rate >= MIB, name, rate, f"{MIB} or more, or leave it out")
        _require(0 <= self.clock_error_s <= 3600, "clock_error_s", self.clock_error_s, "0 to 3600")

    @property
    def copies(self) -> int:
        return CACHE_MODES[self.mode][0]

    @property
    def quorum(self) -> int:
        return CACHE_MODES[self.mode][1]

    @property
    def immutable(self) -> bool:
        return self.mode == "R=2/immutable"


#: By mode: how many backends have a copy, and how many of them must agree.
CACHE_MODES = {"R=1": (1, 1), "R=2/immutable": (2, 1), "R=3.2": (3, 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheClientConfig:
    """How a client uses a cache."""

    deadline_s: float = 0.5  # of one call, with all its retries
    attempts_max: int = 32  # of one key, when replicas differ or bytes are torn: some 30 ms in all
    hedge_s: float = 0.03  # a relaxed read asks another replica after this
    inline_bytes_max: int = 16 * KIB  # larger values are not sent along with the index, but read in a second step
    touch_s: float = 1.0  # how often the backends are told which keys were read, if their policy asks for it
    transport: str = "best"  # memory on one host, engines between hosts, else rpc; or name the one to use

    def __post_init__(self) -> None:
        _check_types(self)
        _require(0 < self.deadline_s <= 3600, "deadline_s", self.deadline_s, "more than 0, up to 3600")
        _require(1 <= self.attempts_max <= 255, "attempts_max", self.attempts_max, "1 to 255")
        _require(0 < self.hedge_s <= 3600, "hedge_s", self.hedge_s, "more than 0, up to 3600")
        _require(0 <= self.inline_bytes_max <= MIB, "inline_bytes_max", self.inline_bytes_max, f"0 to {MIB}")
        _require(0 < self.touch_s <= 3600, "touch_s", self.touch_s, "more than 0, up to 3600")
        words = ("best", "memory", "engine", "rpc")
        _require(self.transport in words, "transport", self.transport, " or ".join(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Mutual TLS: who we are, and whom we trust. PEM files; the certificate may be followed by its chain.

    A process is known by its certificate's alternative names: URIs and DNS names.
    """

    certificate: str
    key: str
    roots: str

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("certificate", "key", "roots"):
            _require(getattr(self, name) != "", name, "", "the path of a PEM file")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationConfig:
    """Where the coordination store is: a SQLite file of one machine, or the members of an etcd cluster.

    Over TLS, a member's certificate must have the host of its endpoint among its names.
    """

    etcd: tuple[str, ...] = ()  # host:port of each member; empty: a file beside the world's own
    prefix: str = "/tailrace/"  # of our keys: several worlds may share one etcd, each with its own
    tls: TlsConfig | None = None
    deadline_s: float = 5.0  # of one call, with all its attempts

    def __post_init__(self) -> None:
        _check_types(self)
        for endpoint in self.etcd:
            host, colon, port = endpoint.rpartition(":")
            _require(
                bool(host) and colon == ":" and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535,
                "etcd",
                endpoint,
                "host:port, without http:// before it",
            )
        _require(len(set(self.etcd)) == len(self.etcd), "etcd", self.etcd, "each endpoint once")
        _require(0 < len(self.prefix) <= 200 and "\0" not in self.prefix, "prefix", self.prefix, "1 to 200 characters")
        _require(0 < self.deadline_s <= 3600, "deadline_s", self.deadline_s, "more than 0, up to 3600")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    """tailrace.toml. A stream's own table begins from `defaults`, not from ours."""

    defaults: StreamConfig = field(default_factory=StreamConfig)
    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    producer: ProducerConfig = field(default_factory=ProducerConfig)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    caches: Mapping[str, CacheConfig] = field(default_factory=dict)
    cache_client: CacheClientConfig = field(default_factory=CacheClientConfig)
    tls: TlsConfig | None = None  # who we are to other hosts, and whom we believe
    host: str | None = None  # what this host is called; None: it is known by itself. Two names share no memory
    coordination: CoordinationConfig = field(default_factory=CoordinationConfig)

    def __post_init__(self) -> None:
        try:
            if self.host is not None:
                check_name(self.host, "host")
        except NameRefused as refused:
            raise ConfigError(f"host: {refused}") from None

    def stream(self, name: str) -> StreamConfig:
        return self.streams.get(name, self.defaults)

    def cache(self, name: str) -> CacheConfig:
        return self.caches.get(name) or _OWN_CACHES.get(name) or CacheConfig()


def parse_world(text: str, source: str = "tailrace.toml") -> WorldConfig:
    """
    >>> parse_world("[streams.prices]\\nshards = 4").stream("prices").shards
    4
    >>> parse_world("[streams.prices]\\nshards = 0")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: tailrace.toml: streams.prices.shards=0: use 1 to 65536
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"{source}: not TOML: {wrong}") from None
    try:
        return _world(table)
    except ConfigError as wrong:
        raise ConfigError(f"{source}: {wrong}") from None


def decode(kind: type[T], table: Mapping[str, Any], path: str = "", base: T | None = None) -> T:
    """A configuration class from plain tables, numbers and strings; what the table leaves out comes from `base`."""
    assert dataclasses.is_dataclass(kind)
    hints = _hints(kind)
    unknown = sorted(set(table) - set(hints))
    if unknown:
        raise ConfigError(f"{_join(path, unknown[0])}: no such setting; there are {', '.join(hints)}")
    values = {} if base is None else {name: getattr(base, name) for name in hints}
    for name, value in table.items():
        values[name] = _convert(hints[name], value, _join(path, name), values.get(name))
    for item in dataclasses.fields(kind):
        if item.name not in values and item.default is item.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(path, item.name)}: missing; it has no default")
    try:
        return kind(**values)
    except ConfigError as wrong:
        raise ConfigError(_join(path, str(wrong))) from None


def encode(config: Any) -> dict[str, Any]:
    """Plain tables, numbers and strings that `decode` takes back; settings that are None are left out."""
    table = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            value = encode(value)
        if value is not None:
            table[item.name] = list(value) if isinstance(value, tuple) else value
    return table


def _world(table: dict[str, Any]) -> WorldConfig:
    streams, caches = table.pop("streams", {}), table.pop("caches", {})
    world = decode(WorldConfig, table)
    return dataclasses.replace(
        world,
        streams=_by_name(StreamConfig, "stream", streams, world.defaults),
        caches=_by_name(CacheConfig, "cache", caches, None),
    )


def _by_name(kind: type[T], word: str, tables: Any, base: T | None) -> dict[str, T]:
    if not isinstance(tables, dict):
        raise ConfigError(f"{word}s={tables!r}: use one table per {word}, [{word}s.NAME]")
    decoded = {}
    for name, settings in tables.items():
        try:
            check_name(name, word)
        except NameRefused as refused:
            raise ConfigError(f"{word}s: {refused}") from None
        decoded[name] = _convert(kind, settings, f"{word}s.{name}", base)
    return decoded


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Making them takes longer than all the rest, and whoever opens a cache reads several tables."""
    return typing.get_type_hints(kind)


def _convert(hint: Any, value: Any, path: str, base: Any) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type[Any], hint)):
            return value
        if not isinstance(value, dict):
            raise ConfigError(f"{path}={value!r}: use a table")
        return decode(typing.cast(type[Any], hint), value, path, base)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path}={value!r}: use a list")
        return tuple(_convert(get_args(hint)[0], item, f"{path}[{i}]", None) for i, item in enumerate(value))
    if get_origin(hint) is typing.Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{path}={value!r}: use {' or '.join(get_args(hint))}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        wanted = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}[hint]
        raise ConfigError(f"{path}={value!r}: use {wanted}")
    return value


def _check_types(config: Any) -> None:
    """For those who build a configuration in Python: the same words as for those who write TOML."""
    for name, hint in _hints(config.__class__).items():
        value = getattr(config, name)
        if value is not None or not isinstance(hint, types.UnionType):
            _convert(hint, value, name, None)


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name}={value!r}: use {wanted}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


#: The two cells of a cluster (A12), as they are unless the world says otherwise: a minute of hot bytes, and lengths
#: that outlive every message file.
DATA_CACHE, LENGTHS_CACHE = "tailrace-data", "tailrace-lengths"
_OWN_CACHES = {
    DATA_CACHE: CacheConfig(ttl_s=60.0),
    LENGTHS_CACHE: CacheConfig(memory_bytes=16 * MIB, ttl_s=86_400.0),
}
