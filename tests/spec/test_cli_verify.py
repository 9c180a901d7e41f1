"""`verify` beside a producer whose retention deletes files under the walk."""

from pathlib import Path

import tailrace
from tailrace.node.cli.meter import Meter
from tailrace.node.cli.verify import _shard_findings
from tailrace.streams import Checked


def test_a_file_that_retention_deletes_meanwhile_is_no_finding(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        for _ in range(3):  # each opening begins a new file
            with world.producer("s") as producer:
                producer.send(b"x")

        class Trimming(Meter):
            def add(self, count_bytes: int, messages: int = 0) -> None:
                world.set_retention("s", tailrace.Retention(size_bytes=1))
                world.trim("s")

        checked = Checked()
        assert list(_shard_findings(world, "s", 0, checked, Trimming("s", None, shown=False))) == []
        assert (checked.files, checked.messages, checked.data_bytes) == (1, 1, 1)
