"""`tailrace topology`: which cluster copies from which, what that costs, why, and what an outage would change."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ConfigError
from ..stopping import stop_asked
from .options import Debug, Json, examples
from .report import OutputProblem, reported, say, show, show_json, show_table
from .units import show_size

if TYPE_CHECKING:
    from ...copytree.hops import HopReport
    from ...copytree.routing import Conditions, Plan, Planner
    from ...model import CopyTree, WorldMap
    from ..world_file import WorldFile

    _Seen = dict[tuple[str, str], HopReport]  # by stream and lower end

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Copy trees: which cluster copies from which, what it costs, and why.",
    epilog=examples(
        "tailrace topology show world.toml",
        "tailrace topology plan world.toml --outage eu-west --svg outage.svg",
        "tailrace topology explain world.toml --cluster japan",
        "tailrace topology apply world.toml",
    ),
)

WorldToml = Annotated[str, typer.Argument(metavar="WORLD.toml", help="The file that describes the world.")]
OnlyStream = Annotated[
    str | None, typer.Option("--stream", metavar="STREAM", help="This stream only.", show_default=False)
]
Svg = Annotated[
    str | None, typer.Option("--svg", metavar="FILE", help="Draw a picture into this file.", show_default=False)
]
Outages = Annotated[
    list[str] | None,
    typer.Option("--outage", metavar="CLUSTER|A-B", help="A cluster that is bad, or a link. May be repeated."),
]


@app.command("show", epilog=examples("tailrace topology show world.toml --svg world.svg"))
def show_trees(
    file: WorldToml,
    stream: OnlyStream = None,
    live: Annotated[bool, typer.Option("--live", help="The trees that are in force now, not those to be.")] = False,
    svg: Svg = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the copy tree of each stream, with what it costs and how deep it is."""
    with reported(as_json=json, debug=debug):
        known = _read(file)
        planner = _planner(known)
        seen: _Seen = {}
        if live:
            plans, seen = _live_plans(known, file, planner, stream)
        else:
            plans = list(_plans(planner, stream, None).values())
        _draw(svg, planner.world, [("as it is now" if live else "as planned", plans, frozenset())])
        if json:
            show_json({"world": known.name, "streams": [_described(planner.world, plan, seen) for plan in plans]})
            return
        for number, plan in enumerate(plans):
            if number:
                show("")
            show(_headline(plan))
            for line in _tree_lines(planner.world, plan.tree, seen):
                show(line)
            _show_trouble(plan)
        if not plans:
            say("there are no streams" + (" with a tree yet; `tailrace topology keep` makes them" if live else ""))


@app.command("plan", epilog=examples("tailrace topology plan world.toml --outage eu-west --outage us-east-japan"))
def plan_outage(
    file: WorldToml,
    outage: Outages = None,
    stream: OnlyStream = None,
    svg: Svg = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what an outage would change: cost and depth before and after, and which clusters would copy from elsewhere.

    Nothing is changed. Without --outage: what is planned.
    """
    with reported(as_json=json, debug=debug):
        known = _read(file)
        planner = _planner(known)
        conditions = _conditions(planner.world, outage or [])
        before = _plans(planner, stream, None)
        current = {name: plan.tree for name, plan in before.items()}
        after = _plans(planner, stream, conditions, current)
        bad = conditions.bad_clusters
        none: frozenset[str] = frozenset()
        panels = [("before", list(before.values()), none), ("after", list(after.values()), bad)]
        _draw(svg, planner.world, panels if outage else panels[:1])
        if json:
            changes = []
            for name in before:
                near = {one: _refuges(planner.world, after[name].tree, one, conditions) for one in sorted(bad)}
                changes.append({**_change(planner.world, before[name], after[name]), "refuges": near})
            show_json({"world": known.name, "outage": outage or [], "streams": changes})
            return
        rows = []
        for name in before:
            for when, plan in (("before", before[name]), ("after", after[name])):
                if when == "before" or outage:
                    rows.append([name, when, *_figures(plan)])
        show_table(["STREAM", "", "PER GB", "A DAY", "DEPTH", "MEAN", "FAN-OUT", "CLUSTERS", "UNREACHED"], rows)
        for name in before:
            _show_moves(before[name].tree, after[name].tree)
            for cluster in sorted(bad):
                if nearest := _refuges(planner.world, after[name].tree, cluster, conditions):
                    show(f"{name}: consumers in {cluster} go to {nearest[0]}")
            _show_trouble(after[name])


@app.command("explain", epilog=examples("tailrace topology explain world.toml --stream prices --cluster japan"))
def explain_trees(
    file: WorldToml,
    stream: OnlyStream = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="CLUSTER", help="The hop to this one only.", show_default=False),
    ] = None,
    outage: Outages = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say for each hop why the cluster copies from there, and what speaks against the others."""
    with reported(as_json=json, debug=debug):
        from ...copytree.routing import explain

        known = _read(file)
        planner = _planner(known)
        if cluster is not None and cluster not in planner.world:
            raise ConfigError(f"--cluster {cluster}: {file} has no such cluster")
        conditions = _conditions(planner.world, outage or [])
        told = []
        for name, plan in _plans(planner, stream, conditions).items():
            reasons = [one for one in explain(planner, plan, conditions) if cluster in (None, one.downstream)]
            told.append({"stream": name, "hops": [_reason(one) for one in reasons], "unreached": dict(plan.unreached)})
            if json:
                continue
            show(_headline(plan))
            for one in reasons:
                behind = f", {one.behind} get it this way" if one.behind > 1 else ""
                show(
                    f"  {one.upstream} > {one.downstream}: {one.why} "
                    f"({one.price_per_gb:.4g} per GB, {one.latency_s * 1e3:.3g} ms, hop {one.depth}{behind})"
                )
                for other in one.others:
                    show(f"      not {other.upstream}: {other.against}")
            _show_trouble(plan)
        if json:
            show_json({"world": known.name, "outage": outage or [], "streams": told})


@app.command("apply", epilog=examples("tailrace topology apply world.toml"))
def apply_file(file: WorldToml, json: Json = False, debug: Debug = False) -> None:
    """Make the file's clusters, links and streams the world's, while it runs: whoever follows it takes them up."""
    with reported(as_json=json, debug=debug):
        from ...copytree import set_map
        from ..coordination_store import open_coordination

        known = _read(file)
        with open_coordination(known.coordination, str(Path(file).parent)) as store:
            version, changed = set_map(store, known.world, known.preferences)
        if json:
            show_json({"world": known.name, "version": version, "changed": changed})
        else:
            show(f"{known.name} is at version {version}" + ("" if changed else ", as it was"))


@app.command("keep", epilog=examples("tailrace topology keep world.toml --name router-1"))
def keep_trees(
    file: WorldToml,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of this process, among others.")] = "router",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep the copy trees right, in the foreground, until Ctrl-C or SIGTERM: make them, and go around what is bad.

    Start it on two or three machines: one of them works, the others stand by.
    """
    with reported(as_json=json, debug=debug):
        from ...copytree import Router
        from ...copytree.routing import PublishTree
        from ..coordination_store import open_coordination

        known = _read(file)
        stopping = stop_asked()

        def tell(order: PublishTree) -> None:
            if json:
                show_json({"why": order.why, **_described(router.world, order.plan)})
            else:
                show(f"{_headline(order.plan)}: {order.why}")

        with (
            open_coordination(known.coordination, str(Path(file).parent)) as store,
            Router(store, name, on_order=tell) as router,
        ):
            say(f"{name} keeps the copy trees of {known.name}")
            told = ""
            while not stopping.is_set():
                router.attend(0.2)
                if router.problem != told and (told := router.problem):
                    say(f"it waits: {told}")


def _read(file: str) -> "WorldFile":
    from ..world_file import read_world_file

    return read_world_file(file)


def _planner(known: "WorldFile") -> "Planner":
    from ...copytree.routing import Planner

    return Planner(known.world, known.preferences)


def _plans(
    planner: "Planner",
    stream: str | None,
    conditions: "Conditions | None",
    current: "dict[str, CopyTree] | None" = None,
) -> "dict[str, Plan]":
    plans = planner.plan(conditions, current)
    if stream is None:
        return plans
    if stream not in plans:
        raise ConfigError(f"--stream {stream}: there is {', '.join(plans) or 'none'}")
    return {stream: plans[stream]}


def _live_plans(known: "WorldFile", file: str, planner: "Planner", stream: str | None) -> "tuple[list[Plan], _Seen]":
    """The trees in force, and what monitors see of their hops."""
    from ...copytree import load
    from ...copytree.hops import HopWatch
    from ..coordination_store import open_coordination
    from ..hop_monitor import told_sights

    with open_coordination(known.coordination, str(Path(file).parent)) as store:
        state, sights = load(store), told_sights(store)
    live = type(planner)(state.world, state.preferences)
    planner.world = live.world
    trees = [tree for name, tree in state.trees.items() if stream in (None, name)]
    reports = HopWatch().see(trees, sights, 0.0)
    seen = {(hop.stream, hop.downstream): hop for one in reports for hop in one.hops if hop.state != "unseen"}
    return [live.judge(tree) for tree in trees], seen


def _refuges(world: "WorldMap", tree: "CopyTree", cluster: str, conditions: "Conditions") -> list[str]:
    from ...copytree.routing import refuges

    return refuges(world, tree, cluster, conditions)[:3] if cluster in tree else []


def _conditions(world: "WorldMap", outages: list[str]) -> "Conditions":
    from ...copytree.routing import Conditions

    clusters, links = set(), set()
    for outage in outages:
        if outage in world:
            clusters.add(outage)
            continue
        # Names may have a "-" themselves, so every one of them may be where the two ends meet.
        cuts = [(outage[:at], outage[at + 1 :]) for at, sign in enumerate(outage) if sign == "-"]
        ends = [(one, other) for one, other in cuts if one in world and other in world]
        if len(ends) != 1:
            raise ConfigError(f"--outage {outage}: that is neither a cluster nor a link A-B of two; look at the names")
        links |= {ends[0], ends[0][::-1]}
    return Conditions(bad_clusters=frozenset(clusters), bad_links=frozenset(links))


def _headline(plan: "Plan") -> str:
    return (
        f"{plan.tree.stream} from {plan.tree.source}: {plan.price_per_gb:.4g} per GB, {plan.cost_per_day:,.2f} a day, "
        f"{len(plan.tree.clusters)} clusters, depth {plan.depth} (mean {plan.depth_mean:.1f}), fan-out {plan.fan_out}"
    )


def _figures(plan: "Plan") -> list[str]:
    return [
        f"{plan.price_per_gb:.4g}",
        f"{plan.cost_per_day:,.2f}",
        str(plan.depth),
        f"{plan.depth_mean:.2f}",
        str(plan.fan_out),
        str(len(plan.tree.clusters)),
        str(len(plan.unreached)),
    ]


def _tree_lines(world: "WorldMap", tree: "CopyTree", seen: "_Seen") -> list[str]:
    lines = [tree.source]

    def walk(name: str, indent: str) -> None:
        behind = tree.downstream(name)
        for number, child in enumerate(behind):
            last = number == len(behind) - 1
            link, hop = world.link(name, child), tree.hop(child)
            terms = f"  {link.price_per_gb:.4g} per GB, {link.latency_s * 1e3:.3g} ms" if link else ""
            if hop is not None and hop.joining:
                held = "" if hop.bytes_per_s_max == math.inf else f", held to {hop.bytes_per_s_max:,.0f} bytes/s"
                terms += f"  (catching up{held})"
            if (found := seen.get((tree.stream, child))) is not None:
                terms += f"  [{_seen_words(found)}]"
            lines.append(f"{indent}{'└─ ' if last else '├─ '}{child}{terms}")
            walk(child, indent + ("   " if last else "│  "))

    walk(tree.source, "")
    return lines


def _show_moves(before: "CopyTree", after: "CopyTree") -> None:
    moved = [
        f"  {name}: from {after.upstream(name)} instead of {before.upstream(name) or 'nowhere'}"
        for name in after.clusters
        if after.upstream(name) != before.upstream(name)
    ]
    gone = [f"  {name}: no more" for name in before.clusters if name not in after]
    if moved or gone:
        show(f"{after.stream}: {len(moved) + len(gone)} of {len(after.clusters) - 1} copy from elsewhere")
        for line in moved + gone:
            show(line)


def _show_trouble(plan: "Plan") -> None:
    for name, reason in plan.unreached.items():
        say(f"{plan.tree.stream} does not reach {name}: {reason}")
    for strain in plan.strains:
        say(f"{plan.tree.stream}: {strain}")


def _seen_words(hop: "HopReport") -> str:
    if hop.delay_p50_ms is None or hop.delay_p99_ms is None:
        return f"{hop.state}, {show_size(hop.behind_bytes)} behind"
    adds = f"adds {hop.delay_p50_ms:.1f} ms, p99 {hop.delay_p99_ms:.1f} ms"
    return f"{hop.state}, {adds}, {show_size(hop.behind_bytes)} behind"


def _described(world: "WorldMap", plan: "Plan", seen: "_Seen | None" = None) -> dict[str, Any]:
    hops = []
    for hop in plan.tree.hops:
        link = world.link(hop.upstream, hop.downstream)
        held = None if hop.bytes_per_s_max == math.inf else hop.bytes_per_s_max
        found = (seen or {}).get((plan.tree.stream, hop.downstream))
        names = ("state", "samples", "delay_p50_ms", "delay_p99_ms", "behind_bytes")
        hops.append(
            {
                **({} if found is None else {"seen": {name: getattr(found, name) for name in names}}),
                "from": hop.upstream,
                "to": hop.downstream,
                "price_per_gb": None if link is None else link.price_per_gb,
                "latency_s": None if link is None else link.latency_s,
                "joining": hop.joining,
                "bytes_per_s_max": held,
            }
        )
    return {
        "stream": plan.tree.stream,
        "source": plan.tree.source,
        **_summary(plan),
        "unreached": dict(plan.unreached),
        "strains": list(plan.strains),
        "hops": hops,
    }


def _summary(plan: "Plan") -> dict[str, Any]:
    return {
        "price_per_gb": plan.price_per_gb,
        "cost_per_day": plan.cost_per_day,
        "depth": plan.depth,
        "depth_mean": plan.depth_mean,
        "fan_out": plan.fan_out,
        "clusters": len(plan.tree.clusters),
    }


def _change(world: "WorldMap", before: "Plan", after: "Plan") -> dict[str, Any]:
    moved = [name for name in after.tree.clusters if after.tree.upstream(name) != before.tree.upstream(name)]
    return {
        "stream": before.tree.stream,
        "before": _summary(before),
        "after": _described(world, after),
        "moved": moved,
    }


def _reason(one: Any) -> dict[str, Any]:
    return {
        "from": one.upstream,
        "to": one.downstream,
        "why": one.why,
        "price_per_gb": one.price_per_gb,
        "latency_s": one.latency_s,
        "depth": one.depth,
        "behind": one.behind,
        "others": [{"from": o.upstream, "against": o.against, "more": o.more} for o in one.others],
    }


def _draw(path: str | None, world: "WorldMap", panels: "list[tuple[str, list[Plan], frozenset[str]]]") -> None:
    if path is None:
        return
    from ..topology_picture import Panel, picture

    drawn = picture(world, [Panel(title, plans, bad) for title, plans, bad in panels])
    try:
        Path(path).write_text(drawn, encoding="utf-8")
    except OSError as seen:
        raise OutputProblem(f"the picture cannot be written to {path}: {seen.strerror}") from None
    say(f"drawn into {path}")
