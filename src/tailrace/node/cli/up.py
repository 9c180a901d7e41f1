"""`tailrace up`: every cluster of a world on this machine, in the foreground, until it is told to stop."""

import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from ...errors import ConfigError, TailraceError
from ..deployed import make_all_caches, open_store, process_plans, publish
from ..stopping import stop_asked
from ..supervision import ProcessPlan, ProcessStatus, Supervisor
from ..world_file import WorldFile, read_world_file
from .options import Debug, Json, examples
from .report import reported, say, show, show_json, table_lines

EPILOG = examples(
    "tailrace up world.toml",
    "tailrace up world.toml --together --json",
    "tailrace produce prices --world us-east     # in another terminal, beside world.toml",
)
_STEP_S = 0.05
_SHOW_S = 1.0


def up(
    path: Annotated[str, typer.Argument(metavar="WORLD.TOML", help="The world's file.")],
    together: Annotated[bool, typer.Option("--together", help="One process for all roles of a cluster.")] = False,
    logs: Annotated[
        str | None,
        typer.Option("--logs", metavar="DIR", help="Where they write; `logs` beside the file.", show_default=False),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST",
            help="Let processes talk over TCP at this address; 127.0.0.1 if the file has a table [tls].",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run every cluster of a world on this machine, in the foreground, until Ctrl-C or SIGTERM.

    A process that ends is started again. The file is looked at now and then: new streams, destinations, clusters,
    sizes, prices and limits hold without a restart.
    """
    with reported(as_json=json, debug=debug):
        file = read_world_file(path)
        if not file.world.clusters:
            raise ConfigError(f"{path} has no clusters: give each a table, [clusters.NAME]")
        stopping = stop_asked()
        folder = os.path.dirname(os.path.abspath(path))
        with open_store(path, file) as store:
            make_all_caches(path, file)
            publish(path, file, store)
            supervisor = Supervisor(_plans(path, file, together, listen), logs=logs or os.path.join(folder, "logs"))
            shown = _Shown(as_json=json)
            try:
                written = os.stat(path).st_mtime_ns
                looked_s = 0.0
                while not stopping.wait(_STEP_S):
                    changed = supervisor.step()
                    shown.show(supervisor.status(), changed=changed)
                    looked_s += _STEP_S
                    if looked_s < _SHOW_S:
                        continue
                    looked_s = 0.0
                    now = _modified(path)
                    if now is not None and now != written:
                        written = now
                        try:
                            file = _changed(file, read_world_file(path))
                            make_all_caches(path, file)
                            publish(path, file, store)
                            supervisor.replace(_plans(path, file, together, listen))
                            say(f"{path} was changed, and holds from now on")
                        except TailraceError as problem:
                            say(f"{path} was changed, and is not taken: {problem}")
            finally:
                supervisor.stop()
                shown.close()


def _plans(path: str, file: WorldFile, together: bool, listen: str | None) -> list[ProcessPlan]:
    if file.tls is not None:
        from ...wire.credentials import check

        for cluster in file.world.clusters:  # what is wrong is told at once, not by processes that end again and again
            if (tls := file.tls_of(cluster.name, os.path.dirname(os.path.abspath(path)))) is not None:
                check(tls)
    where = listen or (None if file.tls is None else "127.0.0.1")
    return process_plans(path, file, together=together, listen=where)


def _changed(before: WorldFile, now: WorldFile) -> WorldFile:
    if now.coordination != before.coordination:
        raise ConfigError("[coordination] cannot be changed while the world runs: end it, and start it again")
    return now


def _modified(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # an editor may be about to put it there again
        return None


class _Shown:
    """A table that stays in place on a terminal; elsewhere a table, or a line of JSON, whenever something changes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._live = None
        if not as_json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()

    def show(self, processes: list[ProcessStatus], *, changed: bool) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text("\n".join(_lines(processes))), refresh=changed)
        elif changed and self._as_json:
            show_json({"processes": [asdict(one) for one in processes]})
        elif changed:
            for line in _lines(processes):
                show(line)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def _lines(processes: list[ProcessStatus]) -> list[str]:
    head = ["PROCESS", "STATE", "PID", "RESTARTS", "UP", "LAST EXIT"]
    rows = [
        [
            one.name,
            one.state,
            "-" if one.pid is None else str(one.pid),
            str(one.restarts),
            f"{one.up_s:.0f} s",
            "-" if one.last_exit is None else str(one.last_exit),
        ]
        for one in processes
    ]
    return table_lines(head, rows)
