"""`tailrace rollout`: restart every process of a running world, few at a time, while its users go on."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...env import SystemClock
from ...errors import ConfigError
from ..deployed import Deployed, open_store
from ..stopping import stop_asked
from ..world_file import read_world_file
from .options import Debug, Json, duration, examples
from .report import reported, say, show, show_json

if TYPE_CHECKING:
    from ...coordination import Coordination
    from ..rollout.run import Restarting

EPILOG = examples(
    "tailrace rollout world.toml",
    "tailrace rollout world.toml --cluster us-east --json",
    "tailrace rollout world.toml --before 1794823200000000     # go on with one that was stopped",
)


def rollout(
    path: Annotated[str, typer.Argument(metavar="WORLD.TOML", help="The world's file.")],
    clusters: Annotated[
        list[str] | None, typer.Option("--cluster", metavar="NAME", help="Only this one, and others named so.")
    ] = None,
    before: Annotated[
        int | None,
        typer.Option(
            "--before", metavar="US", help="Only processes that started before; as it told when it was stopped."
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            parser=duration,
            metavar="TIME",
            help="Give up if nothing comes forward for so long; 10m if not said.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Restart every process of a running world in turn, with `tailrace up` or whatever else starts them again.

    One cluster after the other. Of a cache one replica of each key at a time, and the next when it has repaired what it
    lost; of readers and of writers a third at a time; schedulers never together with them. It waits when something is
    wrong. Producers and consumers go on meanwhile.
    """
    with reported(as_json=json, debug=debug):
        from ..rollout.run import RollingRestart

        file = read_world_file(path)
        names = [cluster.name for cluster in file.world.clusters]
        if unknown := [name for name in clusters or () if name not in names]:
            raise ConfigError(f"--cluster {unknown[0]}: {path} has {', '.join(names) or 'no clusters'}")
        chosen = [name for name in names if not clusters or name in clusters]
        stopping = stop_asked()

        def tell(step: "Restarting") -> None:
            if json:
                show_json(_described(step))
                return
            progress = step.progress
            if step.asked:
                show(f"restarting {', '.join(f'{one.cluster}/{one.name}' for one in step.asked)}")
            elif progress.waits_for:
                say(f"  {progress.restarted} done, {progress.left} to go; waiting for {progress.waits_for}")

        with ExitStack() as stack:
            store = stack.enter_context(open_store(path, file))
            own = _own_stores(stack, path, chosen)
            running = RollingRestart(
                store, chosen, own, SystemClock(), before_us=before, deadline_s=600.0 if deadline is None else deadline
            )
            done = running.run(tell, stopping)
        if not json:
            show(f"{done.restarted} processes of {', '.join(chosen)} were restarted")


def _own_stores(stack: ExitStack, path: str, clusters: list[str]) -> "dict[str, Coordination]":
    from ..coordination_store import has_coordination, open_coordination
    from ..world import read_config

    found = {}
    for name in clusters:
        folder = Deployed(path, name).folder
        if os.path.isdir(folder):
            config = read_config(folder).coordination
            if has_coordination(config, folder):
                found[name] = stack.enter_context(open_coordination(config, folder))
    return found


def _described(step: "Restarting") -> dict[str, Any]:
    progress = step.progress
    return {
        "restarting": [{"cluster": one.cluster, "process": one.name} for one in step.asked],
        "restarted": progress.restarted,
        "under_way": list(progress.under_way),
        "left": progress.left,
        "waits_for": progress.waits_for,
        "done": progress.done,
    }
