"""Who is to blame when clusters are late: breadth first through a copy tree, from the source outwards.

Whatever lies behind a late cluster is late with it, so only the first late one on each way from the source is blamed,
and the link that leads to it. If all who copy from one cluster are late, and it is not late itself, it is the sender;
but the source has to be, so there the links are blamed.
Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from tailrace.model import CopyTree


@dataclass(frozen=True, slots=True)
class Blame:
    clusters: set[str] = field(default_factory=set)
    links: set[tuple[str, str]] = field(default_factory=set)


def blame(tree: CopyTree, late: Collection[str]) -> Blame:
    """
    >>> from tailrace.model import Hop
    >>> hops = tuple(Hop(upstream=u, downstream=v) for u, v in ("ab", "bc", "ad"))
    >>> tree = CopyTree(stream="s", source="a", hops=hops)
    >>> blame(tree, {"b", "c"})
    Blame(clusters={'b'}, links={('a', 'b')})
    """
    found = Blame()
    edge = [tree.source]
    while edge:
        next_edge = []
        for upstream in edge:
            behind = tree.downstream(upstream)
            late_here = [name for name in behind if name in late]
            if upstream != tree.source and len(late_here) == len(behind) > 1:
                found.clusters.add(upstream)
                continue  # whoever is behind has an excuse
            for name in behind:
                if name in late:
                    found.clusters.add(name)
                    found.links.add((upstream, name))
                else:
                    next_edge.append(name)
        edge = next_edge
    return found
