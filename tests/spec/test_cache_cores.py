"""What the cache decides: versions, tallies of mutations, lookups by RPC, and what a backend takes in a repair."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cache.lookup import Found, decide
from tailrace.cache.repair import Told, orders
from tailrace.cache.tally import Tally, Verdict
from tailrace.cache.versions import BY_CAS, NOTHING, SEQUENCES, HybridClock, Version
from tailrace.native.cell import Outcome

# ---- versions


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5), st.none() | st.integers(0, 1500))))
def test_versions_ascend_whatever_the_clock_does_and_whatever_is_observed(steps):
    clock, last = HybridClock(client=3), NOTHING
    for now_us, count, observed in steps:
        if observed is not None:
            clock.observe(Version(observed, 9, 7))
            last = max(last, Version(observed, 9, 7))
        first = clock.nominate(count, now_us)
        assert first > last
        last = first._replace(sequence=first.sequence + count - 1)


def test_a_full_sequence_moves_the_clock_on():
    clock = HybridClock(client=3)
    clock.nominate(SEQUENCES - 2, now_us=5)
    assert clock.nominate(3, now_us=5) == Version(6, 3, 0)


# ---- tallies

ANSWERS = ["applied", "stale", "mismatch", "silent", "lost"]


def counted(answers):
    found = Tally(copies=3, quorum=2)
    for answer in answers:
        match answer:
            case "silent":
                found.silent += 1
            case "lost":
                found.lost += 1
            case _:
                found.count(Outcome[answer.upper()])
    return found


def tally(answers):
    return counted(answers).verdict()


@pytest.mark.parametrize("answers", list(product(ANSWERS, repeat=3)))
def test_done_means_a_quorum_and_refused_means_nobody(answers):
    verdict = tally(answers)
    assert (verdict is Verdict.DONE) == (answers.count("applied") >= 2)
    if verdict not in (Verdict.DONE, Verdict.UNKNOWN):
        assert "applied" not in answers
        assert "lost" not in answers
    if verdict in (Verdict.STALE, Verdict.MISMATCH):
        assert answers.count("silent") < 2


def test_what_nobody_could_be_asked_is_unreachable():
    assert tally(["silent", "silent", "silent"]) is Verdict.UNREACHABLE
    assert tally(["silent", "silent", "stale"]) is Verdict.UNREACHABLE
    assert tally(["silent", "stale", "stale"]) is Verdict.STALE


@pytest.mark.parametrize("answers", list(product(ANSWERS, repeat=3)))
def test_what_is_sent_again_was_not_done_nor_refused_and_somebody_surely_lacks_it(answers):
    if counted(answers).is_short():
        assert "silent" in answers
        assert tally(answers) in (Verdict.UNKNOWN, Verdict.UNREACHABLE)


def test_a_mutation_is_sent_again_for_those_who_surely_lack_it():
    assert counted(["applied", "silent", "silent"]).is_short()
    assert not counted(["applied", "lost", "lost"]).is_short(), "nobody is known to lack it"
    assert not counted(["applied", "applied", "silent"]).is_short()
    assert not counted(["silent", "stale", "stale"]).is_short()


# ---- lookups

OLD, NEW = Found(b"old", Version(1, 1, 0)), Found(b"new", Version(2, 1, 0))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([NEW, NEW, NEW], NEW),
        ([OLD, NEW, NEW], NEW),
        ([OLD, OLD, NEW], OLD),  # the new one is on its way
        ([OLD, NEW], None),
        ([NEW, None, None], None),
        ([NEW], None),
        ([], None),
    ],
)
def test_two_must_agree(answers, expected):
    assert decide(answers, need=2) == expected


def test_one_is_enough_when_only_one_is_needed():
    assert decide([None, OLD, NEW], need=1) == NEW


# ---- repair

K = b"k" * 16
V1, V2, V3 = Version(1, 1, 0), Version(2, 1, 0), Version(3, 1, 0)
EMPTY = Told({})


def stored(version, summary=NOTHING):
    return Told({K: version}, {}, summary)


def test_an_empty_backend_takes_the_newest_that_its_cohort_has():
    assert orders(EMPTY, (stored(V1), stored(V2))).fetch == (frozenset(), frozenset({K}))


def test_what_is_newer_here_stays():
    todo = orders(stored(V3), (stored(V1), stored(V2)))
    assert todo.fetch == (frozenset(), frozenset())
    assert not todo.erase


def test_a_stale_key_is_replaced():
    assert orders(stored(V1), (stored(V2), stored(V2))).fetch == (frozenset({K}), frozenset())


def test_what_one_of_the_others_may_have_dropped_when_it_was_newer_is_not_taken():
    """It set, dropped and forgot a newer version; the third missed that, and its old value must not win a quorum."""
    dropped_newer = Told({}, {}, summary=V2)
    assert orders(EMPTY, (dropped_newer, stored(V1))).fetch == (frozenset(), frozenset())
    dropped_older = Told({}, {}, summary=V1)
    assert orders(EMPTY, (dropped_older, stored(V2))).fetch == (frozenset(), frozenset({K}))


def test_what_was_dropped_here_is_not_taken_back_at_an_older_version():
    assert orders(Told({}, {}, summary=V2), (stored(V1), stored(V1))).fetch == (frozenset(), frozenset())


def test_an_erased_key_does_not_come_back():
    erased = Told({}, {K: V2})
    assert orders(EMPTY, (erased, stored(V1))).fetch == (frozenset(), frozenset())
    assert orders(EMPTY, (erased, stored(V3))).fetch == (frozenset(), frozenset({K}))


def test_an_erase_that_was_missed_is_made_up_for():
    erased = Told({}, {K: V2})
    assert orders(stored(V1), (erased, erased)).erase == {K: V2}
    assert orders(stored(V1), (erased, EMPTY)).erase == {K: V2}
    assert not orders(stored(V3), (erased, erased)).erase


def test_an_erase_that_only_one_knows_of_does_not_win_against_two_that_store_the_key():
    assert not orders(stored(V1), (Told({}, {K: V2}), stored(V1))).erase


def test_a_compare_and_set_is_taken_only_from_both_others():
    """At one alone it may have failed; and if it completed there, what the other has is too old."""
    cas = Version(3, 1, BY_CAS)
    assert orders(EMPTY, (stored(cas), stored(V2))).fetch == (frozenset(), frozenset())
    assert orders(EMPTY, (stored(cas), EMPTY)).fetch == (frozenset(), frozenset())
    assert orders(stored(V1), (stored(cas), stored(cas))).fetch == (frozenset({K}), frozenset())
    assert orders(EMPTY, (stored(cas),)).fetch == (frozenset({K}),)


def test_versions_by_compare_and_set_ascend_with_the_others():
    clock = HybridClock(client=3)
    versions = [clock.nominate(2, 5, by_cas=by_cas) for by_cas in (False, True, False, True, True, False)]
    assert versions == sorted(versions)
    assert [bool(version.sequence & BY_CAS) for version in versions] == [False, True, False, True, True, False]
