"""From a consumer to an output, up to a limit or an end, committing only what has been written out."""

from collections.abc import Callable

from ...errors import Corrupt
from ...streams import Consumer
from ..world import World
from .interrupt import Interrupt
from .outputs import Output

_TICK_S = 0.1  # how soon a Ctrl-C is heard while nothing comes


def pump(
    world: World,
    consumer: Consumer,
    output: Output,
    interrupt: Interrupt,
    on_written: Callable[[int, int], None],
    *,
    follow: bool,
    limit: int | None,
    commits: bool,
) -> None:
    """Until the limit, a Ctrl-C, or, without `follow`, the end as it is now. BrokenPipeError when nobody reads on."""
    ends = None if follow else _Ends(world, consumer)
    left = limit
    while left != 0 and not interrupt.asked and not (ends and ends.reached()):
        batch = consumer.poll(_TICK_S)
        if batch is None:
            if output.abandoned():
                raise BrokenPipeError
            if ends:
                ends.look_again()
            continue
        count = batch.count if left is None else min(left, batch.count)
        end = batch.end
        if count < batch.count:
            end = batch.messages()[count].position
            consumer.seek(end, batch.shard, stream=batch.stream)  # so that the rest counts as not handed out
        output.write(batch, count)
        if commits and output.lasting:
            consumer.commit()
        left = None if left is None else left - count
        on_written(end - batch.start, count)
    output.finish()
    if commits and not output.lasting:
        consumer.commit()


class _Ends:
    """Where each shard ended when we began: a producer that goes on must not keep us here forever."""

    def __init__(self, world: World, consumer: Consumer) -> None:
        self._world, self._consumer = world, consumer
        self._ends = self._look()

    def reached(self) -> bool:
        return all(position >= self._ends[place] for place, position in self._consumer.positions.items())

    def look_again(self) -> None:
        """Nothing came. A stream that was deleted meanwhile says so here; one that was made anew may end earlier."""
        now = self._look()
        self._ends = {place: min(end, now[place]) for place, end in self._ends.items()}

    def _look(self) -> dict[tuple[str, int], float]:
        ends: dict[tuple[str, int], float] = dict.fromkeys(self._consumer.positions, float("inf"))
        for stream in {stream for stream, _ in ends}:
            try:
                for status in self._world.stream_status(stream):
                    if (stream, status.shard) in ends:
                        ends[stream, status.shard] = status.end
            except Corrupt:
                pass  # the consumer gets as far as it can, and then says what is wrong
        return ends
