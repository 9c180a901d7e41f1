"""Real processes of real sites, killed, frozen and poisoned: each message is counted once, bad ones are named."""

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_sites import APP, Sites

from conftest import freeze, wait_until

SEED = int(os.environ.get("PIPELINE_SEED", "11"))


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    yield made
    made.end()


def test_sites_killed_again_and_again_count_every_message_once(sites: Sites) -> None:
    dice = random.Random(SEED)
    print("PIPELINE_SEED =", SEED)
    sites.produce(12_000)
    children = {site: sites.start(site) for site in ("us", "eu")}
    for _ in range(7):
        target = sites.outputs() + dice.randint(1, 5)
        sites.produce(dice.randint(4000, 6000))
        wait_until(lambda target=target: sites.outputs() >= target, "more outputs")  # type: ignore[misc]
        victim = dice.choice(["us", "eu"])
        children[victim].kill()
        children[victim] = sites.start(victim)
    wait_until(lambda: sites.counted() == sites.sent, "all to be counted")
    for child in children.values():
        sites.stop(child)
    sites.finish(sites.start("us", "us", "inline", "--until-done"))  # nothing is left to do, but leftovers to collect
    wait_until(lambda: not list((sites.out / "_staging").glob("*.parquet")) or collected(sites), "leftovers to go")
    sites.check()


def collected(sites: Sites) -> bool:
    """Leases of the dead run out; then whoever comes collects."""
    sites.finish(sites.start("us", "us", "inline", "--until-done"))
    return not list((sites.out / "_staging").glob("*.parquet"))


def test_a_frozen_site_loses_its_work_and_its_late_commit_is_refused(sites: Sites) -> None:
    sites.produce(6000)
    gate = sites.folder / "gate"
    gate.touch()
    us = sites.start("us", PIPELINE_GATE=str(gate))
    wait_until(lambda: held(sites) > 0, "the site to hold a unit")
    freeze(us.pid)
    gate.unlink()
    eu = sites.start("eu")
    wait_until(lambda: sites.counted() == sites.sent, "the other site to do it all")
    us.send_signal(signal.SIGCONT)
    wait_until(lambda: figures(sites, "us").get("refused", 0) > 0, "the late commit to be refused")
    sites.produce(500)
    wait_until(lambda: sites.counted() == sites.sent, "both to go on")
    for child in (us, eu):
        child.terminate()
        sites.finish(child)
    sites.check()


def held(sites: Sites) -> int:
    try:
        return int(sites.tell("status", "counts")["units"]["held"])
    except AssertionError:
        return 0  # it has not begun


def figures(sites: Sites, site: str) -> dict[str, Any]:
    return next((one for one in sites.tell("status", "counts")["sites"] if one["site"] == site), {})


def test_poison_and_corrupt_bytes_are_isolated_and_named_and_the_rest_is_counted(sites: Sites) -> None:
    sites.produce(3000, extra=(b"raise me",))
    sites.produce(3000, extra=(b"die now",))
    sites.produce(3000)
    broken = damage(sites)
    sites.finish(sites.start("us", "us", "processes", "--until-done", PIPELINE_UNIT="1000"))
    bad = sites.tell("bad-ranges", "counts")
    reasons = sorted((one["end"] - one["begin"], one["reason"].split(":")[0]) for one in bad)
    assert len(bad) == 3, bad
    assert (8, "ValueError") in reasons
    assert (7, "its process died of signal 9") in reasons
    (corrupt,) = [one for one in bad if "checksum" in one["reason"]]
    assert corrupt["begin"] <= broken < corrupt["end"]
    told = sites.tell("status", "counts")
    assert (told["bad_ranges"], told["backlog_bytes"]) == (3, 0)
    counted = sites.counted()
    assert sum((sites.sent - counted).values()) == 1, "the damaged message, and no other"
    assert not counted - sites.sent


def damage(sites: Sites) -> int:
    """Flip a byte in the middle of the first data file; its position."""
    folder = sites.folder / "us" / "streams" / "clicks" / "00000"
    path = sorted(folder.glob("*.data"))[0]
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at] ^= 0xFF
    path.write_bytes(content)
    return at


def test_a_site_that_has_more_than_another_does_that_part_and_both_agree(sites: Sites) -> None:
    sites.produce(4000)
    shutil.copytree(sites.folder / "us", sites.folder / "eu")
    sites.produce(4000)  # which only us has
    eu = sites.start("eu", "eu")
    wait_until(lambda: sites.outputs() > 0, "eu to begin with what it has")
    us = sites.start("us", "us")
    wait_until(lambda: sites.counted() == sites.sent, "everything to be counted once")
    for child in (us, eu):
        child.terminate()
        sites.finish(child)
    sites.check()


def test_a_worker_process_that_is_killed_costs_a_retry_and_nothing_else(sites: Sites) -> None:
    sites.produce(2000)
    gate = sites.folder / "gate"
    gate.touch()
    us = sites.start("us", "us", "processes", PIPELINE_GATE=str(gate))
    wait_until(lambda: children_of(us.pid), "worker processes")
    for pid in children_of(us.pid):
        os.kill(pid, signal.SIGKILL)
    gate.unlink()
    wait_until(lambda: sites.counted() == sites.sent, "everything to be counted once")
    us.terminate()
    sites.finish(us)
    sites.check()
    assert sites.tell("bad-ranges", "counts") == []


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_a_lost_state_is_rebuilt_from_the_outputs(sites: Sites) -> None:
    sites.produce(4000)
    sites.finish(sites.start("us", "us", "inline", "--until-done"))
    before = sites.outputs()
    sites.state.unlink()
    for leftover in sites.folder.glob("state.db-*"):
        leftover.unlink()
    hole = sorted(sites.out.glob("part-*"))[before // 2]
    hole.unlink()  # and an output with it
    sites.produce(1000)
    made = sites.tell("rebuild", APP)
    assert made["outputs"] == before - 1
    assert made["units"] >= 1
    sites.finish(sites.start("us", "us", "inline", "--until-done"))
    sites.check()
