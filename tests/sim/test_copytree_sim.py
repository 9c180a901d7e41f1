"""Clusters under crashes, partitions, slow links, lost caches, dueling schedulers and clock jumps: in the end every one
has the same bytes, and every consumer has seen every message once, in order."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from copytree_world import run

SEEDS = int(os.environ.get("COPYTREE_SEEDS", "8"))


@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_a_world_heals(seed: int) -> None:
    world = run(seed, faults_s=12.0)
    assert min(world.acked) > 50


def test_a_seed_replays_exactly() -> None:
    first, again = run(3, faults_s=6.0), run(3, faults_s=6.0)
    assert (first.trace, first.acked, first.counts) == (again.trace, again.acked, again.counts)
    assert first.time.now_s == again.time.now_s
