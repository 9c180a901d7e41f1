"""The note in a cluster's folder that says which cluster of which world it is: cluster.json (docs/formats/world.md)."""

import json
import os
from dataclasses import dataclass

from ..errors import TailraceError
from ..files import PosixFiles
from ..model import check_name

_NOTE, _VERSION = "cluster.json", 1


@dataclass(frozen=True, slots=True)
class Membership:
    """Which cluster of which world a folder is."""

    cluster: str
    world_file: str


def read_membership(folder: str) -> Membership | None:
    """None: it belongs to no world, or the note makes no sense."""
    try:
        with open(os.path.join(folder, _NOTE), encoding="utf-8") as file:
            table = json.load(file)
        if table["version"] != _VERSION:
            return None
        path = os.path.normpath(os.path.join(folder, table["world_file"]))
        return Membership(check_name(table["cluster"], "cluster"), path)
    except (OSError, ValueError, KeyError, TypeError, TailraceError):
        return None


def write_membership(folder: str, cluster: str, world_file: str) -> None:
    """The path is kept relative, so that both may be moved, or mounted elsewhere, together."""
    path = os.path.abspath(world_file)
    if read_membership(folder) != Membership(cluster, path):
        table = {"version": _VERSION, "cluster": cluster, "world_file": os.path.relpath(path, os.path.realpath(folder))}
        PosixFiles(folder).publish(_NOTE, (json.dumps(table) + "\n").encode())
