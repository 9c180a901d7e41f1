"""What one does with a pipeline from outside: look at it, drain it, mend it, rebuild it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..coordination import Coordination, put
from ..env import Clock
from ..errors import StreamMissing, TailraceError
from .logs import Logs
from .ranges import ByteRange
from .rebuilding import Recovered, rebuild_state
from .sinks import Sink
from .state import State
from .status import summarise
from .tracking import Report


class PipelineMissing(TailraceError):
    """No pipeline of this name has ever run on this state."""


def describe(state_store: Coordination, pipeline: str, streams: Mapping[str, Any], place: str) -> None:
    """Note what a pipeline reads and where it writes, for those who look at it by its name."""
    about = json.dumps({"streams": list(streams), "sink": place}).encode()
    key = f"pipelines/{pipeline}/about"
    found = state_store.get(key)
    if found is None or found.value != about:
        put(state_store, key, about)


def names(store: Coordination) -> list[str]:
    found = [entry.key.split("/") for entry in store.range("pipelines/").entries]
    return sorted({words[1] for words in found if words[2] == "layout"})


class Office:
    def __init__(self, pipeline: str, stores: list[Coordination], logs: Logs, clock: Clock) -> None:
        if stores[0].get(f"pipelines/{pipeline}/layout") is None:
            known = ", ".join(names(stores[0])) or "none yet"
            raise PipelineMissing(f"there is no pipeline {pipeline!r} here; there are: {known}")
        self.state = State(pipeline, stores, clock)
        about = stores[0].get(f"pipelines/{pipeline}/about")
        self.about: dict[str, Any] = json.loads(about.value) if about else {"streams": [], "sink": ""}
        self._logs, self._clock = logs, clock

    def status(self) -> dict[str, Any]:
        pages = list(self.state.pages().values())
        reports: dict[tuple[str, int], Report] = {}
        for stream in self.about["streams"]:
            with suppress(StreamMissing):
                for shard in range(self._logs.shards(stream)):
                    with suppress(TailraceError):
                        reports[stream, shard] = self._logs.report("here", stream, shard)
        created = {key: shard.created for page in pages for key, shard in page.shards.items()}
        oldest_us = {}
        for key, report in reports.items():
            begin = created.get(key, report.begin)
            if report.end > begin and report.files:
                oldest_us[key] = self._logs.time_us(ByteRange(*key, report.files[-1], begin, report.end))
        told = summarise(
            self.state.pipeline,
            pages,
            self.state.members(),
            reports,
            oldest_us,
            self._clock.time_us(),
            draining=self.state.draining,
            usage=self.state.usage(),
        )
        return {**told, "streams": self.about["streams"], "sink": self.about["sink"]}

    def rebuild(self, sink: Sink, streams: Mapping[str, Any], site: str) -> Recovered:
        return rebuild_state(self.state, sink, self._logs, streams, site, self._clock)
