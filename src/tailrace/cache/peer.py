"""How clients and cohorts reach a backend: over the wire, or directly when it lives in the same process."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..wire import (
    AttachReply,
    BackendService,
    DigestReply,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
)


class Pending(Protocol):
    """An answer that is on its way."""

    def result(self) -> MutateReply: ...


class Peer(Protocol):
    """The methods of a backend, with a time limit. Whatever fails is an error of ours and says if it took effect."""

    def attach(self, client: str, wants_engine: bool, *, deadline_s: float | None = None) -> AttachReply: ...

    def mutate_async(
        self, instance: int, config_id: int, frame: memoryview, *, deadline_s: float | None = None
    ) -> Pending: ...

    def lookup(
        self, instance: int, keys: Sequence[bytes], now_s: int, *, deadline_s: float | None = None
    ) -> LookupReply: ...

    def touch(self, hashes: bytes, *, deadline_s: float | None = None) -> TouchReply: ...

    def digest(self, shared: Shared, *, deadline_s: float | None = None) -> DigestReply: ...

    def list_hashes(self, shared: Shared, *, deadline_s: float | None = None) -> Iterator[ListPart]: ...

    def fetch(self, hashes: bytes, *, deadline_s: float | None = None) -> Iterator[FetchPart]: ...

    def stats(self, *, deadline_s: float | None = None) -> StatsReply: ...

    def close(self) -> None: ...


class _Done:
    __slots__ = ("_reply",)

    def __init__(self, reply: MutateReply) -> None:
        self._reply = reply

    def result(self) -> MutateReply:
        return self._reply


class LocalPeer:
    """A backend of this process. Nothing waits, so there are no time limits."""

    def __init__(self, backend: BackendService) -> None:
        self._backend = backend

    def attach(self, client: str, wants_engine: bool, *, deadline_s: float | None = None) -> AttachReply:
        return self._backend.attach(client, wants_engine)

    def mutate_async(
        self, instance: int, config_id: int, frame: memoryview, *, deadline_s: float | None = None
    ) -> Pending:
        return _Done(self._backend.mutate(instance, config_id, frame))

    def lookup(
        self, instance: int, keys: Sequence[bytes], now_s: int, *, deadline_s: float | None = None
    ) -> LookupReply:
        return self._backend.lookup(instance, keys, now_s)

    def touch(self, hashes: bytes, *, deadline_s: float | None = None) -> TouchReply:
        return self._backend.touch(hashes)

    def digest(self, shared: Shared, *, deadline_s: float | None = None) -> DigestReply:
        return self._backend.digest(shared)

    def list_hashes(self, shared: Shared, *, deadline_s: float | None = None) -> Iterator[ListPart]:
        return self._backend.list_hashes(shared)

    def fetch(self, hashes: bytes, *, deadline_s: float | None = None) -> Iterator[FetchPart]:
        return self._backend.fetch(hashes)

    def stats(self, *, deadline_s: float | None = None) -> StatsReply:
        return self._backend.stats()

    def close(self) -> None:
        """The backend is not ours to close."""
