"""A pipeline: what a user writes down, and how a site runs it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from ..coordination import Coordination
from ..env import Clock, SystemClock
from ..errors import ConfigError
from ..files import Files, PosixFiles
from ..model import check_name
from .code import Code
from .logs import StreamLogs
from .runner import Runner
from .settings import PipelineConfig
from .sinks import Sink
from .sinks.interface import Claimed
from .site import Site
from .staging import Staging
from .state import State
from .work import Job, Performer, Transform
from .workers import InlineWorker, ProcessWorker, Worker

Engine = Literal["inline", "processes", "spark"]
Begin = Literal["earliest", "latest"] | datetime


@dataclass(frozen=True, slots=True)
class Source:
    streams: tuple[str, ...]
    start: Begin = "earliest"


def stream(*names: str, start: Begin = "earliest") -> Source:
    """The messages of one or more streams; in shards that the pipeline has not seen, from `start` on."""
    if not names:
        raise ConfigError("stream() needs the name of a stream")
    return Source(tuple(check_name(name, "stream") for name in dict.fromkeys(names)), start)


class Pipeline:
    """
    transform: a function from an Arrow table to an Arrow table (or record batch, dict, or None). It gets the messages
        of one unit, some megabytes, with the columns key, value, timestamp, shard, position; and `stream` if there are
        several. Messages do not depend on each other, and it has no effects elsewhere.
    frame: instead of it, a function from a Spark DataFrame to a Spark DataFrame, for the messages of one unit.
    sink: where the output goes: parquet(…), sqlite_table(…), postgres_table(…), or your own.
    deterministic: whether doing a unit again gives the same output. If not, name folders at other sites in `replicas`:
        an output is copied there before its unit is committed.
    Settings are those of PipelineConfig, as in unit_bytes=64 << 20.
    """

    def __init__(
        self,
        name: str,
        *,
        source: Source,
        sink: Sink,
        transform: Transform | None = None,
        frame: Callable[..., Any] | None = None,
        deterministic: bool = True,
        replicas: Sequence[str] = (),
        config: PipelineConfig | None = None,
        **settings: Any,
    ) -> None:
        self.name = check_name(name, "pipeline")
        if (transform is None) == (frame is None):
            raise ConfigError(f"pipeline {name}: give it a transform (Arrow) or a frame (Spark), one of the two")
        if isinstance(source, str):
            raise ConfigError(f"pipeline {name}: source={source!r}: use stream({source!r})")
        self.source, self.sink, self.transform, self.frame = source, sink, transform, frame
        self.deterministic = deterministic
        self.replicas = tuple(os.path.abspath(os.fspath(folder)) for folder in replicas)
        try:
            self.config = replace(config or PipelineConfig(), **settings)
        except TypeError as wrong:
            raise ConfigError(f"pipeline {name}: {wrong}") from None

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(self.source.streams)} to {self.sink.place}>"

    def staging(self, root: str) -> Staging:
        default = os.path.join(root, "pipelines", self.name, "staging")
        return Staging(self.sink.staging_folder(default), self.replicas)

    def job(self, root: str) -> Job:
        """With the name of the function, for processes that load it themselves."""
        assert self.transform is not None
        return replace(self.job_without_code(root), transform=Code.of(self.transform))

    def job_without_code(self, root: str) -> Job:
        return Job(
            self.name,
            os.path.abspath(root),
            Code("", ""),
            self.staging(root),
            self.config.batch_bytes,
            len(self.source.streams),
            self.config.worker_memory_bytes,
        )

    def worker(
        self, root: str, engine: Engine = "processes", slots: int | None = None, master: str | None = None
    ) -> Worker:
        if engine == "spark":
            from .spark.units import SparkWorker

            return SparkWorker(self, root, master=master, slots=slots)
        if self.frame is not None:
            raise ConfigError(f"pipeline {self.name} has a frame, which only Spark can run; use --engine spark")
        if engine == "inline":
            return InlineWorker(Performer(self.job_without_code(root), self.transform))
        return ProcessWorker(self.job(root), slots or len(os.sched_getaffinity(0)), self.config.site_eta_s)

    def runner(
        self,
        root: str,
        stores: Sequence[Coordination],
        *,
        site: str = "local",
        worker: Worker | None = None,
        weight: float | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
        **hooks: Any,
    ) -> Runner:
        """A runner of a site whose message files lie under `root`, with the pipeline's state in `stores`."""
        clock = clock or SystemClock()
        staging = self.staging(root)
        self.sink.prepare()
        if isinstance(self.sink, Claimed):
            self.sink.claim(self.name)
        staging.prepare()
        worker = worker or self.worker(root)
        made = Site(
            state=State(self.name, stores, clock),
            streams=dict.fromkeys(self.source.streams, self.source.start),
            sink=self.sink,
            staging=staging,
            logs=StreamLogs(files or PosixFiles(root), clock),
            site=site,
            weight=weight or float(worker.slots),
            config=self.config,
            clock=clock,
            deterministic=self.deterministic,
        )
        return Runner(made, worker, clock, **hooks)
