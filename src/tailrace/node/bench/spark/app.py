"""The functions that the benchmark of pipelines runs, in a module that every process can import."""

import os
import threading
from typing import Any

from ....pipeline import Pipeline, parquet, stream

KEY_BYTES = 13  # of a line: its campaign


def by_campaign(messages: Any) -> Any:
    """A partial GROUP BY over raw messages: lines by campaign."""
    import pyarrow as pa
    import pyarrow.compute as pc

    campaign = pc.binary_slice(messages.column("value"), 0, KEY_BYTES)
    return pa.table({"campaign": campaign}).group_by("campaign", use_threads=False).aggregate([([], "count_all")])


def heavier(messages: Any) -> Any:
    """The same with work to do, which two sites can share; it begins when the gate is open."""
    import pyarrow.compute as pc

    pause = threading.Event()
    while os.path.exists(os.environ.get("TAILRACE_BENCH_GATE", "")):
        pause.wait(0.005)
    for _ in range(6):
        pc.count_substring(messages.column("value"), b"never there")
    return by_campaign(messages)


def by_time(messages: Any) -> Any:
    """Who did it, and how many messages of which hundredth of a second."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pause = threading.Event()
    while os.path.exists(os.environ.get("TAILRACE_BENCH_GATE", "")):
        pause.wait(0.005)
    sent_us = pc.cast(messages.column("timestamp"), pa.int64())
    sent_us = pc.multiply(pc.divide(sent_us, 10_000), 10_000)
    found = pa.table({"sent_us": sent_us}).group_by("sent_us", use_threads=False).aggregate([([], "count_all")])
    site = pa.array([os.environ["TAILRACE_BENCH_SITE"]] * found.num_rows)
    return pa.table({"site": site, "sent_us": found.column("sent_us"), "n": found.column("count_all")})


def nothing(messages: Any) -> None:
    """No work and no output: what a unit costs by itself."""


def site() -> Pipeline:
    """The pipeline of a site in a process of its own, as the environment describes it."""
    return Pipeline(
        "bench",
        source=stream("lines"),
        transform=heavier,
        sink=parquet(os.environ["TAILRACE_BENCH_OUT"]),
        unit_bytes=int(os.environ.get("TAILRACE_BENCH_UNIT", str(4 << 20))),
        lease_s=2.0,
    )


def outage_site() -> Pipeline:
    """The same, where sites go out: quick to find that out, since the benchmark is short."""
    return Pipeline(
        "bench",
        source=stream("lines"),
        transform=by_time,
        sink=parquet(os.environ["TAILRACE_BENCH_OUT"]),
        lease_s=2.0,
        local_eta_s=1.0,
        site_eta_s=3.0,
    )


def __getattr__(name: str) -> Any:
    if name == "pipeline":  # made when it is asked for: only then is there an environment for it
        return site()
    if name == "outages":
        return outage_site()
    raise AttributeError(name)
