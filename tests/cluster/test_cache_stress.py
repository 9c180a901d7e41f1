"""Several processes set and read a few keys as fast as they can, while a backend is killed and started again.

Every value says what it is, so a torn or mixed one is noticed. That versions do not go back for one who reads with a
quorum is what docs/decisions/quorum.md promises, whatever fails: a version that a read has returned is as good as
completed. A relaxed read promises nothing of the kind, since it believes whomever it asks.
"""

from pathlib import Path

import pytest
from cache_loops import process
from cache_nodes import started_nodes, wait_whole

import tailrace


@pytest.mark.parametrize(("transport", "count"), [("memory", 1200), ("engine", 800)])
def test_nobody_ever_sees_a_wrong_value_or_an_older_one(tmp_path: Path, transport: str, count: int) -> None:
    how = {"transport": transport, "deadline_s": 10.0, "attempts_max": 255}
    with (
        started_nodes(tmp_path) as three,
        process("change", str(tmp_path), "c", 1, count, **how) as one,
        process("change", str(tmp_path), "c", 2, count, **how) as two,
        process("watch", str(tmp_path), "c", False, **how) as careful,
        process("watch", str(tmp_path), "c", True, **how) as careless,
        tailrace.open(tmp_path) as world,
    ):
        for loop in (one, two, careful, careless):
            assert loop.hear() == {"ready": True}
        for loop in (one, two):
            loop.tell("go")
        three.kill(1)
        three.start(1)
        wait_whole(world.cache("c", serving=False), 1)
        changed = [loop.hear() for loop in (one, two)]
        seen, seen_carelessly = (loop.ask("stop") for loop in (careful, careless))
    for told in changed:
        assert told["behind"] == 0, "whoever set something reads that, or newer, or nothing"
        assert told["done"] > 0.9 * count
        assert told["done"] + told["unconfirmed"] + told["unavailable"] == count
    for told in (seen, seen_carelessly):
        assert told["wrong"] == 0
        assert told["true"] > 100
    assert seen["back"] == 0
