"""`tailrace node`: one process of a deployment, in the foreground, until it is told to stop."""

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from ...config import DATA_CACHE, LENGTHS_CACHE, TlsConfig
from ...errors import ConfigError
from ..world import World
from .options import DEFAULT_WORLD, Debug, Json, WorldFolder, examples, size
from .report import open_or_make, reported, say, show, show_json

if TYPE_CHECKING:
    from ..caches import Doors, Served

EPILOG = examples(
    "tailrace node --roles cache --cache prices",
    "tailrace node --roles cache --cache prices --backend 1 --listen 10.0.0.7:7401 --engine 10.0.0.7:7402 \\",
    "    --certificate node.pem --key node.key --roots ca.pem",
    "tailrace node --roles ambassador --stream prices --memory 2GiB",
)

ROLES = ("cache", "ambassador")
_LOOK_S = 0.5


def node(
    roles: Annotated[
        str, typer.Option("--roles", metavar="ROLE,…", help=f"What this process is: {', '.join(ROLES)}.")
    ] = "cache",
    caches: Annotated[
        list[str] | None, typer.Option("--cache", metavar="CACHE", help="Which caches; all of the world if none.")
    ] = None,
    backends: Annotated[
        list[int] | None,
        typer.Option("--backend", metavar="N", min=0, help="Which backends of them; those nobody serves if none."),
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="STREAM", help="What an ambassador brings; every stream if none."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option("--memory", parser=size, metavar="SIZE", help="Of an ambassador's cache.", show_default=False),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Take calls from other hosts here. Port 0: any.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="HOST:PORT", help="Serve reads to other hosts here. Port 0: any.", show_default=False
        ),
    ] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="FILE", help="For --listen.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="FILE", help="The certificate's key.", show_default=False)
    ] = None,
    roots: Annotated[
        str | None,
        typer.Option("--roots", metavar="FILE", help="Whose certificates are believed.", show_default=False),
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run one process of a deployment in the foreground, until Ctrl-C or SIGTERM.

    A cache serves backends of caches, an ambassador brings streams from other hosts' caches into this host's memory.
    It tells a line when it is ready. What it served stays readable on this host until the next one takes its place.
    """
    with reported(as_json=json, debug=debug), open_or_make(world) as opened:
        wanted = set(roles.split(","))
        if unknown := wanted - set(ROLES):
            raise ConfigError(f"--roles {sorted(unknown)[0]}: there is {', '.join(ROLES)}")
        files = (certificate, key, roots)
        if any(files) and not all(files):
            raise ConfigError("--certificate, --key and --roots go together: say all of them or none")
        tls = TlsConfig(certificate=certificate, key=key, roots=roots) if certificate and key and roots else None
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopping.set())
        served: list[Served] = []
        if "cache" in wanted:
            from ..caches import Doors

            doors = Doors(rpc=(listen,) if listen else (), engine=engine, tls=tls)
            served = _serve_caches(opened, caches or [], backends, doors, as_json=json)
        if "ambassador" in wanted:
            _bring_streams(opened, streams or [], memory, stopping, as_json=json)
            return
        while not stopping.wait(_LOOK_S):
            if all(one.backend.stopped for one in served):
                say("others serve these backends now; nothing is left to do here")
                break


def _serve_caches(
    world: World, caches: list[str], backends: list[int] | None, doors: "Doors", *, as_json: bool
) -> "list[Served]":
    if not caches:
        for name in {DATA_CACHE, LENGTHS_CACHE} - set(world.caches()):  # every stream needs them
            world.create_cache(name)
    served = world.serve_caches(caches or world.caches(), backends, doors)
    if not served:
        raise ConfigError(
            "there is nothing to serve: every backend asked for is served already, or there is no cache; "
            "`tailrace cache create` makes one, `tailrace cache list` shows who is there"
        )
    for name, one in served:
        told = {
            "cache": name,
            "backend": one.backend.index,
            "instance": one.backend.instance,
            "rpc": list(one.server.addresses),
            "engine": one.backend.engine_address,
        }
        if as_json:
            show_json(told)
        else:
            show(f"serving backend {one.backend.index} of {name} at {' '.join(one.server.addresses)}")
    return [one for _, one in served]


def _bring_streams(
    world: World, streams: list[str], memory: int | None, stopping: threading.Event, *, as_json: bool
) -> None:
    with world.ambassador(*streams, memory_bytes=memory) as ambassador:
        ambassador.step()
        if as_json:
            show_json({"ambassador": world.config.host, "shards": ambassador.shards})
        else:
            show(f"bringing {ambassador.shards} shards to this host; consumers on it find them by themselves")
        ambassador.run(stopping, world.config.consumer.poll_s)
