"""Rolling restarts: whatever the world looks like, the rules hold at every moment, and in the end all are new."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from random import Random

import pytest

from tailrace.node.rollout.plan import Process, Ring, Rollout

DATA, LENGTHS = "data", "lengths"


def process(role: str, number: int, cluster: str = "a", **settings: object) -> Process:
    backends = frozenset({(DATA, number), (LENGTHS, number)}) if "cache" in role.split("+") else frozenset()
    return Process(
        cluster=cluster,
        name=f"{role}-{number}",
        instance=f"{cluster}-{role}-{number}-old",
        roles=frozenset(role.split("+")),
        backends=backends,  # type: ignore[arg-type]
        **settings,  # type: ignore[arg-type]
    )


def successor(one: Process, *, ready: bool) -> Process:
    return Process(
        cluster=one.cluster,
        name=one.name,
        instance=one.instance.removesuffix("-old") + "-new",
        roles=one.roles,
        started_us=100,
        backends=one.backends,
        ready=ready,
    )


def cluster_of(name: str, sizes: dict[str, int]) -> list[Process]:
    return [process(role, number, name) for role, count in sizes.items() for number in range(count)]


def rings(clusters: list[str], caches: int) -> dict[tuple[str, str], Ring]:
    ring = Ring(caches, 3 if caches >= 3 else 1)
    return {(cluster, cache): ring for cluster in clusters for cache in (DATA, LENGTHS)}


@pytest.mark.parametrize("seed", range(60))
def test_the_rules_hold_at_every_moment_and_in_the_end_everything_is_new(seed: int) -> None:
    random = Random(seed)
    most = {"cache": 9, "reader": 8, "writer": 8, "scheduler": 3, "cache+reader+scheduler": 1}
    sizes = {role: random.randint(0, count) for role, count in most.items()}
    clusters = ["a", "b"]
    began = [one for name in clusters for one in cluster_of(name, sizes)]
    running = {one.instance: one for one in began}
    known = rings(clusters, sizes["cache"])
    rollout = Rollout(began, clusters, known, before_us=50)
    away: list[Process] = []
    total = Counter((one.cluster, one.kind) for one in began)
    while not rollout.progress.done:  # every turn brings it forward with a fair chance, or the test would not end
        ill = frozenset({"something"}) if random.random() < 0.2 else frozenset()
        for asked in rollout.look(list(running.values()), ill):
            assert not ill
            away.append(running.pop(asked.instance))  # it ends at once …
        check_rules(away + [one for one in running.values() if not one.ready], total, known)
        if random.random() < 0.3 and away:  # … comes back later …
            one = successor(away.pop(), ready=False)
            running[one.instance] = one
        elif random.random() < 0.3:  # … and has repaired what it lost later still
            for one in [one for one in running.values() if not one.ready][:1]:
                running[one.instance] = successor(one, ready=True)
    assert all(one.instance.endswith("-new") for one in running.values())
    assert rollout.progress.restarted == len(began) == len(running)


def check_rules(down: list[Process], total: Mapping[tuple[str, str], int], known: dict[tuple[str, str], Ring]) -> None:
    assert len({one.cluster for one in down}) <= 1
    kinds = Counter(one.kind for one in down)
    assert not (kinds["scheduler"] and (kinds["reader"] or kinds["writer"]))
    if kinds["together"]:
        assert len(down) == 1
    for kind in ("reader", "writer", "cache", "scheduler"):
        if kinds[kind] > 1:
            assert kinds[kind] <= total[down[0].cluster, kind] / 3
    for one, other in combinations(down, 2):
        for cache, number in one.backends:
            ring = known[one.cluster, cache]
            shards = {(number - back) % ring.backends for back in range(ring.copies)}  # the homes whose copies it has
            for cache_2, number_2 in other.backends:
                if cache == cache_2:
                    assert not shards & {(number_2 - back) % ring.backends for back in range(ring.copies)}


def test_the_next_replica_waits_until_the_one_before_has_repaired() -> None:
    caches = [process("cache", number) for number in range(3)]
    rollout = Rollout(caches, ["a"], rings(["a"], 3), before_us=50)
    assert rollout.look(caches) == [caches[0]]
    assert rollout.look(caches) == []  # it has not ended yet
    assert rollout.look(caches[1:]) == []
    assert rollout.progress.waits_for == "a/cache-0 to be back"
    back = successor(caches[0], ready=False)
    assert rollout.look([back, *caches[1:]]) == []
    assert rollout.progress.waits_for == "a/cache-0 to repair what it lost"
    whole = successor(caches[0], ready=True)
    assert rollout.look([whole, *caches[1:]]) == [caches[1]]
    assert rollout.progress.restarted == 1


def test_replicas_of_other_keys_may_go_together() -> None:
    caches = [process("cache", number) for number in range(9)]
    rollout = Rollout(caches, ["a"], rings(["a"], 9), before_us=50)
    assert [one.name for one in rollout.look(caches)] == ["cache-0", "cache-3", "cache-6"]


def test_nothing_is_restarted_while_a_process_is_missing_that_was_not_asked_to_end() -> None:
    both = [process("cache", 0), process("writer", 0)]
    rollout = Rollout(both, ["a"], rings(["a"], 1), before_us=50)
    assert rollout.look(both[:1]) == []
    assert rollout.progress.waits_for == "a/writer-0 to be back"
    assert rollout.look([both[0], successor(both[1], ready=True)]) == [both[0]]  # it came back by itself, new already
    assert rollout.look([successor(one, ready=True) for one in both]) == []
    assert rollout.progress.done


def test_who_started_later_stays() -> None:
    """So a rollout that was stopped goes on where it was."""
    two = [process("reader", 0), process("reader", 1, started_us=60)]
    rollout = Rollout(two, ["a"], {}, before_us=50)
    assert rollout.look(two) == two[:1]
    assert rollout.progress.left == 0


def test_backends_of_a_cache_that_nobody_knows_are_taken_one_at_a_time() -> None:
    caches = [process("cache", number) for number in range(9)]
    assert Rollout(caches, ["a"], {}, before_us=50).look(caches) == caches[:1]
