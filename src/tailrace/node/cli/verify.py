"""`tailrace verify`: walk the files of streams and say exactly what is wrong with them, by file and byte range."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...config import TlsConfig
from ...errors import ConfigError, Corrupt, TailraceError
from ...streams import Checked, Finding, verify_shard
from ..world import World
from .across import show_across
from .meter import Meter
from .options import DEFAULT_WORLD, CertificateKey, Debug, Json, Roots, WorldFolder, examples
from .report import DAMAGED, open_existing, reported, show, show_json
from .units import show_duration, show_size

EPILOG = examples(
    "tailrace verify",
    "tailrace verify prices clicks",
    "tailrace verify --json || echo damaged",
    "tailrace verify --across world.toml prices",
)


def verify(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="STREAM", help="Streams to verify; all of them if none is named.")
    ] = None,
    across: Annotated[
        str | None,
        typer.Option(
            "--across",
            metavar="WORLD.TOML",
            help="Compare the clusters of this world instead: every copy with its source.",
            show_default=False,
        ),
    ] = None,
    through: Annotated[
        str, typer.Option("--through", metavar="WAY", help="How clusters are asked: folders, calls, or best of both.")
    ] = "best",
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="FILE", help="For calls between hosts.", show_default=False)
    ] = None,
    key: CertificateKey = None,
    roots: Roots = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every message of every file against its checksum.

    Damage is flushed bytes that are bad: consumers stop there, and this command ends with exit code 1. A leftover is
    what a crash leaves behind: bytes that were never acknowledged and are never read, which is fine.

    With --across: whether all clusters of a world have the same bytes, by hashes, while streams grow. The first byte of
    each copy that differs is told, and the exit code is 1; being behind is no difference.
    """
    if across is not None:
        with reported(as_json=json, debug=debug):
            files = (certificate, key, roots)
            if any(files) and not all(files):
                raise ConfigError("--certificate, --key and --roots go together: say all of them or none")
            tls = TlsConfig(certificate=certificate, key=key, roots=roots) if certificate and key and roots else None
            code = show_across(across, streams or [], through, tls, as_json=json)
        if code:
            raise typer.Exit(code)
        return
    damaged = False
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        names = list(dict.fromkeys(streams)) if streams else opened.streams()
        for name in streams or ():
            with suppress(Corrupt):  # that is for the walk to tell; a stream that is not there ends here
                opened.stream_config(name)
        checked, kinds, found = Checked(), Counter[str](), list[dict[str, Any]]()
        with Meter("verifying", _size(opened, names)) as meter:
            for finding in _findings(opened, names, checked, meter):
                kinds[finding.kind] += 1
                if json:
                    found.append(asdict(finding))
                    continue
                with meter.aside():
                    show(_line(finding))
            seconds = meter.seconds
        damaged = kinds["damage"] > 0
        if json:
            show_json({"damaged": damaged, "streams": names, **asdict(checked), "findings": found})
        else:
            show(
                f"{_count(len(names), 'stream')}, {_count(checked.files, 'file')}, "
                f"{_count(checked.messages, 'good message')}, {show_size(checked.data_bytes)} in "
                f"{show_duration(seconds)}: "
                f"{_count(kinds['damage'], 'damaged place')}, {_count(kinds['leftover'], 'leftover')}"
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


def _count(number: int, what: str) -> str:
    """
    >>> _count(0, "leftover"), _count(1, "file"), _count(1500, "file")
    ('no leftovers', '1 file', '1,500 files')
    """
    return f"{f'{number:,}' if number else 'no'} {what}{'' if number == 1 else 's'}"


def _line(finding: Finding) -> str:
    end = "the end" if finding.to_byte is None else f"{finding.to_byte}"
    return f"{finding.kind:8}  {finding.file}  bytes {finding.from_byte} to {end}: {finding.what}"


def _size(world: World, names: list[str]) -> int | None:
    try:
        return sum(status.end - status.start for name in names for status in world.stream_status(name))
    except TailraceError:  # damaged: then nobody knows how much there is to walk
        return None
