"""The demo and the benchmark, for real but short."""

import json
import subprocess
import sys
from typing import Any

import pytest


def run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *arguments], capture_output=True, text=True, timeout=280, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_demo_kills_two_processes_and_finds_every_message() -> None:
    code, out, err = run("demo", "--chapter", "streams", "--seconds", "5", "--json")
    assert code == 0, out + err
    told: dict[str, Any] = json.loads(out)
    assert told["problems"] == []
    outcome = told["chapters"]["streams"]
    assert outcome["flushed"] > 1000
    assert outcome["delivered"] == 3 * outcome["flushed"]
    assert outcome["messages_checked"] == outcome["flushed"]
    assert 0 < outcome["delay_p50_ms"] <= outcome["delay_p99_ms"]
    assert err.count("kill -9 of") == 2
    assert err.count("is back as pid") == 2


def test_the_demo_of_clusters_loses_one_and_finds_every_byte_everywhere() -> None:
    code, out, err = run("demo", "--chapter", "clusters", "--seconds", "3", "--json")
    assert code == 0, out + err
    outcome: dict[str, Any] = json.loads(out)["chapters"]["clusters"]
    assert outcome["problems"] == []
    assert outcome["delivered"] == 4 * outcome["flushed"] > 4000
    assert outcome["bytes_compared"] > 100 * outcome["flushed"]
    assert outcome["delays_ms"]["eu-north"][0] > 40 + 12  # an ocean and a sea
    for words in ("eu-north gets messages again", "the consumer of eu-west reads in", "its consumer is home"):
        assert words in err


def test_a_chapter_that_is_not_there_is_refused() -> None:
    code, _, err = run("demo", "--chapter", "ending")
    assert code == 2
    assert "--chapter ending: there are streams, clusters, advertising" in err


def test_the_demo_without_a_terminal_ends_with_a_verdict() -> None:
    code, out, err = run("demo", "--chapter", "streams", "--seconds", "2")
    assert code == 0, out + err
    assert out.rstrip().endswith("VERDICT: every flushed message reached every consumer, in order, none missing.")


@pytest.mark.parametrize("as_json", [True, False])
def test_the_bench_of_streams(as_json: bool) -> None:
    code, out, err = run("bench", "streams", "--quick", "--repeats", "1", *(["--json"] if as_json else []))
    assert code == 0, err
    assert "warm-up" in err
    figures = [
        "produce_send_msgs_per_s",
        "produce_many_msgs_per_s",
        "consume_arrow_msgs_per_s",
        "consume_objects_msgs_per_s",
        "consume_bytes_of_memcpy",
    ]
    if as_json:
        result = json.loads(out)
        for figure in figures:
            low, high = result["spread"][figure]
            assert 0 < low <= result["summary"][figure] <= high
        assert len(result["runs"]) == 1
    else:
        assert all(figure in out for figure in figures)


def test_the_bench_of_outages_counts_every_message_and_tells_of_each_phase() -> None:
    pytest.importorskip("pyspark")
    code, out, err = run("bench", "spark", "--only", "outages", "--quick", "--json")
    assert code == 0, err
    result = json.loads(out)
    names = [one["phase"] for one in result["outages"]["phases"]]
    assert names[0] == "normal"
    assert {"full outage", "partial outage", "frozen"} < set(names)
    assert {"even_load", "full_outage_p90_vs_normal", "partial_outage_p90_vs_normal"} < set(result["summary"])
