"""The name of a message file: when it was made, and where in its shard it begins.

Both numbers have a fixed width, so names sort in order of creation, and the base of the next file of the same track
says how long this one must become. A shard has two tracks, `data` and `index`; each is one continuous run of bytes
over all its files, and the files of one creation time belong together.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Track = Literal["data", "index"]
TRACKS: tuple[Track, ...] = get_args(Track)

_NUMBER_MAX = 2**63 - 1
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.(data|index)")


@dataclass(frozen=True, slots=True, order=True)
class MessageFile:
    """
    >>> MessageFile(created_us=7, base=4096, track="data").name
    '00000000000000000007-00000000000000004096.data'
    >>> MessageFile.parse("00000000000000000007-00000000000000004096.data")
    MessageFile(created_us=7, base=4096, track='data')
    >>> MessageFile.parse("stream.json") is None
    True
    """

    created_us: int
    base: int
    track: Track

    @property
    def name(self) -> str:
        return f"{self.created_us:020d}-{self.base:020d}.{self.track}"

    @classmethod
    def parse(cls, name: str) -> "MessageFile | None":
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        created_us, base = int(match[1]), int(match[2])
        if max(created_us, base) > _NUMBER_MAX:  # not a name of ours: the format's numbers end here
            return None
        return cls(created_us, base, "data" if match[3] == "data" else "index")
