"""Units from free bytes: each byte once, oldest first, several files to a unit, never more than allowed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import MessageFile
from tailrace.pipeline.assignment import Health
from tailrace.pipeline.creator import Limits, Piece, create, cut
from tailrace.pipeline.ranges import overlap, total
from tailrace.pipeline.tracking import Report, Shard, track
from tailrace.pipeline.unit import Holder, committed

LIMITS = Limits(unit_bytes=100, units_max=50, undispatched_max=10, linger_us=10)
BOTH = Health({"us": 1.0, "eu": 1.0}, frozenset({"r"}))


def shard(number: int, end: int, sites: tuple[str, ...] = ("us", "eu")) -> Shard:
    file = MessageFile(number + 1, 0, "data").name
    known = None
    for site in sites:
        known = track(known, Report(site, "s", number, "i", (file,), end))
    assert known is not None
    return known


def found(one: Shard, step: int, first_us: int = 0) -> list[Piece]:
    return [Piece(piece, first_us + piece.begin) for piece in cut(one, range(0, one.end, step), one.end)]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.integers(5, 120), st.integers(1, 30))
def test_each_byte_is_in_exactly_one_unit(ends: list[int], step: int, room: int) -> None:
    shards = {("s", number): shard(number, end) for number, end in enumerate(ends)}
    pieces = [piece for one in shards.values() for piece in found(one, step)]
    made = create(shards, pieces, [], replace(LIMITS, units_max=room), BOTH, "us", 10**9)
    ranges = [one for unit in made.units for one in unit.ranges]
    assert overlap(ranges) is None
    after = {**shards, **{(one.stream, one.shard): one for one in made.shards}}
    assert total(ranges) == sum(one.created for one in after.values())
    assert len(made.units) <= room
    if not made.throttled:
        assert all(one.created == one.end for one in after.values())
    for one in ranges:
        assert one.end <= after["s", one.shard].created, "what is in a unit is not free"


@given(st.lists(st.tuples(st.integers(50, 300), st.integers(0, 1000)), min_size=2, max_size=4))
def test_the_oldest_bytes_go_first(ends: list[tuple[int, int]]) -> None:
    shards = {("s", number): shard(number, end) for number, (end, _) in enumerate(ends)}
    pieces = [p for number, (_, first) in enumerate(ends) for p in found(shards["s", number], 30, first)]
    made = create(shards, pieces, [], LIMITS, BOTH, "us", 10**9)
    ages = [unit.oldest_us for unit in made.units]
    assert ages == sorted(ages)


def test_a_unit_has_pieces_of_several_files() -> None:
    shards = {("s", number): shard(number, 60) for number in range(3)}
    pieces = [piece for one in shards.values() for piece in found(one, 20)]
    made = create(shards, pieces, [], LIMITS, BOTH, "us", 10**9)
    assert len({one.shard for one in made.units[0].ranges}) == 3


def test_few_bytes_wait_for_others_but_not_for_ever() -> None:
    shards = {("s", 0): shard(0, 30)}
    assert create(shards, found(shards["s", 0], 30, 100), [], LIMITS, BOTH, "us", 105).units == ()
    assert len(create(shards, found(shards["s", 0], 30, 100), [], LIMITS, BOTH, "us", 110).units) == 1


def test_small_units_are_not_piled_up_before_workers_that_are_behind() -> None:
    shards = {("s", 0): shard(0, 130)}
    pieces = found(shards["s", 0], 65, 100)
    first = create(shards, pieces, [], LIMITS, BOTH, "us", 10**6)
    assert len(first.units) == 2
    after = {("s", 0): track(first.shards[0], Report("us", "s", 0, "i", first.shards[0].files, 160))}
    more = [Piece(piece, 200) for piece in cut(after["s", 0], [], 160)]
    assert create(after, more, first.units, LIMITS, BOTH, "us", 10**6).units == (), "two wait for two slots"
    assert len(create(after, more, first.units[:1], LIMITS, BOTH, "us", 10**6).units) == 1


def test_units_go_to_sites_by_their_weight() -> None:
    shards = {("s", 0): shard(0, 4000)}
    uneven = Health({"us": 3.0, "eu": 1.0}, frozenset())
    made = create(shards, found(shards["s", 0], 100), [], LIMITS, uneven, "us", 10**9)
    counts = [sum(unit.site == site for unit in made.units) for site in ("us", "eu")]
    assert counts == [30, 10]


def test_idle_sites_get_their_shares_though_units_come_one_by_one() -> None:
    given = {"us": 0, "eu": 0}
    for number in range(200):
        made = create({("s", number): shard(number, 90)}, found(shard(number, 90), 90), [], LIMITS, BOTH, "us", 1000)
        given[made.units[0].site] += 1
    assert min(given.values()) > 70


def test_a_site_that_is_out_gets_nothing() -> None:
    shards = {("s", 0): shard(0, 1000)}
    health = replace(BOTH, out=frozenset({"eu"}))
    made = create(shards, found(shards["s", 0], 100), [], LIMITS, health, "us", 10**9)
    assert {unit.site for unit in made.units} == {"us"}


def test_bytes_that_one_site_has_alone_go_there() -> None:
    shards = {("s", 0): shard(0, 300, ("eu",))}
    made = create(shards, found(shards["s", 0], 100), [], LIMITS, BOTH, "us", 10**9)
    assert {(unit.site, unit.nearby) for unit in made.units} == {("eu", ("eu",))}


def test_a_sink_that_is_behind_holds_everything_back() -> None:
    shards = {("s", 0): shard(0, 3000)}
    made = create(shards, found(shards["s", 0], 100), [], LIMITS, BOTH, "us", 10**9)
    waiting = [committed(unit, Holder("us", "r"), {}, 0) for unit in made.units[:10]]
    held = create(shards, found(shards["s", 0], 100), [one for one in waiting if one], LIMITS, BOTH, "us", 10**9)
    assert held.units == ()
    assert "sink" in held.throttled
