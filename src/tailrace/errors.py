"""What the world refuses, as one tree. Arguments that can never be right raise TypeError or ValueError instead.

    TailraceError
    ├── ConfigError            a setting is wrong; nothing has started
    ├── NameRefused            a name from outside that may not touch a path
    ├── StreamMissing          no such stream, and it was not to be made
    ├── StreamExists           the stream is there already, with other settings
    ├── CacheMissing           no such cache, and it was not to be made
    ├── CacheExists            the cache is there already, with other settings
    ├── CacheRefused           a mutation that a quorum of backends did not take
    │   ├── CacheFull          no memory, with nothing left to evict
    │   ├── ValueTooLarge      larger than an entry may be
    │   ├── KeyExists          the cache is immutable, and the key is set already
    │   ├── ClockAhead         this machine's clock is further ahead than the backends allow
    │   └── CacheUnavailable   too few backends can be reached
    ├── CacheUnconfirmed       a mutation that some backends took, or may have taken: read before retrying
    ├── FileProblem            the durable layer refused
    │   ├── DiskFull           no space: what was sent stays in memory; make room and flush again
    │   ├── Fenced             a newer appender took over: stop, or open again
    │   ├── OffsetMismatch     an append that does not start where the file ends
    │   └── FileMissing        the file is not there
    ├── FlushFailed            a flush did not finish; the messages are still buffered, flush() tries them again
    ├── SendRefused            the buffer stayed full until the deadline: this message was not taken
    ├── Closed                 used after close()
    ├── Corrupt                bytes below the flushed length fail their checksum
    ├── PositionRetired        reading before what retention has kept
    ├── SnapshotMissing        no snapshot that can be read leads to the messages that are kept
    ├── CoordinationError      the coordination store refused
    │   └── LeaseExpired       the lease ran out: what it held is gone
    └── WireProblem            a call to another process did not succeed
        ├── Unreachable        nobody answers there, or not any more
        ├── DeadlineExceeded   no answer in time
        ├── Denied             the other side does not trust us, or we do not trust it
        ├── WireRefused        the request can never be right: too large, malformed, unknown
        ├── Busy               too many calls at once: try again in a moment
        ├── Superseded         a newer operation copies to this place now
        └── PeerFailed         the other side tried and failed

A message says what was tried, what was seen, and what to do next. `took_effect` answers "may I retry?".
"""


class TailraceError(Exception):
    """Base of every error we raise."""

    #: False: it did not happen, so retry freely. True: it happened. None: nobody knows, so ask before retrying.
    took_effect: bool | None = False


class ConfigError(TailraceError):
    """Fix the setting it names; nothing has started."""


class NameRefused(TailraceError):
    """A stream, checkpoint or file name that could leave its folder or confuse a person."""


class StreamMissing(TailraceError):
    """There is no stream of this name."""


class StreamExists(TailraceError):
    """The stream is there already and differs from what was asked."""


class CacheMissing(TailraceError):
    """There is no cache of this name."""


class CacheExists(TailraceError):
    """The cache is there already and differs from what was asked."""


class CacheRefused(TailraceError):
    """A quorum of the backends did not take it; nothing was changed. `keys`: of many, those it is about."""

    keys: tuple[bytes, ...] = ()


class CacheFull(CacheRefused):
    """No memory, with nothing left to evict."""


class ValueTooLarge(CacheRefused):
    """An entry that does not fit a backend's memory layout."""


class KeyExists(CacheRefused):
    """The cache is immutable: erase the key before it is set anew."""


class ClockAhead(CacheRefused):
    """This machine's clock is further ahead of the backends' than the cache allows. Set it right."""


class CacheUnavailable(CacheRefused):
    """Too few backends can be reached to do it."""


class CacheUnconfirmed(TailraceError):
    """Fewer backends than a quorum are known to have taken it. It may show later; read before you retry."""

    took_effect = None
    keys: tuple[bytes, ...] = ()


class FileProblem(TailraceError):
    """The durable layer refused: permission, a read-only disk, an input/output error."""


class DiskFull(FileProblem):
    """No space left. Nothing became visible; make room, then do it again."""


class Fenced(FileProblem):
    """A newer appender owns this now. What was not flushed before stays unwritten."""


class OffsetMismatch(FileProblem):
    """The append named another offset than the file's length; nothing was written."""


class FileMissing(FileProblem):
    """The file is not there (any more)."""


class FlushFailed(TailraceError):
    """Not confirmed, and not visible now. The messages are still buffered: the next flush() tries them again and
    delivers them once. If the process ends before that, a restart of the machine may still bring some of them back."""

    took_effect = None


class SendRefused(TailraceError):
    """The buffer stayed full until the deadline, so this message was not taken."""


class Closed(TailraceError):
    """The object was closed; open a new one."""


class Corrupt(TailraceError):
    """Flushed bytes that fail their checksum or their format. A consumer may seek to resume_position to go on."""

    def __init__(
        self,
        message: str,
        *,
        shard: int | None = None,
        position: int | None = None,
        resume_position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.shard = shard
        self.position = position
        self.resume_position = resume_position


class PositionRetired(TailraceError):
    """The position lies before what retention has kept."""

    def __init__(self, message: str, *, shard: int | None = None, position: int, retained_start: int) -> None:
        super().__init__(message)
        self.shard = shard
        self.position = position
        self.retained_start = retained_start


class SnapshotMissing(TailraceError):
    """A keyed shard cannot be built: what retention has deleted is in no snapshot that can be read."""


class CoordinationError(TailraceError):
    """The coordination store could not do it."""


class LeaseExpired(CoordinationError):
    """The lease ran out; the keys bound to it are gone."""


class WireProblem(TailraceError):
    """A call to another process did not succeed. Each says for itself whether it may have taken effect; a call that
    only looks never has."""


class Unreachable(WireProblem):
    """Nobody answers there. took_effect is False if the call was never sent, None if the connection broke under it."""

    took_effect: bool | None = None


class DeadlineExceeded(WireProblem):
    """No answer in time. The other side may have done it, or may do it yet."""

    took_effect: bool | None = None


class Denied(WireProblem):
    """The caller's identity is unknown to the other side, or has no grant for this."""


class WireRefused(WireProblem):
    """The request is too large, malformed, or of a kind that the other side does not know; it would be again."""


class Busy(WireProblem):
    """The other side has as many calls as it takes."""


class Superseded(WireProblem):
    """A newer operation has taken this one's place; what was copied before stays."""


class PeerFailed(WireProblem):
    """The other side tried and failed, or answered what makes no sense."""

    took_effect: bool | None = None
