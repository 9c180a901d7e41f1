"""How the figures of `tailrace bench spark` are made, without Spark."""

from tailrace.node.bench.spark.contest import Cell, messages_of, ratios
from tailrace.node.bench.spark.outages import Phase, Seen, percentile, phases, summary
from tailrace.node.bench.spark.run import assembled, compared
from tailrace.node.bench.spark.table import tables


def test_a_ratio_is_made_within_a_repeat_and_the_median_counts() -> None:
    ours, theirs = Cell("tailrace", "value only", 100), Cell("kafka", "value only", 100)
    rounds = [{ours: 1.0, theirs: 2.0}, {ours: 10.0, theirs: 50.0}, {ours: 1.0, theirs: 3.0}]
    assert ratios(rounds, "kafka", writes=False) == {ours: [2.0, 5.0, 3.0]}
    assert ratios(rounds, "parquet", writes=False) == {}
    assert ratios(rounds, "kafka", writes=True) == {}
    said = compared(rounds, {100: 1000})
    assert (said["summary"], said["spread"]) == ({"source_vs_kafka": 3.0}, {"source_vs_kafka": [2.0, 5.0]})
    assert said["goals"] == {"source_vs_kafka": 2.0}
    assert [(row["who"], row["rows_per_s"]) for row in said["rows"]] == [("kafka", 333), ("tailrace", 1000)]
    assert ratios([*rounds, {ours: 1.0}], "kafka", writes=False) == {ours: [2.0, 5.0, 3.0]}, "a round without Kafka"


def test_the_summary_has_the_worst_case() -> None:
    rounds = [
        {
            Cell("tailrace", "value only", 100): 1.0,
            Cell("text", "value only", 100): 0.9,
            Cell("tailrace", "value only", 1000): 1.0,
            Cell("text", "value only", 1000): 0.5,
        }
    ]
    assert compared(rounds, {100: 10, 1000: 10})["summary"]["source_vs_text"] == 0.5


def test_kills_count_only_if_all_came_out_exact() -> None:
    exact = {"kills": 4, "mid_batch": 1, "starts": 5, "missing": 0, "surplus": 0}
    sites = {"summary": {"pipeline_kills": 3.0}, "spread": {}, "goals": {}}
    assert assembled({"sites": sites, "kills": {"kills": exact}}, {})["summary"]["exactly_once_kills"] == 7
    assert assembled({"kills": {"kills": exact | {"surplus": 1}}}, {})["summary"]["exactly_once_kills"] == 0
    assert "exactly_once_kills" not in assembled({"source": {"summary": {}}}, {})["summary"]


def test_reads_are_compared_with_reads_and_writes_with_writes() -> None:
    seconds = {Cell(who, what, 100): 1.0 for who in ("tailrace", "parquet") for what in ("value only", "write")}
    assert [cell.what for cell in ratios([seconds], "parquet", writes=True)] == ["write"]
    assert [cell.what for cell in ratios([seconds], "parquet", writes=False)] == ["value only"]


def test_messages_have_their_size_and_differ() -> None:
    for size in (100, 1000):
        messages = messages_of(size, 500)
        assert {len(message) for message in messages} == {size}
        assert len(set(messages)) == 500
        assert not any(b"\n" in message for message in messages), "a text file has one in a line"


def test_the_table_says_whether_goals_are_met() -> None:
    row = {"who": "tailrace", "what": "write", "message_bytes": 100, "rows_per_s": 5, "mb_per_s": 1.0, "spread": [4, 6]}
    result = {
        "rows": [row],
        "summary": {"source_vs_kafka": 2.5, "source_vs_text": 0.1},
        "spread": {"source_vs_kafka": [2.4, 2.6]},
        "goals": {"source_vs_kafka": 2.0, "source_vs_text": 0.45},
        "settings": {"repeats": 1},
    }
    rates, summary = tables(result)
    assert rates.row_count == 1
    assert list(summary.columns[-1].cells) == ["2 met", "0.45 missed"]


def test_a_phase_of_an_outage_tells_who_did_what_and_how_late() -> None:
    normal, later = Phase("normal", 0, 10_000_000), Phase("full outage", 10_000_000, 20_000_000)
    outputs = [
        Seen("a", 2_000_000, 90, 2_200_000),
        Seen("b", 9_500_000, 10, 11_400_000),
        Seen("a", 12_000_000, 5, 12_500_000),
    ]
    first, second = phases(outputs, [normal, later])
    assert first["messages_per_s"] == {"a": round(90 / 8.5, 1), "b": 0.0, "c": 0.0}
    assert (first["delay_p50_s"], first["delay_p90_s"], first["delay_max_s"]) == (0.2, 0.2, 1.9)
    assert second["messages_per_s"]["a"] == round(5 / 8.5, 1)
    assert second["messages_per_s"]["b"] == 0.0, "what came out in the first moments was under way before"
    assert second["delay_p90_s"] == 0.5


def test_percentiles_count_messages_and_not_outputs() -> None:
    assert percentile([(3_000_000, 1), (1_000_000, 9)], 90) == 1.0
    assert percentile([(3_000_000, 2), (1_000_000, 8)], 90) == 3.0
    assert percentile([], 50) is None


def test_outages_are_compared_with_normal_times() -> None:
    told = [
        {"phase": name, "messages_per_s": {"a": 10.0, "b": 5.0, "c": 8.0}, "delay_p90_s": p90_s}
        for name, p90_s in (("normal", 0.5), ("full outage", 0.6), ("partial outage", 2.0), ("frozen", 3.0))
    ]
    found = summary(told)
    assert found["even_load"] == 0.5
    assert found["full_outage_p90_vs_normal"] == 0.6 / 0.5
    assert (found["partial_outage_p90_vs_normal"], found["frozen_p90_vs_normal"]) == (4.0, 6.0)
