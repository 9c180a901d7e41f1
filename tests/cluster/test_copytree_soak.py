"""Five clusters as processes, a wide area between them, and whatever can happen to them: the short form of the soak."""

import os

import pytest
from copytree_soak import KINDS, faults, run

from tailrace.testing import WideArea

SEED = int(os.environ.get("SOAK_SEED", "7"))


def test_faults_come_from_the_seed_and_every_kind_comes() -> None:
    listed = list(faults(SEED, 300.0, 1.0, ["a-node"]))
    assert listed == list(faults(SEED, 300.0, 1.0, ["a-node"])) != list(faults(SEED + 1, 300.0, 1.0, ["a-node"]))
    assert {fault.kind for fault in listed} == set(KINDS)


@pytest.mark.skipif(bool(why := WideArea.problem()), reason=why)
def test_all_clusters_are_alike_after_kills_and_cuts() -> None:
    told = run(SEED, 10.0, together=True)
    assert told["messages"] > 500
    assert sum(told["faults"].values()) >= 4
