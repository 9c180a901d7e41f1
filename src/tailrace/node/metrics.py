"""What a monitor saw, as Prometheus reads it, and a small door to read it at."""

import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import ConfigError
from ..streams import PERCENTILES

_GAUGES = {
    "position": "where the consumer is",
    "durable_end": "where the shard ends on disk",
    "cached_end": "where the shard ends in the cache",
    "producer_silent_s": "since the producer last said anything",
}
_COUNTERS = {
    "messages": "messages received",
    "bytes": "bytes received",
    "compared_bytes": "bytes compared with the durable files",
    "unequal_bytes": "bytes that differ from the durable files",
}


def text_of(report: Mapping[str, Any]) -> str:
    """The exposition format, version 0.0.4."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    shards = [(f'stream="{one["stream"]}",shard="{one["shard"]}"', one) for one in report["shards"]]
    for kind, names in (("counter", _COUNTERS), ("gauge", _GAUGES)):
        for name, meaning in names.items():
            full = f"tailrace_{name.removesuffix('_s')}{'_seconds' if name.endswith('_s') else ''}"
            full += "_total" if kind == "counter" else ""
            yield f"# HELP {full} {meaning}"
            yield f"# TYPE {full} {kind}"
            yield from (f"{full}{{{labels}}} {one[name]}" for labels, one in shards if one[name] is not None)
    yield "# HELP tailrace_delay_seconds from the producer's clock to the consumer's"
    yield "# TYPE tailrace_delay_seconds summary"
    for labels, one in shards:
        for percent in PERCENTILES:
            seconds = one[f"delay_p{percent:g}_ms"] / 1000
            yield f'tailrace_delay_seconds{{{labels},quantile="{percent / 100:g}"}} {seconds}'
    yield "# HELP tailrace_state 1 for the state that the shard is in"
    yield "# TYPE tailrace_state gauge"
    yield from (f'tailrace_state{{{labels},state="{one["state"]}"}} 1' for labels, one in shards)
    yield "# HELP tailrace_source_bytes_total where bytes came from"
    yield "# TYPE tailrace_source_bytes_total counter"
    yield from (
        f'tailrace_source_bytes_total{{source="{name}"}} {count}' for name, count in report["bytes_from"].items()
    )


def hops_text_of(report: Mapping[str, Any]) -> str:
    """The same format, for the hops of a world."""
    return "\n".join(_hop_lines(report["streams"])) + "\n"


def _hop_lines(streams: list[Mapping[str, Any]]) -> Iterator[str]:
    hops = [
        (f'stream="{one["stream"]}",from="{hop["from"]}",to="{hop["to"]}"', hop)
        for one in streams
        for hop in one["hops"]
    ]
    yield "# HELP tailrace_hop_delay_seconds that a hop of the copy tree adds, of the newest messages"
    yield "# TYPE tailrace_hop_delay_seconds summary"
    for labels, hop in hops:
        for quantile, name in (("0.5", "delay_p50_ms"), ("0.99", "delay_p99_ms")):
            if hop[name] is not None:
                yield f'tailrace_hop_delay_seconds{{{labels},quantile="{quantile}"}} {hop[name] / 1000}'
    yield "# HELP tailrace_hop_behind_bytes that the lower end of a hop lacks"
    yield "# TYPE tailrace_hop_behind_bytes gauge"
    yield from (f"tailrace_hop_behind_bytes{{{labels}}} {hop['behind_bytes']}" for labels, hop in hops)
    yield "# HELP tailrace_hop_state 1 for the state that the hop is in"
    yield "# TYPE tailrace_hop_state gauge"
    yield from (f'tailrace_hop_state{{{labels},state="{hop["state"]}"}} 1' for labels, hop in hops)
    yield "# HELP tailrace_producer_state 1 for the state that the stream's producer is in"
    yield "# TYPE tailrace_producer_state gauge"
    yield from (
        f'tailrace_producer_state{{stream="{one["stream"]}",cluster="{one["source"]}",state="{one["producer"]}"}} 1'
        for one in streams
    )


class MetricsDoor:
    """Answers GET /metrics with whatever `text` says, from threads of its own."""

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"{address!r} is no address to listen at; use HOST:PORT, as in 127.0.0.1:9464")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.split("?")[0] == "/metrics"
                body = text().encode() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Not on our standard error, which people look at."""

        try:
            self._server = ThreadingHTTPServer((host, int(port)), Handler)
        except OSError as seen:
            raise ConfigError(f"cannot listen at {address}: {seen}") from seen
        self.address = "{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(target=self._server.serve_forever, name="tailrace metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
