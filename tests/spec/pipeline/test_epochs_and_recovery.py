"""Partitions of the state that change while everything runs, and the state again from the outputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, Corrupt
from tailrace.model import MessageFile
from tailrace.pipeline.epochs import Epoch, Partition, partition_of, partitions_of, runs, with_epoch
from tailrace.pipeline.ranges import ByteRange, overlap, total
from tailrace.pipeline.recovery import check_outputs, rebuild
from tailrace.pipeline.tracking import Report, track


def name(created_us: int, base: int = 0) -> str:
    return MessageFile(created_us, base, "data").name


def test_a_file_belongs_to_the_setting_of_the_time_in_its_name() -> None:
    before = (Epoch(0, 10),)
    after = with_epoch(before, from_us=1000, partitions=20, newest_file_us=900)
    for shard in range(100):
        assert partition_of(after, "s", shard, name(900)) == partition_of(before, "s", shard, name(900)), "stays"
        assert partition_of(after, "s", shard, name(1000)).epoch == 1
    assert {partition_of(after, "s", shard, name(1000)).number for shard in range(500)} == set(range(20))
    assert len(partitions_of(after)) == 30


def test_partitions_cannot_change_for_files_that_are_known() -> None:
    with pytest.raises(ConfigError, match="use a later one"):
        with_epoch((Epoch(0, 1),), from_us=900, partitions=2, newest_file_us=900)


def test_a_shards_files_of_one_epoch_stay_together() -> None:
    epochs = (Epoch(0, 4), Epoch(100, 8))
    found = runs(epochs, "s", 3, [name(1), name(50, 10), name(100, 20), name(200, 30)])
    assert [files for _, files in found] == [[name(1), name(50, 10)], [name(100, 20), name(200, 30)]]
    assert [partition.epoch for partition, _ in found] == [0, 1]
    assert Partition(1, 3).name == "1.3"


@given(st.lists(st.integers(0, 99), max_size=20, unique=True), st.integers(1, 100))
def test_what_outputs_name_is_done_and_the_holes_are_units(done: list[int], tracked: int) -> None:
    """Outputs of single bytes, in any order; the site may be behind what others had processed."""
    file = name(1)
    shard = track(None, Report("us", "s", 0, "i", (file,), tracked))
    outputs = check_outputs([ByteRange("s", 0, file, at, at + 1) for at in done])
    rebuilt = rebuild(shard, outputs, oldest_us=0, now_us=0, site="us")
    holes = [one for unit in rebuilt.units for one in unit.ranges]
    assert overlap([*holes, *outputs]) is None
    assert rebuilt.shard.created == max([0, *(at + 1 for at in done)])
    assert total(holes) + len(done) == rebuilt.shard.created


def test_outputs_that_contradict_each_other_are_not_built_upon() -> None:
    with pytest.raises(Corrupt, match="two outputs"):
        check_outputs([ByteRange("s", 0, name(1), 0, 10), ByteRange("s", 0, name(1), 9, 12)])
