"""What `tailrace consume` asks of an output."""

from typing import Protocol

from ....streams import Batch


class Output(Protocol):
    """After `write`, if `lasting`, and after `finish` in any case, what was written stays: commit only then."""

    lasting: bool

    def write(self, batch: Batch, count: int) -> None:
        """The first `count` messages of a batch."""
        ...

    def abandoned(self) -> bool:
        """Nobody reads it any more."""
        ...

    def finish(self) -> None: ...

    def discard(self) -> None:
        """Something went wrong: leave nothing that looks whole. Does nothing after `finish`."""
        ...
