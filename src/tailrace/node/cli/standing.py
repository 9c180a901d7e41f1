"""How a stream stands: its settings, its shards, its checkpoints; as plain values and as text."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...config import encode
from ...streams import ShardStatus
from ..world import World
from .render import stamp
from .report import show, show_table
from .units import show_duration, show_size


def describe_shards(shards: Sequence[ShardStatus]) -> dict[str, Any]:
    """All shards as one."""
    newest_us = max((shard.newest_us for shard in shards if shard.newest_us is not None), default=None)
    return {
        "messages": sum(shard.messages for shard in shards),
        "files": sum(shard.files for shard in shards),
        "size_bytes": sum(shard.size_bytes for shard in shards),
        "newest": None if newest_us is None else stamp(newest_us),
    }


def describe_stream(world: World, stream: str) -> dict[str, Any]:
    config, shards = world.stream_config(stream), world.stream_status(stream)
    ends = {shard.shard: shard.end for shard in shards}
    checkpoints = []
    for name, positions in sorted(world.checkpoints(stream).items()):
        lags = {shard: max(0, ends.get(shard, 0) - position) for shard, position in positions.items()}
        per_shard = [
            {"shard": shard, "position": position, "lag_bytes": lags[shard]} for shard, position in positions.items()
        ]
        checkpoints.append({"checkpoint": name, "lag_bytes": sum(lags.values()), "shards": per_shard})
    described = [
        {**asdict(shard), "newest": None if shard.newest_us is None else stamp(shard.newest_us)} for shard in shards
    ]
    snapshots = [
        {**asdict(one), "created": stamp(one.created_us), "behind_bytes": max(0, ends.get(one.shard, 0) - one.position)}
        for one in world.snapshots(stream)
    ]
    told = {"stream": stream, "settings": encode(config), "shards": described}
    return {**told, "checkpoints": checkpoints, "snapshots": snapshots}


def show_stream(described: dict[str, Any]) -> None:
    settings = described["settings"]
    show(f"stream             {described['stream']}")
    show(f"shards             {settings['shards']}")
    show(f"a new file after   {show_size(settings['file_bytes'])} or {show_duration(settings['file_s'])}")
    show(f"largest message    {show_size(settings['message_bytes_max'])}")
    show(f"keeps              {_kept(settings['retention'])}")
    show("")
    now_us = time.time_ns() // 1000
    show_table(
        ["SHARD", "START", "END", "MESSAGES", "FILES", "BYTES", "NEWEST"],
        [
            [
                str(shard["shard"]),
                str(shard["start"]),
                str(shard["end"]),
                f"{shard['messages']:,}",
                str(shard["files"]),
                show_size(shard["size_bytes"]),
                "-" if shard["newest_us"] is None else f"{show_duration((now_us - shard['newest_us']) / 1e6)} ago",
            ]
            for shard in described["shards"]
        ],
    )
    if described["checkpoints"]:
        show("")
        show_table(
            ["CHECKPOINT", "BEHIND", "BYTES BEHIND", "POSITIONS"],
            [
                [
                    checkpoint["checkpoint"],
                    show_size(checkpoint["lag_bytes"]),
                    str(checkpoint["lag_bytes"]),
                    " ".join(f"{shard['shard']}:{shard['position']}" for shard in checkpoint["shards"]),
                ]
                for checkpoint in described["checkpoints"]
            ],
        )
    if described["snapshots"]:
        show("")
        show_table(
            ["SNAPSHOT OF", "POSITION", "BYTES", "MADE", "UPDATES BEHIND IT"],
            [
                [
                    str(one["shard"]),
                    str(one["position"]),
                    show_size(one["size_bytes"]),
                    f"{show_duration((now_us - one['created_us']) / 1e6)} ago",
                    show_size(one["behind_bytes"]),
                ]
                for one in described["snapshots"]
            ],
        )


def _kept(retention: dict[str, Any]) -> str:
    """
    >>> _kept({"waits_for": []})
    'everything'
    >>> _kept({"age_s": 604800.0, "size_bytes": 1 << 30, "waits_for": ["billing"]})
    'at most 7.0 d, at most 1.0 GiB a shard, and what billing has not passed'
    >>> _kept({"waits_for": [], "keeps_snapshots": 2})
    'what the newest 2 snapshots need'
    """
    parts = []
    if "age_s" in retention:
        parts.append(f"at most {show_duration(retention['age_s'])}")
    if "size_bytes" in retention:
        parts.append(f"at most {show_size(retention['size_bytes'])} a shard")
    if retention["waits_for"]:
        parts.append(f"{'and ' if parts else ''}what {', '.join(retention['waits_for'])} has not passed")
    if "keeps_snapshots" in retention:
        number = retention["keeps_snapshots"]
        newest = "newest snapshot needs" if number == 1 else f"newest {number} snapshots need"
        parts.append(f"{'and ' if parts else ''}what the {newest}")
    return ", ".join(parts) or "everything"
