"""`tailrace node`: one process of a deployment, in the foreground, until it is told to stop."""

import gc
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from ...config import DATA_CACHE, LENGTHS_CACHE, TlsConfig
from ...errors import ConfigError
from ..deployed import Deployed, open_store
from ..heap import keep_freed_memory
from ..membership import write_membership
from ..process_registry import ProcessEntry, State
from ..stopping import stop_asked
from ..supervision import RESTART_EXIT
from ..world import World
from .options import DEFAULT_WORLD, CertificateKey, Debug, Json, Roots, WorldFolder, examples, size
from .report import open_or_make, reported, say, show, show_json

if TYPE_CHECKING:
    from ..caches import Served
    from ..cluster import ClusterNode

EPILOG = examples(
    "tailrace node --roles reader,writer,scheduler --world-file world.toml --cluster us-east",
    "tailrace node --roles cache --cache prices",
    "tailrace node --roles cache --cache prices --backend 1 --listen 10.0.0.7:7401 --engine 10.0.0.7:7402 \\",
    "    --certificate node.pem --key node.key --roots ca.pem",
    "tailrace node --roles ambassador --stream prices --memory 2GiB",
)

ROLES = ("cache", "ambassador", "reader", "writer", "scheduler", "monitor")
_LOOK_S = 0.5
_SWITCH_S = 0.0005  # threads hand bytes on to each other: each must not wait long for its turn


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
            "--listen",
            metavar="HOST:PORT",
            help="Take calls from other hosts here; for each further backend at the next port. Port 0: any.",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="ADDRESS", help="Where others find us, if not at --listen.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="HOST:PORT",
            help="Serve reads to other hosts here; for each further backend at the next port. Port 0: any.",
            show_default=False,
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate", metavar="FILE", help="For --listen; else [tls] of the world's file.", show_default=False
        ),
    ] = None,
    key: CertificateKey = None,
    roots: Roots = None,
    world_file: Annotated[
        str | None,
        typer.Option("--world-file", metavar="FILE", help="The world that this cluster is in.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Which cluster of it.", show_default=False)
    ] = None,
    number: Annotated[
        int, typer.Option("--number", metavar="N", min=0, help="Which of several processes of the same roles.")
    ] = 0,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME", help="Who may copy to us, by a name in its certificate; all if none."),
    ] = None,
    compression: Annotated[
        str, typer.Option("--compression", metavar="WORD", help="Of what we send to other clusters: none or zstd.")
    ] = "none",
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run one process of a deployment in the foreground, until Ctrl-C or SIGTERM.

    A cache serves backends of caches, an ambassador brings streams from other hosts' caches into this host's memory.
    It tells a line when it is ready. `tailrace rollout` asks it to restart: it ends with exit code 75, for whatever
    supervises it to start it again. What it served stays readable on this host until the next one takes its place.
    """
    restarting = threading.Event()
    with reported(as_json=json, debug=debug):
        wanted = [role for role in roles.split(",") if role]
        if unknown := set(wanted) - set(ROLES):
            raise ConfigError(f"--roles {sorted(unknown)[0]}: there is {', '.join(ROLES)}")
        files = (certificate, key, roots)
        if any(files) and not all(files):
            raise ConfigError("--certificate, --key and --roots go together: say all of them or none")
        if compression not in ("none", "zstd"):
            raise ConfigError(f"--compression {compression}: use none or zstd")
        tls = TlsConfig(certificate=certificate, key=key, roots=roots) if certificate and key and roots else None
        stopping = stop_asked()
        copying = [role for role in wanted if role not in ("cache", "ambassador")]
        if copying and (world_file is None or cluster is None):
            raise ConfigError(f"--roles {copying[0]}: name its world and its cluster with --world-file and --cluster")
        with ExitStack() as stack:
            deployed = None if world_file is None or cluster is None else Deployed(world_file, cluster)
            if tls is None and deployed is not None:
                tls = deployed.tls
            opened = stack.enter_context(open_or_make(world if deployed is None else deployed.folder))
            if deployed is not None:
                write_membership(deployed.folder, deployed.cluster.name, deployed.path)
            served: list[tuple[str, Served]] = []
            nodes: list[ClusterNode] = []

            def state() -> State:
                serving = opened.serving_caches()
                ready = all(serving.values()) and all(node.ready for node in nodes)
                return State(frozenset(serving), ready and bool(served or nodes or "ambassador" in wanted))

            def restart() -> None:
                restarting.set()
                stopping.set()

            if "cache" in wanted:
                if deployed is not None:
                    deployed.make_caches(opened)
                served = _serve_caches(opened, caches, backends, listen, engine, tls, required=wanted == ["cache"])
                _tell_caches(served, as_json=json)
            if copying:
                assert deployed is not None
                sys.setswitchinterval(_SWITCH_S)
                keep_freed_memory()
                one = stack.enter_context(
                    deployed.node(
                        opened,
                        copying,
                        number=number,
                        listen=listen,
                        advertise=advertise,
                        tls=tls,
                        admits=peers or (),
                        compression="" if compression == "none" else compression,
                    )
                )
                nodes.append(one)
                told = {"cluster": cluster, "roles": copying, "number": number, "addresses": one.addresses}
                if json:
                    show_json(told)
                else:
                    show(f"{cluster}: {', '.join(copying)} at {' '.join(set(one.addresses.values())) or 'no door'}")
            if deployed is not None:
                store = stack.enter_context(open_store(deployed.path, deployed.file))
                entry = ProcessEntry(store, deployed.cluster.name, wanted, number, state, restart)
                stack.callback(entry.close)
            if "ambassador" in wanted:
                _bring_streams(opened, streams or [], memory, stopping, as_json=json)
            gc.collect()
            gc.freeze()  # what is there by now stays: to look through it again and again stops all threads for 20 ms
            while not stopping.wait(_LOOK_S):
                if served and not copying and all(there.backend.stopped for _, there in served):
                    say("others serve these backends now; nothing is left to do here")
                    break
    if restarting.is_set():
        raise typer.Exit(RESTART_EXIT)


def _serve_caches(
    opened: World,
    caches: list[str] | None,
    backends: list[int] | None,
    listen: str | None,
    engine: str | None,
    tls: TlsConfig | None,
    *,
    required: bool,
) -> "list[tuple[str, Served]]":
    from ..caches import Doors

    doors = Doors(rpc=(listen,) if listen else (), engine=engine, tls=tls)
    if not caches:
        for name in {DATA_CACHE, LENGTHS_CACHE} - set(opened.caches()):  # every stream needs them
            opened.create_cache(name)
    served = opened.serve_caches(caches or opened.caches(), backends, doors)
    if not served and required:
        raise ConfigError(
            "there is nothing to serve: every backend asked for is served already, or there is no cache; "
            "`tailrace cache create` makes one, `tailrace cache list` shows who is there"
        )
    return served


def _tell_caches(served: "list[tuple[str, Served]]", *, as_json: bool) -> None:
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
