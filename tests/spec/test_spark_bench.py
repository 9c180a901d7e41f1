"""How the figures of `tailrace bench spark` are made, without Spark."""

from tailrace.node.bench.spark.run import Cell, _messages, _ratios
from tailrace.node.bench.spark.table import tables


def test_a_ratio_is_made_within_a_repeat_and_the_median_counts() -> None:
    ours, theirs = Cell("tailrace", "value only", 100), Cell("kafka", "value only", 100)
    rounds = [{ours: 1.0, theirs: 2.0}, {ours: 10.0, theirs: 50.0}, {ours: 1.0, theirs: 3.0}]
    assert _ratios(rounds, "kafka", writes=False) == {ours: 3.0}
    assert _ratios(rounds, "parquet", writes=False) == {}
    assert _ratios(rounds, "kafka", writes=True) == {}


def test_reads_are_compared_with_reads_and_writes_with_writes() -> None:
    seconds = {Cell(who, what, 100): 1.0 for who in ("tailrace", "parquet") for what in ("value only", "write")}
    assert [cell.what for cell in _ratios([seconds], "parquet", writes=True)] == ["write"]
    assert [cell.what for cell in _ratios([seconds], "parquet", writes=False)] == ["value only"]


def test_messages_have_their_size_and_differ() -> None:
    for size in (100, 1000):
        messages = _messages(size, 500)
        assert {len(message) for message in messages} == {size}
        assert len(set(messages)) == 500
        assert not any(b"\n" in message for message in messages), "a text file has one in a line"


def test_the_table_says_whether_goals_are_met() -> None:
    row = {"who": "tailrace", "what": "write", "message_bytes": 100, "rows_per_s": 5, "mb_per_s": 1.0, "spread": [4, 6]}
    result = {
        "rows": [row],
        "summary": {"source_vs_kafka": 2.5, "source_vs_text": 0.1},
        "goals": {"source_vs_kafka": 2.0, "source_vs_text": 0.45},
        "settings": {"repeats": 1},
    }
    rates, summary = tables(result)
    assert rates.row_count == 1
    assert list(summary.columns[2].cells) == ["2 met", "0.45 missed"]
