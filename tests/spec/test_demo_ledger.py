"""The demo's books must be able to say no: a verdict that cannot fail is worth nothing."""

from tailrace.node.demo.chapters.ledger import Began, Broke, Flushed, Ledger, Saw


def settled() -> Ledger:
    ledger = Ledger()
    for event in (
        Flushed("p", {0: 10, 1: 20}),
        Began("c", {0: 0}),
        Began("c", {1: 0}),
        Saw("c", {0: 10, 1: 20}),
    ):
        ledger.handle(event)
    return ledger


def test_all_seen_in_order_is_no_problem() -> None:
    assert settled().verdict(["c"]) == []


def test_a_restart_from_the_checkpoint_repeats_but_does_not_skip() -> None:
    ledger = settled()
    ledger.handle(Began("c", {0: 7}))
    assert ledger.verdict(["c"]) == []
    ledger.handle(Began("c", {0: 11}))
    assert ledger.verdict(["c"]) == ["c began at message 11 of shard 0, but had seen only 10"]


def test_a_missing_message_is_found() -> None:
    ledger = settled()
    ledger.handle(Flushed("p", {0: 13}))
    assert ledger.verdict(["c"]) == ["c misses 3 flushed messages"]
    assert ledger.verdict(["c", "d"]) == ["c misses 3 flushed messages", "d misses 33 flushed messages"]


def test_a_message_out_of_order_is_found() -> None:
    ledger = settled()
    ledger.handle(Broke("c", 1, 5, 7))
    assert ledger.verdict(["c"]) == ["c expected message 5 of shard 1 and saw 7"]


def test_a_producer_that_came_back_behind_what_it_had_confirmed_does_not_lower_the_bar() -> None:
    ledger = settled()
    ledger.handle(Flushed("p", {0: 4}))
    assert ledger.flushed[0] == 10
