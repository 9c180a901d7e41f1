"""`tailrace pipeline …`: run pipelines, look at them, and mend what is bad."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from types import FrameType
from typing import Annotated, Any

import typer

from ...coordination import Coordination, SqliteCoordination
from ...env import SystemClock
from ...errors import ConfigError
from ...pipeline import Pipeline
from ...pipeline.code import load_named
from ...pipeline.logs import StreamLogs
from ...pipeline.office import Office, describe, names
from ...pipeline.sinks.streams import StreamSink
from ...pipeline.state import State
from ...pipeline.status import describe_bad
from ...streams import Checkpoints
from ..world import World
from .interrupt import Interrupt
from .options import DEFAULT_WORLD, Debug, Json, StreamName, WorldFolder, duration, examples
from .render import stamp
from .report import open_existing, reported, say, show, show_json, show_table, table_lines
from .units import show_duration, show_size

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Streams processed exactly once, by any number of sites.",
    epilog=examples(
        "tailrace pipeline run app.py:pipeline --site us",
        "tailrace pipeline status ad-stats --watch",
        "tailrace pipeline bad-ranges ad-stats",
    ),
)

Name = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")]
App = Annotated[str, typer.Argument(metavar="APP", help="A file and the pipeline in it, as in app.py:pipeline.")]
StateStores = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="A SQLite file for the pipeline's state, shared by its sites; else the world's own. Repeat it to spread "
        "the partitions over several, the same for all sites.",
        show_default=False,
    ),
]


@app.command(
    "run",
    epilog=examples(
        "tailrace pipeline run app.py:pipeline",
        "tailrace pipeline run app.py:pipeline --site us --engine spark --master 'local[4]'",
        "tailrace pipeline run app.py:pipeline --until-done --json",
    ),
)
def run(
    application: App,
    site: Annotated[
        str, typer.Option("--site", metavar="NAME", help="The site that this process works for.")
    ] = "local",
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help="processes, spark, or inline: in this process itself.")
    ] = "processes",
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's; else this machine.", show_default=False)
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", metavar="N", min=1, help="Units at a time; else as many as there are cores.", show_default=False
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            "--weight",
            metavar="W",
            help="The share of the work, beside other sites'; else its slots.",
            show_default=False,
        ),
    ] = None,
    until_done: Annotated[bool, typer.Option("--until-done", help="End when all that is there was published.")] = False,
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a site of a pipeline until Ctrl-C. Start it again after whatever ended it: it goes on where it was.

    Any number of sites may run at once, and any number of processes of each. They share the state, each has its own
    copy of the streams in its world, and every byte is committed exactly once.
    """
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _stores(opened, state) as stores:
        pipeline = _pipeline(application)
        if engine not in ("processes", "spark", "inline"):
            raise ConfigError(f"--engine {engine}: use processes, spark or inline")
        streams = dict.fromkeys(pipeline.source.streams, pipeline.source.start)
        describe(stores[0], pipeline.name, streams, pipeline.sink.place)
        _feed(opened, world, pipeline)
        worker = pipeline.worker(world, engine, slots, master)  # type: ignore[arg-type]
        runner = pipeline.runner(
            world,
            stores,
            site=site,
            worker=worker,
            weight=weight,
            files=opened.files,
            on_problem=lambda text: say(f"tailrace: {text}"),
            on_floor=_floor(opened, pipeline.name),
        )
        say(
            f"{pipeline.name} at {site}: {', '.join(streams)} to {pipeline.sink.place}, "
            f"{worker.slots} units at a time ({engine})"
        )
        with _stopping(runner.stop):
            runner.run(until_done=until_done)
        figures = runner.figures()
        if json:
            show_json(figures)
        else:
            say(
                f"{figures['units']} units, {figures['messages']:,} messages, {show_size(figures['input_bytes'])}, "
                f"{figures['rows']:,} rows published"
            )


@app.command(
    "status",
    epilog=examples(
        "tailrace pipeline status ad-stats",
        "tailrace pipeline status ad-stats --watch",
        "tailrace pipeline status ad-stats --json",
    ),
)
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="PIPELINE", help="The pipeline's name; else all.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="TIME", parser=duration, help="How often.")] = "1s",  # type: ignore[assignment]  # parsed
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is left to do, in bytes and seconds, who does it at which rate, and what is bad."""
    with (
        reported(as_json=json, debug=debug),
        open_existing(world) as opened,
        _stores(opened, state) as stores,
        Interrupt() as interrupt,
    ):
        while True:
            found = [_office(one, opened, stores).status() for one in ([name] if name else names(stores[0]))]
            if json:
                show_json(found[0] if name else found)
            else:
                clear = "\x1b[2J\x1b[H" if watch and sys.stdout.isatty() else ""
                show(
                    clear + "\n\n".join("\n".join(_lines(one)) for one in found)
                    if found
                    else "no pipeline has run here"
                )
            if not watch or interrupt.asked:
                return
            end_s = time.monotonic() + every
            while not interrupt.asked and (left_s := end_s - time.monotonic()) > 0:
                time.sleep(min(left_s, 0.1))
            if interrupt.asked:
                return


@app.command("drain", epilog=examples("tailrace pipeline drain ad-stats", "tailrace pipeline drain ad-stats --undo"))
def drain(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Make new units again.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until all units are published.")] = True,
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make no more units, and wait until those there are have been published: then the output ends at a clean line."""
    with (
        reported(as_json=json, debug=debug),
        open_existing(world) as opened,
        _stores(opened, state) as stores,
        Interrupt() as interrupt,
    ):
        office = _office(name, opened, stores)
        office.state.drain(not undo)
        found = office.status()
        while wait and not undo and sum(found["units"][kind] for kind in ("open", "held", "committed")):
            if interrupt.asked:
                break
            if found["state"] == "stopped":
                say("no runner is at work, so nothing moves; start one with `tailrace pipeline run`")
                break
            time.sleep(0.1)
            found = office.status()
        if json:
            show_json(found)
        else:
            show("\n".join(_lines(found)))


@app.command(
    "bad-ranges",
    epilog=examples("tailrace pipeline bad-ranges ad-stats", "tailrace pipeline bad-ranges ad-stats --retry"),
)
def bad_ranges(
    name: Name,
    retry: Annotated[bool, typer.Option("--retry", help="Try them again, since their cause was mended.")] = False,
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="Who is to try them.")] = "local",
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the byte ranges that were given up, with file, positions and reason. Everything else was processed."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _stores(opened, state) as stores:
        office = _office(name, opened, stores)
        found = office.state.bad_ranges()
        if retry:
            made = office.state.retry_bad(None, site)
            say(f"{len(made)} ranges are tried again")
        if json:
            show_json([describe_bad(bad) for bad in found])
        elif found:
            show_table(
                ["STREAM", "SHARD", "FILE", "BEGIN", "END", "FOUND", "REASON"],
                [
                    [
                        b.range.stream,
                        str(b.range.shard),
                        b.range.file,
                        str(b.range.begin),
                        str(b.range.end),
                        stamp(b.found_us)[:19],
                        b.reason[:100],
                    ]
                    for b in found
                ],
            )
        else:
            say("nothing is bad")


@app.command("rebuild", epilog=examples("tailrace pipeline rebuild app.py:pipeline"))
def rebuild(
    application: App,
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="Who is to do what is missing.")] = "local",
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a pipeline's state anew from its outputs, which say of which input they were made. For when the state was
    lost, or is not to be trusted. No runner may be at work; make sure that none is merely frozen, either."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _stores(opened, state) as stores:
        pipeline = _pipeline(application)
        streams = dict.fromkeys(pipeline.source.streams, pipeline.source.start)
        describe(stores[0], pipeline.name, streams, pipeline.sink.place)
        State(pipeline.name, stores, SystemClock()).refresh()
        pipeline.sink.prepare()
        made = _office(pipeline.name, opened, stores).rebuild(pipeline.sink, streams, site)
        if json:
            show_json(
                {
                    "outputs": made.outputs,
                    "done_bytes": made.done_bytes,
                    "units": made.units,
                    "hole_bytes": made.hole_bytes,
                }
            )
        else:
            show(
                f"{made.outputs} outputs, made of {show_size(made.done_bytes)}; "
                f"{made.units} holes between them, {show_size(made.hole_bytes)}, are to be done"
            )


@app.command(
    "outage", epilog=examples("tailrace pipeline outage ad-stats eu", "tailrace pipeline outage ad-stats eu --over")
)
def outage(
    name: Name,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site that is out.")],
    over: Annotated[bool, typer.Option("--over", help="It is back.")] = False,
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Declare a site out: it gets no units, and what it has is free for the others at once. A site whose runners are
    dead is found out by itself; this is for those that are about to go, or work badly."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _stores(opened, state) as stores:
        office = _office(name, opened, stores)
        office.state.declare(site, out=not over)
        if json:
            show_json(office.status())
        else:
            say(f"{site} is {'back' if over else 'out'}")


@app.command("partitions", epilog=examples("tailrace pipeline partitions ad-stats 20 --in 10m"))
def partitions(
    name: Name,
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="How many partitions the state is to have.")],
    after: Annotated[
        float, typer.Option("--in", metavar="TIME", parser=duration, help="For files made from then on.")
    ] = "60s",  # type: ignore[assignment]  # parsed
    state: StateStores = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Change the number of the state's partitions while everything runs. Files that are there stay where they are."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _stores(opened, state) as stores:
        layout = _office(name, opened, stores).state.repartition(count, SystemClock().time_us() + round(after * 1e6))
        told = [{"from_us": epoch.from_us, "partitions": epoch.partitions} for epoch in layout.epochs]
        if json:
            show_json(told)
        else:
            for epoch in told:
                show(f"{epoch['partitions']} partitions for files made from {stamp(epoch['from_us'])} on")


@app.command("forget", epilog=examples("tailrace pipeline forget ad-stats"))
def forget(
    name: Name, state: StateStores = None, world: WorldFolder = DEFAULT_WORLD, json: Json = False, debug: Debug = False
) -> None:
    """Remove a pipeline's state: it would begin anew. Its outputs stay; move them away first, or they come twice."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened, _stores(opened, state) as stores:
        office = _office(name, opened, stores)
        if office.state.members().runners:
            raise ConfigError(f"{name} is at work; stop its runners first")
        office.state.forget()
        say(f"the state of {name} is gone")


@app.command(
    "extract",
    epilog=examples(
        "tailrace pipeline extract prices --from prices.parquet --key sku",
        "tailrace pipeline extract users --format jdbc --option url=jdbc:sqlite:app.db --option dbtable=users --key id",
    ),
)
def extract(
    stream: StreamName,
    key: Annotated[str, typer.Option("--key", metavar="COLUMN", help="The column with the keys.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="PATH", help="The files of the table.", show_default=False)
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Of the table: parquet, json, jdbc, or what Spark reads.")
    ] = "parquet",
    value: Annotated[
        str | None,
        typer.Option(
            "--value", metavar="COLUMN", help="The column with the values; else rows as JSON.", show_default=False
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="N", min=1, help="Of a stream that is new.", show_default=False)
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="For Spark's reader. Repeat it.", show_default=False),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's; else this machine.", show_default=False)
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring a table into a keyed stream: as a snapshot the first time, then as the updates since. Bringing the same
    table again sends nothing."""
    with reported(as_json=json, debug=debug):
        spark = _spark("extract", master)
        try:
            reading = spark.read.format(form)
            for one in option or []:
                name, equals, text = one.partition("=")
                if not equals:
                    raise ConfigError(f"--option {one}: use NAME=VALUE")
                reading = reading.option(name, text)
            try:
                table = reading.load(source) if source is not None else reading.load()
            except Exception as problem:
                told = (str(problem).splitlines() or [type(problem).__name__])[0]
                raise ConfigError(f"Spark cannot read {source or form}: {told[:300]}") from problem
            from ...pipeline.spark import keyed

            made = keyed.extract(spark, table, world, stream, key=key, value=value, shards=shards)
        finally:
            spark.stop()
        if json:
            show_json(
                {name: getattr(made, name) for name in ("shards", "in_snapshots", "updated", "deleted", "unchanged")}
            )
        else:
            show(
                f"{stream}: {made.in_snapshots} keys in snapshots, {made.updated} updated, {made.deleted} deleted, "
                f"{made.unchanged} unchanged"
            )


@app.command(
    "compact",
    epilog=examples("tailrace pipeline compact prices", "tailrace pipeline compact prices --to /mnt/asia --to /mnt/us"),
)
def compact(
    stream: StreamName,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="DIR", help="Folder of another cluster to bring it to.", show_default=False),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's; else this machine.", show_default=False)
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Fold the updates of each shard of a keyed stream into a new snapshot, by a Spark job with a task for each shard,
    and let retention collect what that covers."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        opened.stream_config(stream)
        spark = _spark("compact", master)
        try:
            from ...pipeline.spark import keyed

            made = keyed.compact(spark, world, stream)
            carried = keyed.carry(spark, world, stream, [os.path.abspath(folder) for folder in to or []])
        finally:
            spark.stop()
        collected = opened.trim(stream)
        if json:
            found = [
                {"shard": one.shard, "position": one.position, "keys": one.keys, "bytes": one.size_bytes}
                for one in made
            ]
            show_json(
                {
                    "snapshots": found,
                    "files_deleted": sum(one.segments for one in collected),
                    "carried": [asdict(one) for one in carried],
                }
            )
        else:
            show_table(
                ["SHARD", "POSITION", "KEYS", "SIZE", "FILES DELETED"],
                [
                    [
                        str(one.shard),
                        str(one.position),
                        str(one.keys),
                        show_size(one.size_bytes),
                        str(gone.segments),
                    ]
                    for one, gone in zip(made, collected, strict=True)
                ],
            )
            for one in carried:
                what = f"{one.keys} keys at {one.position}" if not one.waits else one.waits
                say(f"shard {one.shard} to {one.target}: {what}")


def _spark(what: str, master: str | None) -> Any:
    from ...pipeline.spark import session

    spark = session(f"tailrace {what}", master=master or "local[*]")
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _feed(world: World, folder: str, pipeline: Pipeline) -> None:
    """What a pipeline writes into a stream of this world goes to its cache, too, as what a producer sends."""
    sink = pipeline.sink
    if isinstance(sink, StreamSink) and os.path.realpath(sink.root) == os.path.realpath(folder):
        pipeline.sink = replace(sink, feed=world.shadow)


def _floor(opened: World, name: str) -> Callable[[Mapping[tuple[str, int], int]], None]:
    """Keeps a checkpoint in the world, for retention to wait for: waits_for=("pipeline-NAME",)."""

    def keep(floors: Mapping[tuple[str, int], int]) -> None:
        checkpoints, streams = Checkpoints(opened._store), {stream for stream, _ in floors}
        for stream in streams:
            incarnation = opened._incarnation(stream)
            mine = {shard: at for (of, shard), at in floors.items() if of == stream}
            checkpoints.declare(incarnation, f"pipeline-{name}", dict.fromkeys(mine, 0))
            checkpoints.commit({(incarnation, shard): at for shard, at in mine.items()}, f"pipeline-{name}")

    return keep


def _pipeline(application: str) -> Pipeline:
    found = load_named(application)
    if not isinstance(found, Pipeline):
        raise ConfigError(f"{application} is a {type(found).__name__}, not a Pipeline")
    return found


def _office(name: str, opened: World, stores: list[Coordination]) -> Office:
    return Office(name, stores, StreamLogs(opened.files, SystemClock()), SystemClock())


@contextmanager
def _stores(opened: World, paths: list[str] | None) -> Iterator[list[Coordination]]:
    with ExitStack() as stack:
        if not paths:
            yield [opened._store]
            return
        for path in paths:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        yield [stack.enter_context(SqliteCoordination(path)) for path in paths]


@contextmanager
def _stopping(stop: Any) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets what is under way finish; the second insists."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        threading.Thread(target=stop, name="tailrace stop").start()  # here the lock that it needs may be held

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lines(told: dict[str, Any]) -> list[str]:
    units, oldest = told["units"], told["oldest"]
    lines = [
        f"{told['pipeline']}: {told['state']}; {', '.join(told['streams'])} to {told['sink']}",
        f"backlog: {show_size(told['backlog_bytes'])}, {show_duration(told['backlog_s'])}"
        + (
            f"; oldest {oldest['stream']}/{oldest['shard']} position {oldest['begin']}, {stamp(oldest['time_us'])}"
            if oldest
            else ""
        ),
        f"units: {units['open']} open, {units['held']} held, {units['committed']} to be published, "
        f"{units['failing']} failing",
    ]
    rows = [
        [
            one["site"],
            "out" if one["out"] else "up" if one["up"] else "STUCK" if one["stuck"] else "DOWN",
            str(one["runners"]),
            str(one["units_held"]),
            f"{show_size(one['bytes_per_s'])}/s",
            f"{one['messages_per_s']:,.0f}/s",
            "-" if one["delay_p90_s"] is None else show_duration(one["delay_p90_s"]),
            str(one["refused"]),
            "; ".join([*one["throttled"], *one["problems"].values()])[:80] or "-",
        ]
        for one in told["sites"]
    ]
    if rows:
        head = ["SITE", "STATE", "RUNNERS", "HELD", "RATE", "MESSAGES", "P90 DELAY", "REFUSED", "TROUBLE"]
        lines += table_lines(head, rows)
    lines += [_forecast(told["forecast"]), *_usage(told["usage"])]
    if told["bad_ranges"]:
        lines.append(
            f"bad: {told['bad_ranges']} ranges, {show_size(told['bad_bytes'])}; "
            f"see `tailrace pipeline bad-ranges {told['pipeline']}`"
        )
    lines += [f"failing: {one['unit']}: {one['failures']} times, {one['reason'][:100]}" for one in told["failing"][:3]]
    return lines


def _forecast(told: dict[str, Any]) -> str:
    arriving = f"forecast: {show_size(told['arriving_bytes_per_s'])}/s arrive"
    if not told["capacity_bytes_per_s"]:
        return f"{arriving}; what can be done is not known yet" if told["slots"] else f"{arriving}; nobody is at work"
    drained = "never" if told["drain_s"] is None else f"in {show_duration(told['drain_s'])}"
    return (
        f"{arriving}, {show_size(told['capacity_bytes_per_s'])}/s can be done; drained {drained}; "
        f"{told['slots_needed']} slots hold a delay of {show_duration(told['delay_goal_s'])}, {told['slots']} are there"
    )


def _usage(told: dict[str, Any]) -> list[str]:
    """What was used, of each site and of all, as a table."""
    rows = [
        [
            site,
            f"{one['units']:,}",
            f"{one['messages']:,}",
            show_size(one["input_bytes"]),
            f"{one['rows']:,}",
            show_size(one["output_bytes"]),
            show_duration(one["cpu_s"]),
            show_duration(one["wall_s"]),
            str(one["failed"]),
            str(one["refused"]),
        ]
        for site, one in [*told["sites"].items(), *([("all", told["total"])] if len(told["sites"]) > 1 else [])]
    ]
    head = ["USED BY", "UNITS", "MESSAGES", "INPUT", "ROWS", "OUTPUT", "CPU", "TIME", "FAILED", "REFUSED"]
    return table_lines(head, rows) if rows else []
