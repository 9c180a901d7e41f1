"""The seam between the wire and a cache's backend: what a backend answers, and who may ask.

A service raises Denied, WireRefused, Busy or Closed to say no; the peer raises the same class. Any other error of ours
arrives as PeerFailed with its text and its took_effect; anything else as PeerFailed of which nobody knows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .messages import (
    AttachReply,
    DigestReply,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
)

#: Raises Denied, or lets the call through. Called with the names in the caller's certificate (its URIs, then its DNS
#: names; None without TLS) and the method's name, for every call.
Authorize = Callable[[tuple[str, ...] | None, str], None]


class BackendService(Protocol):
    """Called from several threads at once.

    A mutate or lookup that is meant for another instance is answered with the present one and nothing is done.
    """

    def attach(self, client: str, wants_engine: bool) -> AttachReply: ...

    def mutate(self, instance: int, config_id: int, frame: memoryview) -> MutateReply: ...

    def lookup(self, instance: int, keys: Sequence[bytes], now_s: int) -> LookupReply: ...

    def touch(self, hashes: bytes) -> TouchReply: ...

    def digest(self, shared: Shared) -> DigestReply:
        """Of all partitions."""
        ...

    def list_hashes(self, shared: Shared) -> Iterator[ListPart]:
        """Parts of any size below the message limit; the last one, and only that one, is complete."""
        ...

    def fetch(self, hashes: bytes) -> Iterator[FetchPart]: ...

    def stats(self) -> StatsReply: ...
