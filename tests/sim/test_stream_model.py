"""Random produce, flush, crash, reopen, rollover, consume, seek and retention against a dumb model: lists."""

from datetime import UTC, datetime

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.config import Retention
from tailrace.errors import Fenced, PositionRetired
from tailrace.native import Message, shard_of
from tailrace.streams import Producer, ShardTail, collect
from tailrace.testing import Fault, FaultyDisk, ManualClock, SimulatedCrash, SimulatedDisk
from worlds import STREAM, SimulatedWorld, small_config

SHARDS = 2
keys = st.sampled_from([None, b"", b"a", b"b", b"key-7"])
payloads = st.one_of(st.just(b""), st.binary(max_size=60), st.just(b"x" * 300))

Row = tuple[bytes | None, bytes | None]  # key, value


class StreamMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed=seed)
        self.clock = ManualClock()
        self.seed = seed
        self.durable: list[list[Row]] = [[] for _ in range(SHARDS)]  # the model: what a consumer must see, by shard
        self.buffered: list[list[Row]] = [[] for _ in range(SHARDS)]  # sent, not flushed
        # What flushes that were cut short may have left on disk: a restart of the machine can bring it to light, until
        # a later flush puts other messages in its place.
        self.limbo: list[list[list[Row]]] = [[] for _ in range(SHARDS)]
        self.turn = 0
        self.retired = [0] * SHARDS  # how many messages retention has taken
        self.older: list[Producer] = []
        self.cursor: ShardTail | None = None
        self.cursor_at = 0
        self.new_reader()
        self.new_process()

    def new_reader(self) -> None:
        """Consumers live in a process of their own: they see producers come and go."""
        self.seed += 1
        self.reader = SimulatedWorld(self.disk.process(), self.clock, small_config(SHARDS), seed=self.seed)
        self.cursor = None

    def new_process(self) -> None:
        self.seed += 1
        self.process = self.disk.process()
        self.world = SimulatedWorld(self.process, self.clock, small_config(SHARDS), seed=self.seed)
        self.producer = self.world.producer()
        self.turn = 0
        self.buffered = [[] for _ in range(SHARDS)]

    # ---- producing

    @rule(key=keys, value=payloads)
    def send(self, key: bytes | None, value: bytes) -> None:
        self.producer.send(value, key)
        if key is None:
            shard, self.turn = self.turn, (self.turn + 1) % SHARDS
        else:
            shard = shard_of(key, SHARDS)
        self.buffered[shard].append((key, value))

    @rule(key=st.sampled_from([b"a", b"b"]))
    def send_tombstone(self, key: bytes) -> None:
        self.producer.send(None, key)
        self.buffered[shard_of(key, SHARDS)].append((key, None))

    @rule(rows=st.lists(payloads, max_size=8), shard=st.integers(0, SHARDS - 1))
    def send_many(self, rows: list[bytes], shard: int) -> None:
        self.producer.send_many(rows, shard=shard)
        self.buffered[shard] += [(None, value) for value in rows]

    @rule()
    def flush(self) -> None:
        self.producer.flush()
        for shard in range(SHARDS):
            if self.buffered[shard]:
                self.limbo[shard] = []
            self.durable[shard] += self.buffered[shard]
            self.buffered[shard] = []

    @rule(seconds=st.sampled_from([0.001, 1.0, 5000.0]))  # the last makes files old enough to roll
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-100.0, 100.0]))
    def clock_jumps(self, seconds: float) -> None:
        self.clock.jump_wall(seconds)

    # ---- endings

    @rule()
    def close_and_reopen(self) -> None:
        self.flush()
        self.producer.close()
        self.new_process()

    @rule()
    def process_dies(self) -> None:
        self.process.kill()
        self.new_process()

    @rule(at=st.integers(1, 60), effect=st.sampled_from(["none", "half", "whole"]))
    def process_dies_in_a_flush(self, at: int, effect: str) -> None:
        """Written but not flushed bytes stay in the files, and must never be seen."""
        self.world.files._disk = FaultyDisk(self.process, Fault(at=at, kind="crash", effect=effect))  # type: ignore[arg-type]
        for log in self.producer._logs.values():
            for appender in () if log._open is None else (log._open._data, log._open._index):
                appender._disk = appender._fence._disk = self.world.files._disk  # type: ignore[attr-defined]
        try:
            self.flush()
        except SimulatedCrash:
            self.learn(self.reader)
        self.process.kill()
        self.new_process()

    @rule(keep=st.sampled_from(["nothing", "random", "everything"]))
    def machine_goes_down(self, keep: str) -> None:
        self.older.clear()
        self.disk.crash(keep)  # type: ignore[arg-type]
        self.new_reader()
        self.learn(self.reader)
        self.new_process()

    def learn(self, reader: SimulatedWorld) -> None:
        """Of what was not confirmed, a run from its start may be there all the same; the model learns how much."""
        for shard in range(SHARDS):
            seen = [(m.key, m.value) for m in read_all(reader.tail(shard))]
            expected = self.durable[shard][self.retired[shard] :]
            assert seen[: len(expected)] == expected
            extra = seen[len(expected) :]
            self.limbo[shard].append(self.buffered[shard])
            assert any(extra == rows[: len(extra)] for rows in self.limbo[shard])
            if extra:
                self.limbo[shard] = []
            self.durable[shard] += extra

    @rule()
    def second_producer_takes_over(self) -> None:
        self.older.append(self.producer)
        self.new_process()

    @precondition(lambda self: self.older)
    @rule()
    def the_older_one_tries_again(self) -> None:
        producer = self.older.pop()
        producer.send(b"from the grave")
        try:
            producer.flush()
        except Fenced:
            pass
        else:
            raise AssertionError("a producer that was shut out could flush")

    # ---- reading

    @rule(shard=st.integers(0, SHARDS - 1))
    def open_cursor(self, shard: int) -> None:
        self.cursor = self.reader.tail(shard, "earliest")
        self.cursor_at = self.retired[shard]

    @precondition(lambda self: self.cursor is not None)
    @rule(bytes_max=st.sampled_from([1, 50, 1000]))
    def advance_cursor(self, bytes_max: int) -> None:
        assert self.cursor is not None
        shard = self.cursor.shard
        expected = self.durable[shard][self.cursor_at :]
        try:
            batch = self.cursor.poll(bytes_max)
        except PositionRetired as retired:
            assert self.cursor_at < self.retired[shard]
            assert retired.retained_start > retired.position
            self.cursor = None
            return
        if batch is None:
            assert expected == []
            return
        seen = [(m.key, m.value) for m in batch]
        assert seen == expected[: len(seen)]
        assert seen
        self.cursor_at += len(seen)

    @rule(shard=st.integers(0, SHARDS - 1), fraction=st.floats(0, 1))
    def seek_to_position(self, shard: int, fraction: float) -> None:
        messages = read_all(self.reader.tail(shard))
        if not messages:
            return
        wanted = messages[int(fraction * (len(messages) - 1))]
        tail = self.reader.tail(shard, wanted.position)
        assert tail.position == wanted.position
        assert read_all(tail) == messages[messages.index(wanted) :]
        # Between two messages there is no message: the next one is meant.
        between = self.reader.tail(shard, wanted.position + 1)
        assert read_all(between) == [m for m in messages if m.position > wanted.position]

    @rule(shard=st.integers(0, SHARDS - 1), fraction=st.floats(0, 1), shift_us=st.sampled_from([-1, 0, 1]))
    def seek_to_time(self, shard: int, fraction: float, shift_us: int) -> None:
        messages = read_all(self.reader.tail(shard))
        if not messages:
            return
        time_us = messages[int(fraction * (len(messages) - 1))].timestamp_us + shift_us
        tail = self.reader.tail(
            shard, datetime.fromtimestamp(time_us // 10**6, UTC).replace(microsecond=time_us % 10**6)
        )
        assert read_all(tail) == [m for m in messages if m.timestamp_us >= time_us]

    @rule(shard=st.integers(0, SHARDS - 1))
    def follow_from_the_end(self, shard: int) -> None:
        self.flush()
        tail = self.reader.tail(shard, "latest")
        assert tail.poll(1000) is None
        self.producer.send(b"news", shard=shard)
        self.buffered[shard].append((None, b"news"))
        self.flush()
        assert [m.value for m in read_all(tail)] == [b"news"]

    @rule(size=st.sampled_from([1, 300, 2000]), shard=st.integers(0, SHARDS - 1))
    def retention(self, size: int, shard: int) -> None:
        policy = Retention(size_bytes=size)
        before = read_all(self.reader.tail(shard))
        collected = collect(self.reader.files, STREAM, shard, policy, self.clock.time_us(), [])
        after = read_all(self.reader.tail(shard))
        assert after == before[len(before) - len(after) :]
        self.retired[shard] += len(before) - len(after)
        if collected.segments:
            gone = [m for m in before if m not in after]
            if gone:
                try:
                    self.reader.tail(shard, gone[0].position)
                except PositionRetired as retired:
                    assert retired.retained_start == collected.start
                else:
                    raise AssertionError("a retired position was taken")

    # ---- what always holds

    @invariant()
    def consumers_see_exactly_what_was_flushed(self) -> None:
        for shard in range(SHARDS):
            messages = read_all(self.reader.tail(shard))
            assert [(m.key, m.value) for m in messages] == self.durable[shard][self.retired[shard] :]
            positions = [m.position for m in messages]
            assert positions == sorted(set(positions))
            times = [m.timestamp_us for m in messages]
            assert times == sorted(times)


def read_all(tail: ShardTail) -> list[Message]:
    messages: list[Message] = []
    while batch := tail.poll(200):
        messages += batch
    tail.close()
    return messages


StreamMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestStreamModel = StreamMachine.TestCase
