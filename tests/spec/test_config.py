"""Settings: typed, and refused early with the exact path of the bad value."""

import pytest

from tailrace.config import Retention, StreamConfig, WorldConfig, decode, encode, parse_world
from tailrace.errors import ConfigError


def test_an_empty_file_means_our_defaults() -> None:
    assert parse_world("") == WorldConfig()


def test_streams_begin_from_the_worlds_defaults() -> None:
    world = parse_world("""
        [defaults]
        shards = 8
        [defaults.retention]
        age_s = 60
        [streams.prices]
        file_bytes = 1000
        [streams.stock.retention]
        size_bytes = 5
        waits_for = ["billing"]
        [producer]
        buffer_s = 0
    """)
    assert world.stream("other").shards == 8
    assert world.stream("prices") == StreamConfig(shards=8, file_bytes=1000, retention=Retention(age_s=60.0))
    assert world.stream("stock").retention == Retention(age_s=60.0, size_bytes=5, waits_for=("billing",))
    assert world.producer.buffer_s == 0.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("shards = 4", "shards: no such setting; there are defaults, streams, producer, consumer"),
        ("[defaults]\nshard = 4", "defaults.shard: no such setting"),
        ("[defaults]\nshards = 0", "defaults.shards=0: use 1 to 65536"),
        ("[defaults]\nshards = 4.5", "defaults.shards=4.5: use a whole number"),
        ("[defaults]\nshards = true", "defaults.shards=True: use a whole number"),
        ("[defaults]\nshards = '4'", "defaults.shards='4': use a whole number"),
        ("defaults = 7", "defaults=7: use a table"),
        ("streams = 7", "streams=7: use one table per stream"),
        ("[streams.prices]\nfile_s = -1.0", "streams.prices.file_s=-1.0: use more than 0"),
        ("[streams.prices]\nfile_s = nan", "streams.prices.file_s=nan: use more than 0"),
        (
            "[streams.prices.retention]\nkeeps_snapshots = 0",
            "streams.prices.retention.keeps_snapshots=0: use 1 to 10000",
        ),
        (
            "[streams.prices.retention]\nkeeps_snapshots = 'x'",
            "streams.prices.retention.keeps_snapshots='x': use a whole",
        ),
        ("[streams.prices.retention]\nwaits_for = 'x'", "streams.prices.retention.waits_for='x': use a list"),
        ("[streams.prices.retention]\nwaits_for = [1]", "streams.prices.retention.waits_for[0]=1: use a text"),
        ("[streams.prices.retention]\nwaits_for = ['../x']", "streams.prices.retention.waits_for: '../x' is not"),
        ("[streams.'../etc']\nshards = 1", "'../etc' is not a stream name"),
        ("[producer]\npending_bytes_max = 10", "producer.pending_bytes_max=10: use at least buffer_bytes="),
        ("[consumer]\nbatch_bytes = 0", "consumer.batch_bytes=0: use 1 to"),
        ("[consumer]\nin_place = 1", "consumer.in_place=1: use true or false"),
        ("[defaults\n", "not TOML"),
    ],
)
def test_a_bad_value_is_named_by_its_path(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_world(text, "world.toml")
    assert str(refused.value).startswith("world.toml: ")
    assert complaint in str(refused.value)
    assert refused.value.took_effect is False


def test_settings_survive_a_round_trip() -> None:
    for config in (
        StreamConfig(),
        StreamConfig(shards=3, retention=Retention(age_s=1.5, waits_for=("a", "b"), keeps_snapshots=2)),
    ):
        assert decode(StreamConfig, encode(config)) == config
