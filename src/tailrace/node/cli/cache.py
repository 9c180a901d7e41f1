"""`tailrace cache …`: make, use, look at and load caches.

A cache needs somebody who serves it: `tailrace node --roles cache`, or a program that has it open. These commands serve
nothing themselves, since what they served would be gone with them.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...config import CACHE_MODES, encode
from ...errors import CacheUnavailable, ConfigError
from ..world import World
from .options import DEFAULT_WORLD, Debug, Json, WorldFolder, duration, examples, size
from .report import BadInput, open_existing, open_or_make, reported, say, show, show_json, show_table, stdout_told
from .units import show_size

if TYPE_CHECKING:
    from ...cache import Cache, Version

app = typer.Typer(
    help="Make, use, look at and load caches.",
    epilog=examples(
        "tailrace cache create prices --mode R=3.2 --backends 3 --memory 1GiB",
        "tailrace node --roles cache --cache prices &",
        "tailrace cache set prices sku-1 9.99 --ttl 1h",
        "tailrace cache get prices sku-1",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

CacheName = Annotated[str, typer.Argument(metavar="CACHE", help="The cache's name.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, as text.")]
Ttl = Annotated[
    float | None,
    typer.Option("--ttl", parser=duration, metavar="DURATION", help="Gone after this time.", show_default=False),
]
Relaxed = Annotated[bool, typer.Option("--relaxed", help="Believe one replica: quicker, and may be behind.")]


@app.command(
    epilog=examples(
        "tailrace cache create prices",
        "tailrace cache create prices --mode R=3.2 --backends 3 --memory 1GiB --policy lru --ttl 1h",
    )
)
def create(
    cache: CacheName,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="MODE", help=f"One of {', '.join(CACHE_MODES)}.", show_default=False),
    ] = None,
    backends: Annotated[
        int | None,
        typer.Option("--backends", metavar="N", help="How many backends the keys are spread over.", show_default=False),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option("--memory", parser=size, metavar="SIZE", help="Of each backend's data.", show_default=False),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="POLICY", help="Who goes first: lrm, lru or arc.", show_default=False),
    ] = None,
    ttl: Ttl = None,
    read_rate: Annotated[
        int | None,
        typer.Option(
            "--read-rate",
            parser=size,
            metavar="SIZE",
            help="Per second, from each backend to other hosts.",
            show_default=False,
        ),
    ] = None,
    write_rate: Annotated[
        int | None,
        typer.Option(
            "--write-rate",
            parser=size,
            metavar="SIZE",
            help="Per second, from other hosts to each backend.",
            show_default=False,
        ),
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a cache. What is not said comes from tailrace.toml in the world's folder, if there is one."""
    with reported(as_json=json, debug=debug), open_or_make(world) as opened:
        said: dict[str, Any] = {
            "mode": mode,
            "backends": backends,
            "memory_bytes": memory,
            "policy": policy,
            "ttl_s": ttl,
            "read_bytes_per_s": None if read_rate is None else float(read_rate),
            "write_bytes_per_s": None if write_rate is None else float(write_rate),
        }
        if mode is not None and backends is None and mode in CACHE_MODES:
            said["backends"] = max(CACHE_MODES[mode][0], opened.config.cache(cache).backends)
        config = opened.create_cache(cache, **{name: value for name, value in said.items() if value is not None})
        if json:
            show_json({"cache": cache, "settings": encode(config)})
        else:
            show(
                f"made the cache {cache}: {config.mode}, {config.backends} "
                f"{'backend' if config.backends == 1 else 'backends'} of {show_size(config.memory_bytes)}; "
                f"serve it with `tailrace node --roles cache --cache {cache}`"
            )


@app.command("list", epilog=examples("tailrace cache list", "tailrace cache list --json"))
def list_(world: WorldFolder = DEFAULT_WORLD, json: Json = False, debug: Debug = False) -> None:
    """List the caches, and how many of their backends are there."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        rows = []
        for name in opened.caches():
            standing = opened.cache_standing(name)
            config = standing.record.config
            rows.append(
                {"cache": name, "mode": config.mode, "backends": config.backends, "alive": len(standing.backends)}
            )
        if json:
            show_json({"caches": rows})
        elif rows:
            show_table(
                ["CACHE", "MODE", "BACKENDS", "ALIVE"],
                [[str(row["cache"]), str(row["mode"]), str(row["backends"]), str(row["alive"])] for row in rows],
            )
        else:
            say("no caches yet")


@app.command(epilog=examples("tailrace cache get prices sku-1", "tailrace cache get prices sku-1 sku-2 --json"))
def get(
    cache: CacheName,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…", help="Keys, as text.")],
    relaxed: Relaxed = False,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show values. One key: its bytes as they are, and exit code 1 if it is not there."""
    missing = False
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _use(opened, cache) as used:
        found = {key: used.get_with_version(key.encode(), relaxed=relaxed) for key in keys}
        missing = None in found.values()
        if json:
            show_json({"cache": cache, "values": {key: _described(pair) for key, pair in found.items()}})
        elif len(keys) == 1:
            pair = found[keys[0]]
            if pair is None:
                say(f"{keys[0]!r} is not in the cache {cache}")
            else:
                with stdout_told():
                    sys.stdout.buffer.write(pair[0] + (b"\n" if sys.stdout.isatty() else b""))
                    sys.stdout.buffer.flush()
        else:
            for key, pair in found.items():
                show(f"{key}\t{'-' if pair is None else pair[0].decode(errors='backslashreplace')}")
    if missing:
        raise typer.Exit(1)


@app.command(
    "set",
    epilog=examples("tailrace cache set prices sku-1 9.99 --ttl 1h", "tailrace cache set prices logo - < logo.png"),
)
def set_(
    cache: CacheName,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value; `-` reads it from stdin.")],
    ttl: Ttl = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Set a key."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _use(opened, cache) as used:
        version = used.set(key.encode(), _value(value), ttl_s=ttl)
        if json:
            show_json({"cache": cache, "key": key, "version": list(version)})
        else:
            show(_version_text(version))


@app.command(epilog=examples("tailrace cache erase prices sku-1", "tailrace cache erase prices sku-1 sku-2"))
def erase(
    cache: CacheName,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…", help="Keys, as text.")],
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Erase keys, whether they are there or not."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _use(opened, cache) as used:
        used.erase_many([key.encode() for key in keys])
        if json:
            show_json({"cache": cache, "erased": keys})
        else:
            show(f"erased {len(keys)} {'key' if len(keys) == 1 else 'keys'}")


@app.command(
    epilog=examples(
        "tailrace cache cas prices sku-1 8.99 --expect 1763250000000000.3.0",
        "tailrace cache cas prices sku-1 8.99 --expect none",
    )
)
def cas(
    cache: CacheName,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value; `-` reads it from stdin.")],
    expect: Annotated[
        str, typer.Option("--expect", metavar="VERSION", help="As `set` and `get --json` show it, or `none`.")
    ],
    ttl: Ttl = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Set a key only if it still has this version. Exit code 1: it has another one."""
    changed = True
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _use(opened, cache) as used:
        version = used.cas(key.encode(), _value(value), _parse_version(expect), ttl_s=ttl)
        changed = version is not None
        if json:
            show_json({"cache": cache, "key": key, "version": None if version is None else list(version)})
        elif version is None:
            say(f"{key!r} has another version than {expect}; nothing was changed")
        else:
            show(_version_text(version))
    if not changed:
        raise typer.Exit(1)


@app.command(epilog=examples("tailrace cache stats prices", "tailrace cache stats prices --json"))
def stats(cache: CacheName, world: WorldFolder = DEFAULT_WORLD, json: Json = False, debug: Debug = False) -> None:
    """Show what each backend holds and has done."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _use(opened, cache) as used:
        counts, ways, config = used.backend_stats(), used.ways(), used.settings
        if json:
            show_json(
                {
                    "cache": cache,
                    "settings": encode(config),
                    "backends": {
                        number: {"way": ways[number], "alive": number in counts, **counts.get(number, {})}
                        for number in range(config.backends)
                    },
                }
            )
            return
        show(f"{cache}: {config.mode}, {len(counts)} of {config.backends} backends are there")
        show_table(
            ["BACKEND", "PID", "WAY", "WHOLE", "KEYS", "DATA", "MEMORY", "EVICTED", "EXPIRED", "REPAIRED"],
            [
                [
                    str(number),
                    str(told["pid"]),
                    ways[number],
                    "yes" if told["whole"] else "no",
                    f"{told['records']:,}",
                    show_size(told["used_bytes"]),
                    show_size(told["populated_bytes"] + told["index_bytes"] + told["heap_bytes"]),
                    f"{told['evicted_capacity'] + told['evicted_associativity']:,}",
                    f"{told['expired']:,}",
                    f"{told.get('repaired_keys', 0):,}",
                ]
                for number, told in sorted(counts.items())
            ],
        )


@app.command(epilog=examples("tailrace cache delete prices --yes"))
def delete(
    cache: CacheName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete a cache with all it holds. Whoever serves it stops."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        if not yes:
            if json or not sys.stdin.isatty():
                raise ConfigError(f"deleting {cache!r} takes all it holds with it; say --yes if you mean it")
            if not typer.confirm(f"Delete the cache {cache} with all it holds?", err=True):
                say("nothing was deleted")
                return
        opened.delete_cache(cache)
        if json:
            show_json({"cache": cache, "deleted": True})
        else:
            show(f"deleted the cache {cache}")


@app.command(
    epilog=examples("tailrace cache bench prices", "tailrace cache bench prices --value 100B --batch 16 --seconds 10")
)
def bench(
    cache: CacheName,
    value: Annotated[
        int | None,
        typer.Option(
            "--value", parser=size, metavar="SIZE", help="Of each value; 4KiB if not said.", show_default=False
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, max=10_000, help="Keys in one call.")] = 64,
    keys: Annotated[int, typer.Option("--keys", metavar="N", min=1, help="Different keys.")] = 10_000,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0.1, max=3600, help="Of each measurement.")
    ] = 3.0,
    relaxed: Relaxed = False,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Load a running cache from one thread: sets, then gets. Its keys begin with `bench-` and are erased at the end."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _use(opened, cache) as used:
        from ..bench.load import load

        result = load(used, value or 4096, batch, keys, seconds, relaxed=relaxed, progress=say)
        if json:
            show_json(result)
            return
        for name in ("set", "get"):
            told = result[name]
            show(
                f"{name}  {told['keys_per_s']:>12,.0f} keys/s  {show_size(told['bytes_per_s'])}/s  "
                f"p50 {told['p50_us']:,.0f} us  p99 {told['p99_us']:,.0f} us a call of {batch}"
            )


def _use(world: World, name: str) -> "Cache":
    """The cache, if somebody serves it."""
    cache = world.cache(name, serving=False, create=False)
    if not world.cache_standing(name).backends:
        cache.close()
        raise CacheUnavailable(
            f"nobody serves the cache {name}: start `tailrace node --roles cache --cache {name}`, "
            f"or a program that opens it"
        )
    return cache


def _value(text: str) -> bytes:
    return sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")


def _version_text(version: "Version") -> str:
    return ".".join(map(str, version))


def _parse_version(text: str) -> "Version | None":
    if text == "none":
        return None
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise BadInput(f"--expect {text!r}: use a version as `tailrace cache set` shows it, or none")
    from ...cache import Version

    return Version(*map(int, parts))


def _described(pair: "tuple[bytes, Version] | None") -> dict[str, Any] | None:
    if pair is None:
        return None
    return {"value": pair[0].decode(errors="backslashreplace"), "version": list(pair[1])}
