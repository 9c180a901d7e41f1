"""What monitors see in each cluster, side by side: what a hop adds, and who is to blame when nothing comes."""

import pytest

from tailrace.copytree.hops import STUCK_S, HopWatch, ShardSight, Sight, StreamReport, read_sight, write_sight
from tailrace.errors import Corrupt
from tailrace.model import CopyTree, Hop

TREE = CopyTree(stream="s", source="a", hops=(Hop(upstream="a", downstream="b"), Hop(upstream="b", downstream="c")))


class World:
    """Three clusters in a row. Each tick the producer says something, and whoever is not stuck hands it on."""

    def __init__(self) -> None:
        self.watch, self.now_s = HopWatch(), 0.0
        self.durable = dict.fromkeys("abc", 1000)
        self.beat_us = dict.fromkeys("abc", 1_000_000)
        self.moved_s = dict.fromkeys("abc", 0.0)
        self.heard_s = dict.fromkeys("abc", 0.0)

    def tick(self, *, writes: bool = True, beats: bool = True, stuck: str = "", cache_stuck: str = "") -> None:
        self.now_s += 1.0
        above = ""
        for cluster in "abc":
            if above != stuck or not above:
                new = self.durable["a"] + 100 * writes if cluster == "a" else self.durable[above]
                if new != self.durable[cluster]:
                    self.durable[cluster], self.moved_s[cluster] = new, self.now_s
            if (above != cache_stuck or not above) and beats:
                self.beat_us[cluster] = int(self.now_s * 1e6) if cluster == "a" else self.beat_us[above]
                self.heard_s[cluster] = self.now_s
            above = cluster

    def report(self) -> StreamReport:
        sights: dict[str, Sight] = {
            cluster: {
                "s": (
                    ShardSight(
                        self.durable[cluster],
                        self.now_s - self.moved_s[cluster],
                        self.beat_us[cluster],
                        self.now_s - self.heard_s[cluster],
                    ),
                )
            }
            for cluster in "abc"
        }
        (report,) = self.watch.see([TREE], sights, self.now_s)
        return report

    def states(self) -> list[str]:
        report = self.report()
        return [report.producer, *(hop.state for hop in report.hops)]


def after(**how: object) -> World:
    world = World()
    for _ in range(3):
        world.tick()
        assert world.states() == ["flowing"] * 3
    for _ in range(int(STUCK_S) + 3):
        world.tick(**how)  # type: ignore[arg-type]
        world.report()
    return world


def test_a_silent_producer_is_not_a_stuck_worker() -> None:
    world = after(writes=False, beats=False)
    assert world.states() == ["silent", "quiet", "quiet"]
    assert world.report().words == "the producer is silent"


def test_a_producer_with_nothing_to_say_is_quiet() -> None:
    world = after(writes=False)
    assert world.states() == ["quiet", "quiet", "quiet"]
    assert world.report().words == ""


@pytest.mark.parametrize(("stuck", "states"), [("a", ["stuck", "quiet"]), ("b", ["flowing", "stuck"])])
def test_a_stuck_worker_is_found_at_its_hop_and_not_behind_it(stuck: str, states: list[str]) -> None:
    world = after(stuck=stuck)
    assert world.states() == ["flowing", *states]
    hop = "a > b" if stuck == "a" else "b > c"
    assert world.report().words == f"stuck at {hop}"
    assert [hop.stuck_shards for hop in world.report().hops] == [(0,) if one == "stuck" else () for one in states]
    world.tick()
    assert "stuck" not in world.states()


def test_a_stuck_cache_copy_shows_by_the_beat_while_the_files_go_on() -> None:
    assert after(cache_stuck="b").states() == ["flowing", "flowing", "cache stuck"]
    assert after(cache_stuck="b", writes=False).states() == ["quiet", "quiet", "cache stuck"]


def test_a_cluster_without_a_monitor_is_unseen() -> None:
    sight = {"s": (ShardSight(1, 0.0),)}
    (report,) = HopWatch().see([TREE], {"a": sight, "c": sight}, 0.0)
    assert [report.producer, *(hop.state for hop in report.hops)] == ["flowing", "unseen", "unseen"]


def test_a_hop_adds_what_passes_between_the_same_mark_at_both_ends() -> None:
    marks = {n: n * 250_000 for n in range(100)}
    late = {n: came + 20_000 + 1000 * (n % 10) for n, came in marks.items()}
    sights = {"a": {"s": (ShardSight(1, 0.0, marks=marks),)}, "b": {"s": (ShardSight(1, 0.0, marks=late),)}}
    (report,) = HopWatch().see([TREE], sights, 0.0)
    hop = report.hops[0]
    assert (hop.samples, hop.delay_p50_ms, hop.delay_p99_ms) == (100, 25.0, 29.0)
    assert report.hops[1].delay_p50_ms is None


def test_a_sight_is_stored_and_read_and_damage_is_refused() -> None:
    sight = {"s": (ShardSight(5, 1.5, 7, None, {3: 4}), ShardSight(6, 0.0, 0, 2.0))}
    raw = write_sight(sight, 123)
    assert read_sight(raw, "monitors/a") == sight
    for bad in (b"", b"{}", b"[]", b"\xff", raw.replace(b'"version": 1', b'"version": 2'), raw.replace(b'"s"', b'"/"')):
        with pytest.raises(Corrupt):
            read_sight(bad, "monitors/a")
