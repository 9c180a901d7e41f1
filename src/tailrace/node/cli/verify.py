"""`tailrace verify`: walk the files of streams and say exactly what is wrong with them, by file and byte range."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...errors import Corrupt, TailraceError
from ...streams import Checked, Finding, verify_shard
from ..world import World
from .meter import Meter
from .options import DEFAULT_WORLD, Debug, Json, WorldFolder, examples
from .report import DAMAGED, open_existing, reported, show, show_json
from .units import show_duration, show_size

EPILOG = examples("tailrace verify", "tailrace verify prices clicks", "tailrace verify --json || echo damaged")


def verify(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="STREAM", help="Streams to verify; all of them if none is named.")
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every message of every file against its checksum.

    Damage is flushed bytes that are bad: consumers stop there, and this command ends with exit code 1. A leftover is
    what a crash leaves behind: bytes that were never acknowledged and are never read, which is fine.
    """
    damaged = False
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        names = list(dict.fromkeys(streams)) if streams else opened.streams()
        for name in streams or ():
            with suppress(Corrupt):  # that is for the walk to tell; a stream that is not there ends here
                opened.stream_config(name)
        checked, found = Checked(), list[dict[str, Any]]()
        with Meter("verifying", _size(opened, names)) as meter:
            for finding in _findings(opened, names, checked, meter):
                damaged = damaged or finding.kind == "damage"
                found.append(asdict(finding))
                if not json:
                    show(_line(finding))
            seconds = meter.seconds
        if json:
            show_json({"damaged": damaged, "streams": names, **asdict(checked), "findings": found})
        else:
            kinds = [finding["kind"] for finding in found]
            show(
                f"{len(names)} {'stream' if len(names) == 1 else 'streams'}, {checked.files} files, "
                f"{checked.messages:,} good messages, {show_size(checked.data_bytes)} in {show_duration(seconds)}: "
                f"{kinds.count('damage') or 'no'} damage, {kinds.count('leftover') or 'no'} leftovers"
            )
    if damaged:
        raise typer.Exit(DAMAGED)


def _findings(world: World, names: list[str], checked: Checked, meter: Meter) -> Iterator[Finding]:
    for name in names:
        try:
            shards = list(range(world.stream_config(name).shards))
        except Corrupt as wrong:
            yield Finding("damage", str(wrong), f"streams/{name}/stream.json", 0, None)
            shards = [int(folder) for folder in world.files.list(f"streams/{name}") if folder.isdecimal()]
        for shard in shards:
            yield from verify_shard(world.files, name, shard, checked, meter.add)


def _line(finding: Finding) -> str:
    end = "the end" if finding.to_byte is None else f"{finding.to_byte}"
    return f"{finding.kind:8}  {finding.file}  bytes {finding.from_byte} to {end}: {finding.what}"


def _size(world: World, names: list[str]) -> int | None:
    try:
        return sum(status.end - status.start for name in names for status in world.stream_status(name))
    except TailraceError:  # damaged: then nobody knows how much there is to walk
        return None
