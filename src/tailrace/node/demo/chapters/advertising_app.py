"""The application of the chapter on advertising: what its processes run.

    queries, clicks ──> Spark: clean, join, add up ──> Parquet ──> budgets ──> a stream ──> serving, as keys and values

The pipeline is what runs in Spark's workers. `publish` and `serve` are processes of their own.
"""

import json
import os
import signal
import sys
import threading
from functools import cache
from typing import Any

from ....pipeline import Pipeline, parquet, stream
from ...stopping import stop_asked
from ...world import open_world

BUDGET_CENTS = 1_000_000  # of each campaign
_POLL_S = 0.05


def world_folder() -> str:
    return os.path.join(os.environ["TAILRACE_DEMO_FOLDER"], "world")


def columns_folder() -> str:
    return os.path.join(os.environ["TAILRACE_DEMO_FOLDER"], "columns")


# ---- in Spark


@cache
def _queries() -> Any:
    """Which campaign each query showed, as keys and values: an id store, which each worker follows by itself. So a
    click finds its query wherever the two are in their streams."""
    return open_world(world_folder()).view("queries")


def ad_stats(messages: Any) -> Any:
    """Queries and clicks by campaign: lines that cannot be read are left out, clicks get the campaigns of their
    queries. A query that is not here yet fails the unit, which is then tried again."""
    import pyarrow as pa
    import pyarrow.compute as pc

    asked = messages.filter(pc.equal(messages.column("stream"), "queries")).column("value")
    clicks = messages.filter(pc.equal(messages.column("stream"), "clicks")).column("value")
    known, found = _queries(), list[tuple[bytes, int, int, int]]()
    found += [(campaign, 1, 0, 0) for campaign in asked.to_pylist()]
    for raw in clicks.to_pylist():
        try:
            click = json.loads(raw)
            query, cents = click["query"].encode(), int(click["cents"])
        except (ValueError, KeyError, TypeError):
            continue
        if (campaign := known.get(query)) is None:
            raise LookupError(f"query {query.decode()} is not here yet")
        found.append((campaign, 0, 1, cents))
    if not found:
        return None
    names = ("campaign", "queries", "clicks", "cents")
    table = pa.table({name: pa.array(column) for name, column in zip(names, zip(*found, strict=True), strict=True)})
    table = table.set_column(0, "campaign", table.column("campaign").cast(pa.string()))
    sums = table.group_by("campaign").aggregate([(name, "sum") for name in names[1:]])
    return sums.rename_columns(names)


def __getattr__(name: str) -> Any:
    if name != "pipeline":
        raise AttributeError(name)
    return Pipeline(
        "ad-stats",
        source=stream("queries", "clicks"),
        transform=ad_stats,
        sink=parquet(columns_folder()),
        unit_bytes=256 << 10,
        lease_s=3.0,
        attempts_max=20,
        retry_s=0.1,
    )


# ---- beside it


def totals(columns: dict[str, Any], folder: str) -> dict[str, list[int]]:
    """All that is published by now, by campaign: queries, clicks, cents. `columns` keeps what was read before; outputs
    never change."""
    import pyarrow.parquet as pq

    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if name.startswith("part-") and name not in columns:
                columns[name] = pq.read_table(os.path.join(folder, name), partitioning=None).to_pylist()
    found: dict[str, list[int]] = {}
    for rows in columns.values():
        for row in rows:
            sums = found.setdefault(row["campaign"], [0, 0, 0])
            for place, name in enumerate(("queries", "clicks", "cents")):
                sums[place] += row[name]
    return found


def update(queries: int, clicks: int, cents: int) -> dict[str, Any]:
    """What serving has to know of a campaign."""
    ctr = round(clicks / queries, 6) if queries else 0.0
    return {"queries": queries, "clicks": clicks, "ctr": ctr, "left_cents": BUDGET_CENTS - cents}


def publish(over: threading.Event) -> None:
    """Budgets and click-through rates into the stream `budgets`, as they change. What counts is the last value of each
    key, so one that was killed begins again and nothing is wrong."""
    columns: dict[str, Any] = {}
    sent: dict[str, list[int]] = {}
    with open_world(world_folder()) as world, world.producer("budgets", shards=1, buffer_s=0.01) as producer:
        while not over.wait(_POLL_S):
            for campaign, sums in totals(columns, columns_folder()).items():
                if sent.get(campaign) != sums:
                    producer.send(json.dumps(update(*sums)).encode(), key=campaign.encode())
                    sent[campaign] = sums


def serve(over: threading.Event) -> None:
    """Follow the budgets as keys and values; tell what is known whenever that changes."""
    told: dict[str, Any] = {}
    with open_world(world_folder()) as world, world.view("budgets") as view:
        while not over.wait(_POLL_S):
            now = {key.decode(): json.loads(value) for key, value in view.items()}
            if now != told:
                print(json.dumps(now), flush=True)
                told = now


def main() -> None:
    over = stop_asked(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the story ends us in order
    {"publish": publish, "serve": serve}[sys.argv[1]](over)


if __name__ == "__main__":
    main()
