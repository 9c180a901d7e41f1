"""Advertising, end to end: queries and clicks arrive in two streams; a pipeline joins them, adds up by campaign and
writes the totals exactly once, though it is killed in the middle; the budgets that are left go into a stream, which
serving processes follow as keys and values.

# > killed in the middle, started again
# > clicks joined and counted: 20000, cents: 990000
# > the same by hand: True
# > columns: 20000 clicks in Parquet
# > serving sees campaign-3 with 404000 cents left
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import tailrace
from tailrace.pipeline import Pipeline, parquet, sqlite_table, stream

WORLD, TOTALS, COLUMNS = (os.path.abspath(f"ads/{name}") for name in ("world", "totals.db", "columns"))
CAMPAIGNS, CLICKS, BUDGET_CENTS = 10, 20_000, 500_000


# ---- the application: what runs in every worker


@cache
def queries() -> Any:
    """Which campaign each query showed: the stream of queries as keys and values, once in each process. An id store is
    how two logs are joined when one of them can be late; Spark's own join of streams keeps each event in its state."""
    return tailrace.open(WORLD).view("queries")


def joined(clicks: pa.Table) -> pa.Table:
    """Clicks with the campaigns of their queries. A query that is not here yet fails the unit, which is then tried
    again a little later: nothing is lost, and nothing counts twice."""
    known = queries()
    rows = [json.loads(value) for value in clicks.column("value").to_pylist()]
    campaigns = [known.get(row["query"].encode()) for row in rows]
    if None in campaigns:
        raise LookupError(f"{campaigns.count(None)} queries are not here yet")
    names = [campaign.decode() for campaign in campaigns]
    return pa.table({"campaign": names, "cents": [row["cents"] for row in rows]})


def by_campaign(clicks: pa.Table) -> pa.Table:
    sums = joined(clicks).group_by("campaign").aggregate([("cents", "count"), ("cents", "sum")])
    return sums.rename_columns(["campaign", "clicks", "cents"])


settings: dict[str, Any] = {"unit_bytes": 40_000, "lease_s": 2.0, "attempts_max": 20, "retry_s": 0.1}
totals = Pipeline(
    "ad-totals",
    source=stream("clicks"),
    transform=by_campaign,
    sink=sqlite_table(TOTALS, "campaigns", key=["campaign"]),
    **settings,
)
columns = Pipeline("ad-columns", source=stream("clicks"), transform=joined, sink=parquet(COLUMNS), **settings)


# ---- the story around it


def run(name: str, engine: str, *options: str) -> "subprocess.Popen[bytes]":
    """`tailrace pipeline run ad_stats.py:totals`, as one would type it."""
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", f"{os.path.abspath(__file__)}:{name}"]
    command += ["--world", WORLD, "--engine", engine, *options]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def counted() -> dict[str, tuple[int, int]]:
    if not os.path.exists(TOTALS):
        return {}
    with sqlite3.connect(TOTALS, timeout=30) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'campaigns'").fetchall():
            return {}
        rows = db.execute("SELECT campaign, clicks, cents FROM campaigns").fetchall()
    return {campaign: (clicks, cents) for campaign, clicks, cents in rows}


def main(engine: str = "processes") -> None:
    os.makedirs("ads")
    with tailrace.open(WORLD) as world:
        by_hand: Counter[str] = Counter()
        with world.producer("clicks", shards=2) as clicks, world.producer("queries", shards=2) as asked:
            for number in range(CLICKS):
                campaign, cents = f"campaign-{number % CAMPAIGNS}", number % 100
                clicks.send(json.dumps({"query": f"q{number}", "cents": cents}).encode())  # may come first
                asked.send(campaign.encode(), key=f"q{number}".encode())
                by_hand[campaign] += cents

        first = run("totals", engine)
        while not counted():  # it has begun …
            assert first.poll() is None, "the pipeline ended by itself"
        first.send_signal(signal.SIGKILL)  # … and is gone
        first.wait()
        assert run("totals", engine, "--until-done").wait() == 0
        assert run("columns", engine, "--until-done").wait() == 0
        print("killed in the middle, started again")

        found = counted()
        clicked, cents = (sum(one) for one in zip(*found.values(), strict=True))
        print(f"clicks joined and counted: {clicked}, cents: {cents}")
        print(f"the same by hand: {dict(by_hand) == {campaign: cents for campaign, (_, cents) in found.items()}}")
        table = ds.dataset(COLUMNS).to_table()
        print(f"columns: {table.num_rows} clicks in Parquet")
        assert pc.sum(table.column("cents")).as_py() == sum(by_hand.values())

        with world.producer("budgets", shards=1) as budgets:
            for campaign, (_, cents) in found.items():
                budgets.send(b"%d" % (BUDGET_CENTS - cents), key=campaign.encode())
        with world.view("budgets") as serving:
            print(f"serving sees campaign-3 with {serving[b'campaign-3'].decode()} cents left")


if __name__ == "__main__":
    main("spark" if "--spark" in sys.argv else "processes")
