"""A stream's settings as they travel with its copies, and the note that a stream is a copy.

A copy has the settings and the incarnation of its origin: keys of chunks, and whose position a position is, hang on
them. Its retention may be changed where it lies. The note keeps producers away from it: bytes that came into being in
two places could never be told apart again.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

from ..config import StreamConfig, decode
from ..errors import ConfigError, Fenced, FileMissing, FileProblem, NameRefused, Superseded, WireRefused
from ..files import Files
from ..files.origins import read_origin, write_origin
from ..model import check_name

VERSION = 1
_TRIES = 100
_SHARD = re.compile(r"[0-9]{5}")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    incarnation: str
    config: StreamConfig
    raw: bytes

    @classmethod
    @lru_cache(maxsize=1024)  # they are looked at again and again, and seldom change
    def parse(cls, raw: bytes, stream: str) -> "StreamSettings":
        try:
            table = json.loads(raw)
            if table.pop("version") != VERSION:
                raise ValueError("another version")
            incarnation = check_name(table.pop("incarnation"), "incarnation")
            return cls(incarnation, decode(StreamConfig, table), bytes(raw))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError, NameRefused) as wrong:
            raise WireRefused(f"the settings of the stream {stream!r} make no sense: {wrong}") from None


def read_settings(files: Files, stream: str) -> StreamSettings | None:
    """None: there is no such stream here."""
    try:
        return StreamSettings.parse(bytes(files.read(f"streams/{check_name(stream, 'stream')}/stream.json")), stream)
    except FileMissing:
        return None


def adopt(files: Files, stream: str, origin: str, settings: StreamSettings) -> StreamSettings:
    """Make the stream a copy with these settings, if it is not one yet; the settings that hold here. Superseded: what
    is here is newer. Whoever sends the old one has not heard yet, and two parents would delete each other's copy by
    turns."""
    here = read_settings(files, stream)
    if here is not None and here.incarnation == settings.incarnation and read_origin(files, stream) is not None:
        return here  # nearly always
    with _alone(files):
        here = read_settings(files, stream)
        if here is not None and read_origin(files, stream) is None:
            raise WireRefused(
                f"the stream {stream!r} is produced in this cluster, so it takes no copy from {origin}; give one of "
                "them another name"
            )
        if here is not None and here.incarnation == settings.incarnation:
            return here  # another writer was faster
        if here is not None and here.incarnation > settings.incarnation:
            raise Superseded(f"the stream {stream!r} was made anew, and here is the new one; the old one is not taken")
        _clear(files, stream)
        files.make_folder(f"streams/{stream}")
        write_origin(files, stream, origin)
        files.publish(f"streams/{stream}/stream.json", settings.raw, replace=False)
        found = read_settings(files, stream)
    if found is None or found.incarnation != settings.incarnation:
        raise WireRefused(f"the stream {stream!r} was made anew while its copy began; open the copy again")
    return found


def check_incarnation(files: Files, stream: str, incarnation: str) -> None:
    """Superseded: what is here is another stream of the name. To be asked while the shard's folder is held: whoever
    clears the stream away takes its settings first, then claims each shard."""
    here = read_settings(files, stream)
    if here is None or here.incarnation != incarnation:
        raise Superseded(f"the stream {stream!r} was made anew while its copy began; the old one is not taken")


@contextmanager
def _alone(files: Files) -> Iterator[None]:
    """While it is entered no other writer of this cluster, in whichever process, makes a stream a copy: what one has
    found, and begun to fill, the next must not clear away."""
    with ExitStack() as held:
        for _ in range(_TRIES):
            claim = files.claim("streams")
            held.callback(claim.close)
            with suppress(Fenced):  # somebody claimed it after us: it is their turn
                held.enter_context(claim.hold())
                break
        else:
            raise FileProblem(f"streams was claimed by others {_TRIES} times; try again")
        yield


def _clear(files: Files, stream: str) -> None:
    """Of a stream that its origin has deleted and made anew, the old copy goes. Its operations, of whichever process,
    are shut out shard by shard, or they could go on in the new one's folders."""
    folder = f"streams/{stream}"
    with suppress(FileMissing):
        files.delete(f"{folder}/stream.json")
    shards = [name for name in files.list(folder) if _SHARD.fullmatch(name)]  # also of one who ended before it was done
    for name in shards:
        files.claim(f"{folder}/{name}").close()
    if shards or files.list(folder):
        files.delete_folder(folder)
