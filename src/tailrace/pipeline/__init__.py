"""Ubiq: streams turned into work units, each processed and committed exactly once, by any number of sites.

    pipeline = Pipeline("ad-stats", source=stream("clicks"), transform=by_campaign, sink=parquet("out/ad-stats"))

`spark/` is the only place that imports pyspark.
"""

from .pipeline import Pipeline, Source, stream
from .settings import PipelineConfig
from .sinks import Sink, into_stream, parquet, postgres_table, sqlite_table

__all__ = [
    "Pipeline",
    "PipelineConfig",
    "Sink",
    "Source",
    "into_stream",
    "parquet",
    "postgres_table",
    "sqlite_table",
    "stream",
]
