"""A world map holds together or is never built; a copy tree leads everywhere from its source."""

import pytest

from tailrace.errors import ConfigError
from tailrace.model import Cluster, CopyTree, Demand, Hop, Link, Tariff, WorldMap

US = Cluster(name="us-east", continent="america", region="us", jurisdiction="us")
US_WEST = Cluster(name="us-west", continent="america", region="us", jurisdiction="us")
BRAZIL = Cluster(name="brazil", continent="america", region="br", jurisdiction="br")
EU = Cluster(name="eu-west", continent="europe", jurisdiction="eu")
CLUSTERS = (US, US_WEST, BRAZIL, EU)
TARIFFS = (
    Tariff(scope="region", price_per_gb=0.01),
    Tariff(scope="continent", price_per_gb=0.02),
    Tariff(scope="world", price_per_gb=0.09),
)


def test_a_pair_of_clusters_pays_the_tariff_of_the_smallest_place_they_share() -> None:
    world = WorldMap(clusters=CLUSTERS, tariffs=TARIFFS)
    prices = [link.price_per_gb for link in world.links_from("us-east")]
    assert prices == [0.01, 0.02, 0.09]


def test_a_link_of_their_own_wins_over_the_tariff_and_has_a_direction() -> None:
    own = Link(upstream="us-east", downstream="eu-west", price_per_gb=0.5)
    world = WorldMap(clusters=CLUSTERS, tariffs=TARIFFS, links=(own,))
    assert world.link("us-east", "eu-west") == own
    back = world.link("eu-west", "us-east")
    assert back is not None
    assert back.price_per_gb == 0.09


def test_without_a_tariff_there_is_no_way() -> None:
    world = WorldMap(clusters=CLUSTERS, tariffs=TARIFFS[:2])
    assert world.link("us-east", "eu-west") is None
    assert world.link("us-east", "us-east") is None


def test_everywhere_means_every_cluster_the_data_may_go_to() -> None:
    anywhere = Demand(stream="prices", source="us-east")
    american = Demand(stream="clicks", source="us-east", stays_in=("us", "br"))
    named = Demand(stream="rates", source="us-east", destinations=("eu-west", "us-east"))
    world = WorldMap(clusters=CLUSTERS, demands=(anywhere, american, named))
    assert world.destinations(anywhere) == ("us-west", "brazil", "eu-west")
    assert world.destinations(american) == ("us-west", "brazil")
    assert world.destinations(named) == ("eu-west",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clusters": (US, US)}, "cluster us-east is there twice"),
        ({"links": (Link(upstream="us-east", downstream="mars"),)}, "no cluster 'mars'; there are us-east"),
        ({"demands": (Demand(stream="s", source="mars"),)}, "stream s: source: no cluster 'mars'"),
        ({"demands": (Demand(stream="s", source="us-east", destinations=("mars",)),)}, "destinations: no cluster"),
        (
            {"demands": (Demand(stream="s", source="us-east", destinations=("brazil",), stays_in=("us",)),)},
            "its data stays in us, but brazil is under br",
        ),
        ({"tariffs": (TARIFFS[0], TARIFFS[0])}, "tariff region is there twice"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(wrong: dict[str, tuple[object, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WorldMap(**({"clusters": CLUSTERS} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hops",
    [
        [("a", "b"), ("c", "b")],  # two ways to one cluster
        [("b", "c"), ("c", "b")],  # a ring beside the source
        [("b", "c")],  # nobody brings it to b
        [("a", "b"), ("b", "a")],  # back to the source
    ],
)
def test_what_is_no_tree_is_refused(hops: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError):
        CopyTree(stream="s", source="a", hops=tuple(Hop(upstream=up, downstream=down) for up, down in hops))
