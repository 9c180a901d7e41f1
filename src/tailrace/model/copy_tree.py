"""Per stream: which cluster copies from which.

Always holds: every cluster but the source has exactly one cluster it copies from, and following these leads to the
source. What breaks this raises ConfigError.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from ..errors import ConfigError
from .names import refuse_bad_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """An edge of the tree: bytes go from upstream to downstream."""

    upstream: str
    downstream: str
    bytes_per_s_max: float = math.inf  # of both layers together; only a leaf that catches up is held back
    joining: bool = False  # downstream has not been at the head yet: others copy from it only if they must

    def __post_init__(self) -> None:
        refuse_bad_name(self.upstream, "cluster")
        refuse_bad_name(self.downstream, "cluster")
        if not self.bytes_per_s_max > 0:
            raise ConfigError(f"bytes_per_s_max={self.bytes_per_s_max!r}: use more than 0")


@dataclass(frozen=True, kw_only=True)  # without slots, for the indexes below
class CopyTree:
    """
    >>> tree = CopyTree(stream="prices", source="us", hops=(Hop(upstream="us", downstream="eu"),
    ...                                                     Hop(upstream="eu", downstream="uk")))
    >>> tree.upstream("uk"), tree.downstream("us"), tree.depth("uk"), tree.upstream("us")
    ('eu', ('eu',), 2, None)
    """

    stream: str
    source: str
    hops: tuple[Hop, ...] = ()

    def __post_init__(self) -> None:
        refuse_bad_name(self.stream, "stream")
        refuse_bad_name(self.source, "cluster")
        if len(self._hops) != len(self.hops) or self.source in self._hops:
            raise ConfigError(f"copy tree of {self.stream}: a cluster copies from two others; it must be from one")
        for name in self._hops:
            seen = {name}
            while name != self.source:
                if name not in self._hops or (name := self._hops[name].upstream) in seen:
                    raise ConfigError(f"copy tree of {self.stream}: {name} has no way from {self.source}")
                seen.add(name)

    @cached_property
    def _hops(self) -> dict[str, Hop]:
        return {hop.downstream: hop for hop in self.hops}

    @cached_property
    def _downstream(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in (self.source, *self._hops)}
        for hop in self.hops:
            found[hop.upstream].append(hop.downstream)
        return found

    @property
    def clusters(self) -> tuple[str, ...]:
        return (self.source, *self._hops)

    def __contains__(self, cluster: str) -> bool:
        return cluster == self.source or cluster in self._hops

    def hop(self, downstream: str) -> Hop | None:
        """How bytes come to this cluster; None for the source and for those outside the tree."""
        return self._hops.get(downstream)

    def upstream(self, cluster: str) -> str | None:
        hop = self._hops.get(cluster)
        return None if hop is None else hop.upstream

    def downstream(self, cluster: str) -> tuple[str, ...]:
        return tuple(self._downstream.get(cluster, ()))

    def depth(self, cluster: str) -> int:
        """Hops from the source."""
        depth = 0
        while cluster != self.source:
            cluster, depth = self._hops[cluster].upstream, depth + 1
        return depth

    def path(self, cluster: str) -> tuple[str, ...]:
        """From the source to the cluster, both included."""
        names = [cluster]
        while names[-1] != self.source:
            names.append(self._hops[names[-1]].upstream)
        return tuple(reversed(names))
