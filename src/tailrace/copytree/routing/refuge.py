"""Where consumers of a cluster go while it is ill: to near clusters that are well and have the stream, nearest first.

Positions are the same in every cluster, so a consumer takes its cursor along. Pure.
"""

from tailrace.model import CopyTree, WorldMap

from .task import Conditions


def refuges(world: WorldMap, tree: CopyTree, cluster: str, conditions: Conditions | None = None) -> list[str]:
    """Near first means: by the latency of the link to the consumers, then by its price. Nobody without a link, nobody
    bad, nobody who still catches up, and nobody behind the sick one, who would be as late as it."""
    conditions = conditions or Conditions()
    found = []
    for name in tree.clusters:
        hop = tree.hop(name)
        link = world.link(name, cluster) if name in world and name != cluster else None
        if link is None or name in conditions.bad_clusters or (hop is not None and hop.joining):
            continue
        if cluster in tree.path(name) or (name, cluster) in conditions.bad_links:
            continue
        found.append((link.latency_s, link.price_per_gb, tree.depth(name), name))
    return [name for *_, name in sorted(found)]
