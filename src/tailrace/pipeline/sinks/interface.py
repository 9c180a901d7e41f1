"""Where a pipeline's output goes. A sink makes the output of a committed unit visible: whole, and once (U12).

The first phase is not the sink's: outputs are staged, and the commit of the unit in the state decides which of them
counts. `publish` is the second phase. It may be called again and again, by any site, for the same unit, after a crash
at any point: only the first call that went through has an effect.
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from ..staging import Footer


class Sink(Protocol):
    """Goes to other processes by pickle, so it holds names and settings, no connections."""

    @property
    def place(self) -> str:
        """For people: what it writes to."""
        ...

    def staging_folder(self, default: str) -> str:
        """Where outputs are to be staged for it: on the same file system, if that saves a copy."""
        ...

    def prepare(self) -> None:
        """Before anything runs; ConfigError if it cannot work."""
        ...

    def has(self, footer: Footer) -> bool:
        """Whether the unit's output was published."""
        ...

    def publish(self, footer: Footer, staged: str) -> None:
        """Make the output in this Parquet file visible, unless it is."""
        ...

    def close(self) -> None:
        """This process publishes no more for now; what it keeps open between units is let go."""
        ...

    def outputs(self) -> Iterator[Footer]:
        """What was published, with the input it was made of: for each unit, or all in one, as stretches."""
        ...


@runtime_checkable
class Claimed(Protocol):
    """A sink that serves one pipeline only, and says so before anything runs."""

    def claim(self, pipeline: str) -> None:
        """ConfigError if it is another's."""
        ...
