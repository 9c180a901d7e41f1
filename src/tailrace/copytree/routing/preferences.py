"""What counts beside the price when a copy tree is chosen."""

from dataclasses import dataclass

from tailrace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """Each is worth so many times the usual price of the world's links (their median).

    They are means over the clusters of the tree, so that together they are worth a few links, however large the world
    is: money comes first, and these settle what money leaves open.
    """

    hop: float = 1.0  # bringing every cluster one hop nearer to the source
    delay_per_s: float = 10.0  # bringing every cluster one second of link latency nearer: 100 ms are worth a hop
    sibling: float = 0.25  # each pair of clusters that copy from the same one
    change: float = 2.0  # leaving every hop as it is

    def __post_init__(self) -> None:
        for name in ("hop", "delay_per_s", "sibling", "change"):
            if not 0 <= (value := getattr(self, name)) <= 1e6:
                raise ConfigError(f"routing.{name}={value!r}: use 0 to 1000000")


#: Money alone: what a minimum spanning tree is made for.
PRICE_ONLY = Preferences(hop=0.0, delay_per_s=0.0, sibling=0.0, change=0.0)
