"""The pipeline that the tests run in processes of their own, and kill."""

import os
import signal
import threading

import pyarrow as pa

from tailrace.pipeline import Pipeline, parquet, stream

GATE = os.environ.get("PIPELINE_GATE", "/nowhere")
OUT = os.environ.get("PIPELINE_OUT", "out")


def count(messages: pa.Table) -> pa.Table:
    """Messages and bytes by campaign. Some of them are poison: one makes it raise, another ends the process."""
    while os.path.exists(GATE):  # a test holds this site back
        threading.Event().wait(0.01)
    values = messages.column("value").cast(pa.string())
    for value in values.to_pylist():
        if value.startswith("raise"):
            raise ValueError(f"cannot read {value}")
        if value.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
    campaign = pa.chunked_array([pa.array([value.split(" ")[0] for value in values.to_pylist()], pa.string())])
    table = pa.table({"campaign": campaign, "n": values.cast(pa.string())})
    return table.group_by("campaign").aggregate([("n", "count")]).rename_columns(["campaign", "n"])


pipeline = Pipeline(
    "counts",
    source=stream("clicks"),
    transform=count,
    sink=parquet(OUT),
    unit_bytes=int(os.environ.get("PIPELINE_UNIT", "20000")),
    lease_s=2.0,
    local_eta_s=3.0,
    site_eta_s=6.0,
    attempts_max=2,
    retry_s=0.05,
)
