"""Where a consumer reads while its cluster is ill: it goes after a while, not to and fro, and comes home."""

from tailrace.copytree import WorldState
from tailrace.copytree.routing import ClusterReported
from tailrace.model import Cluster, CopyTree, Demand, Hop, Tariff, WorldMap
from tailrace.node.neighbours import lenders, outlook
from tailrace.streams import Lodging, Outlook, Patience

PATIENCE = Patience(ill_s=2.0, well_s=5.0)
ILL, WELL = Outlook("late", ("b", "a")), Outlook("", ("b", "a"))


def gone() -> Lodging:
    lodging = Lodging("c", PATIENCE)
    assert not lodging.look(ILL, 0.0)
    assert lodging.look(ILL, 2.0)
    assert (lodging.cluster, lodging.why) == ("b", "late")
    return lodging


def test_a_hiccup_moves_nobody() -> None:
    lodging = Lodging("c", PATIENCE)
    for now_s, seen in enumerate([ILL, WELL, ILL, WELL, ILL]):
        assert not lodging.look(seen, now_s)
    assert not lodging.away


def test_who_went_away_comes_home_after_home_was_well_for_a_while() -> None:
    lodging = gone()
    assert not lodging.look(WELL, 3.0)
    assert not lodging.look(ILL, 7.0)  # it begins anew
    assert not lodging.look(WELL, 8.0)
    assert not lodging.look(WELL, 12.9)
    assert lodging.look(WELL, 13.0)
    assert (lodging.cluster, lodging.why) == ("c", "")


def test_a_refuge_that_falls_ill_is_left_for_the_next_and_the_last_one_for_home() -> None:
    lodging = gone()
    assert lodging.look(Outlook("late", ("a",)), 3.0)
    assert lodging.cluster == "a"
    assert not lodging.look(ILL, 4.0)  # a nearer one that is back is no reason to move
    assert lodging.look(Outlook("late", ()), 5.0)
    assert lodging.cluster == "c"


def test_files_that_cannot_be_read_leave_no_time_to_wait() -> None:
    lodging = Lodging("c", PATIENCE)
    assert lodging.look(Outlook("it cannot be read", ("b",), unreadable=True), 0.0)


def test_nobody_leaves_for_nowhere() -> None:
    lodging = Lodging("c", PATIENCE)
    for now_s in range(10):
        assert not lodging.look(Outlook("late", ()), now_s)


def state(**reports: ClusterReported) -> WorldState:
    world = WorldMap(
        clusters=tuple(Cluster(name=name) for name in "abc"),
        tariffs=(Tariff(scope="world"),),
        demands=(Demand(stream="s", source="a"),),
    )
    hops = tuple(Hop(upstream=u, downstream=v) for u, v in ("ab", "bc"))
    return WorldState(world, trees={"s": CopyTree(stream="s", source="a", hops=hops)}, reports=reports)


def said(cluster: str, **words: frozenset[str]) -> ClusterReported:
    return ClusterReported(cluster, **words)


def test_what_the_world_says_of_a_cluster() -> None:
    well = {name: said(name) for name in "abc"}
    assert outlook(state(**well), "s", "c") == Outlook("", ("a", "b"))
    assert outlook(state(a=said("a"), b=said("b")), "s", "c").trouble == "c says nothing"
    late = said("c", late=frozenset({"s"}))
    assert outlook(state(**well | {"c": late}), "s", "c").trouble == "s comes late to c"
    cut = said("b", cut=frozenset({"c"}))
    assert outlook(state(**well | {"b": cut}), "s", "c").trouble == "b cannot send to c"


def test_who_is_ill_or_behind_the_ill_one_is_no_refuge() -> None:
    assert outlook(state(a=said("a"), c=said("c")), "s", "b").refuges == ("a",)  # c copies from b
    late = said("b", late=frozenset({"s"}))
    assert outlook(state(a=said("a"), b=late), "s", "c").refuges == ("a",)


def test_where_a_stream_is_produced_nobody_leaves() -> None:
    assert outlook(state(), "s", "a") == Outlook()
    assert outlook(state(), "another", "c") == Outlook()


def test_readers_are_asked_first_and_each_of_them_by_some() -> None:
    doors = {"a": {"scheduler": ["s"], "writer": ["w"], "reader": ["one", "two", "three"]}, "b": {}}
    orders = [lenders(doors, str(salt))["a"] for salt in range(100)]
    assert {order[0] for order in orders} == {"one", "two", "three"}
    assert all(set(order[:3]) == {"one", "two", "three"} and order[3:] == ["w", "s"] for order in orders)
    assert lenders(doors, "x") == lenders(doors, "x")
