"""Reports of several sites, late, repeated, shorter: the longest wins, and no byte is made free twice."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import MessageFile
from tailrace.pipeline.creator import lost, reachable
from tailrace.pipeline.ranges import ByteRange, total
from tailrace.pipeline.tracking import Extent, Report, Shard, advance, pieces, sites_with, states, track


def name(created_us: int, base: int) -> str:
    return MessageFile(created_us, base, "data").name


FILES = [name(1, 0), name(5, 100), name(9, 250)]


def report(site: str, end: int, begin: int = 0) -> Report:
    bases = [0, 100, 250, 10**9]
    listed = tuple(
        file for file, base, after in zip(FILES, bases, bases[1:], strict=False) if base < end and after > begin
    )
    return Report(site, "s", 0, "i", listed, end)


def test_the_longest_length_wins_and_repetitions_change_nothing() -> None:
    shard = track(None, report("us", 120))
    shard = track(shard, report("eu", 90))
    assert (shard.end, shard.free_bytes) == (120, 120)
    assert track(shard, report("us", 120)) == shard
    assert track(shard, report("us", 60)) == shard, "a late report"
    assert track(shard, report("eu", 300)).end == 300


def test_bytes_that_one_site_has_alone_are_known_to_be_there() -> None:
    shard = track(track(None, report("us", 120)), report("eu", 90))
    assert sites_with(shard, ByteRange("s", 0, FILES[0], 10, 90)) == ["eu", "us"]
    assert sites_with(shard, ByteRange("s", 0, FILES[0], 80, 100)) == ["us"]
    assert reachable(shard, "eu") == (0, 90)
    assert reachable(shard, "asia") == (0, 0)


def test_files_that_were_handed_out_are_forgotten() -> None:
    shard = track(None, report("us", 300))
    assert shard.files == tuple(FILES)
    assert advance(shard, 100).files == tuple(FILES[1:])
    assert advance(shard, 300).files == (FILES[2],), "the last one may still grow"
    assert track(advance(shard, 300), report("eu", 260)).files == (FILES[2],), "late names are dropped"


def test_pieces_do_not_cross_files() -> None:
    shard = track(None, report("us", 300))
    assert [(one.file, one.begin, one.end) for one in pieces(shard, 50, 260)] == [
        (FILES[0], 50, 100),
        (FILES[1], 100, 250),
        (FILES[2], 250, 260),
    ]


def test_a_pipeline_that_begins_late_leaves_the_rest_alone() -> None:
    shard = track(None, report("us", 300), start=120)
    assert (shard.start, shard.created) == (120, 120)
    assert track(shard, report("eu", 300)).created == 120


def test_what_retention_took_at_every_site_is_lost_and_said_so() -> None:
    shard = track(None, report("us", 300))
    gone_here = track(shard, report("us", 300, begin=100))
    assert gone_here.sites["us"] == Extent(100, 300)
    assert total(lost(gone_here)) == 100
    assert lost(track(gone_here, report("eu", 200))) == [], "another site has it still"
    assert reachable(gone_here, "us") == (0, 0), "it has not what comes first"


@given(st.integers(0, 10_000))
def test_every_byte_has_one_state_whatever_came_in_whatever_order(seed: int) -> None:
    dice = random.Random(seed)
    shard: Shard | None = None
    units: list[ByteRange] = []
    ends = {"us": 0, "eu": 0, "asia": 0}
    for _ in range(dice.randint(1, 20)):
        site = dice.choice(list(ends))
        if dice.random() < 0.6 or shard is None:
            ends[site] = max(ends[site], dice.randint(1, 400))
            sent = report(site, dice.choice([ends[site], dice.randint(1, ends[site])]))
            before = shard.created if shard else 0
            shard = track(shard, sent)
            assert shard.created == before
        else:
            upto = dice.randint(shard.created, shard.end)
            units += pieces(shard, shard.created, upto)
            shard = advance(shard, upto)
        if units and dice.random() < 0.3:
            units.pop(dice.randrange(len(units)))  # committed
    assert shard is not None
    named = states(shard, units)
    at = [one for one, _ in named]
    assert all(a.end <= b.begin or a.place != b.place for a, b in itertools.pairwise(at)), named
    assert total(one for one, state in named if state == "free") == shard.free_bytes
    assert Shard.decode("s", 0, shard.encode()) == shard
