"""Real processes, really killed: what was flushed is there, in order, and a consumer skips nothing."""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tailrace
from tailrace.streams import Checked, verify_shard

LOOPS = Path(__file__).with_name("loops.py")
KILLS = 20


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, str(LOOPS), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.communicate()


def killed_after(lines: int, *arguments: str) -> list[list[str]]:
    """Run until it has said so many lines, kill it with SIGKILL, and return all that it said."""
    with process(*arguments) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().split() for _ in range(lines)]
        child.kill()
        said += [line.split() for line in child.stdout]
    assert all(said), f"{arguments} ended by itself"
    return said


def test_producers_killed_again_and_again_lose_nothing_that_was_flushed(tmp_path: Path) -> None:
    dice = random.Random(7)
    durable = 0
    for _ in range(KILLS):
        said = killed_after(dice.randint(2, 12), "produce", str(tmp_path), "s")
        resumed = int(said[0][1])
        assert resumed >= durable, "flushed messages are gone"
        durable = int(said[-1][1])
    with tailrace.open(tmp_path) as world:
        messages = [m for batch in world.consumer("s", start="earliest", follow=False) for m in batch]
        assert len(messages) >= durable
        for number, message in enumerate(messages):
            assert message.value == b"%d " % number + b"." * (number % 300)
        checked = Checked()
        assert not [f for f in verify_shard(world.files, "s", 0, checked) if f.kind == "damage"]
        assert checked.messages == len(messages)


def test_consumers_killed_again_and_again_miss_nothing(tmp_path: Path) -> None:
    dice = random.Random(8)
    with process("produce", str(tmp_path), "s") as producer:
        assert producer.stdout is not None
        producer.stdout.readline()
        upto = 0
        for _ in range(KILLS):
            for words in killed_after(dice.randint(1, 8), "consume", str(tmp_path), "s"):
                first, end, count = map(int, words[1:])
                assert end - first == count, "a batch with a gap"
                assert first <= upto, "messages were skipped"
                upto = max(upto, end)
    with tailrace.open(tmp_path) as world:
        committed = world.checkpoints("s")["reader"][0]
        seen = [m for m in read(world, {0: committed}) if m.value]
        if seen:
            assert int(seen[0].value.split(b" ")[0]) <= upto  # type: ignore[union-attr]


def read(world: tailrace.World, start: dict[int, int]) -> list[tailrace.Message]:
    return [m for batch in world.consumer("s", start=start, follow=False) for m in batch]


def test_the_older_of_two_producers_fails_cleanly(tmp_path: Path) -> None:
    with process("hold", str(tmp_path), "s") as older, process("hold", str(tmp_path), "s") as newer:

        def ask(child: subprocess.Popen[str], line: str) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(line + "\n")
            child.stdin.flush()
            return child.stdout.readline()

        for child in (older, newer):
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        # Which of them opened the shard last is theirs to settle; from then on only one can flush.
        answers = {child.pid: ask(child, f"one of {child.pid}") for child in (older, newer)}
        winners = [child for child in (older, newer) if answers[child.pid] == "durable\n"]
        losers = [child for child in (older, newer) if child not in winners]
        assert len(winners) == 1, answers
        assert answers[losers[0].pid].startswith("Fenced False")
        assert str(winners[0].pid) in answers[losers[0].pid], "the error names who took over"
        assert ask(winners[0], "two") == "durable\n"
        assert ask(losers[0], "three").startswith("Fenced False")
    with tailrace.open(tmp_path) as world:
        assert [m.value for m in read(world, {0: 0})] == [b"one of %d" % winners[0].pid, b"two"]
        assert list(verify_shard(world.files, "s", 0, Checked())) == []
