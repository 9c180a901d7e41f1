"""`tailrace verify --across`: what came of comparing the clusters of a world, for a person or a program."""

from dataclasses import asdict

from ...config import TlsConfig
from ...copytree import Compared, Difference
from ...errors import ConfigError
from ..across import WAYS, verify_across
from .meter import Meter
from .report import DAMAGED, REFUSED, say, show, show_json, show_table
from .units import show_duration, show_size


def show_across(path: str, streams: list[str], through: str, tls: TlsConfig | None, *, as_json: bool) -> int:
    """The exit code."""
    way = next((way for way in WAYS if way == through), None)
    if way is None:
        raise ConfigError(f"--through {through}: use {', '.join(WAYS)}")
    with Meter("comparing", None) as meter:
        verdict = verify_across(path, streams, way=way, tls=tls, on_progress=meter.add)
        seconds = meter.seconds
    together = verdict.together
    if as_json:
        show_json(
            {
                "equal": not together.differences,
                "complete": not together.problems,
                "ways": verdict.ways,
                "streams": {name: _described(found) for name, found in verdict.streams.items()},
            }
        )
    else:
        rows = [
            [
                name,
                cluster,
                verdict.ways.get(cluster, "-"),
                show_size(count),
                show_size(found.behind_bytes.get(cluster, 0)),
                "DIFFERS" if any(one.cluster == cluster for one in found.differences) else "equal",
            ]
            for name, found in verdict.streams.items()
            for cluster, count in found.compared_bytes.items()
        ]
        show_table(["STREAM", "COPY IN", "BY", "COMPARED", "BEHIND", ""], rows)
        for one in together.differences:
            show(_line(one))
        for cluster, problem in together.problems.items():
            say(f"{cluster} was not compared: {problem}")
        count = sum(together.compared_bytes.values())
        show(f"{show_size(count)} in {show_duration(seconds)}: {len(together.differences) or 'no'} differences")
    return DAMAGED if together.differences else REFUSED if together.problems else 0


def _described(found: Compared) -> dict[str, object]:
    return {
        "compared_bytes": found.compared_bytes,
        "behind_bytes": found.behind_bytes,
        "differences": [asdict(one) for one in found.differences],
        "problems": {cluster: str(problem) for cluster, problem in found.problems.items()},
    }


def _line(one: Difference) -> str:
    """
    >>> _line(Difference("eu", "prices", 3, "the bytes differ", "1-0.data", 17, 117))
    'eu: prices/3, byte 17 of 1-0.data (position 117): the bytes differ'
    """
    place = f"{one.stream}/{one.shard}"
    if one.file is not None:
        place += f", {one.file}" if one.offset is None else f", byte {one.offset} of {one.file}"
    if one.position is not None:
        place += f" (position {one.position})"
    return f"{one.cluster}: {place}: {one.what}"
