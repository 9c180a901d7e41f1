"""Clusters under crashes, partitions, slow links, lost caches, dueling schedulers and clock jumps: in the end every one
has the same bytes, and every consumer has seen every message once, in order."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from copytree_world import World, coverage, run

SEEDS = int(os.environ.get("COPYTREE_SEEDS", "8"))


RAN: list[World] = []


@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_a_world_heals(seed: int) -> None:
    world = run(seed)
    assert world.made > 100
    RAN.append(world)


def test_a_seed_replays_exactly() -> None:
    first, again = run(3, faults_s=6.0), run(3, faults_s=6.0)
    assert (first.trace, first.acked, first.counts) == (again.trace, again.acked, again.counts)
    assert first.time.now_s == again.time.now_s


def test_every_kind_of_fault_meets_something() -> None:
    """By whatever ran before this in the same process, at least by four worlds."""
    RAN.extend(map(run, (200, 201, 202, 203)))
    holes = [kind for kind, (tried, effective) in coverage(RAN).items() if tried and not effective]
    assert len(holes) <= (0 if len(RAN) >= 10 else 2), coverage(RAN)
