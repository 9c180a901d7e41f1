"""Which segments may go (A69). The deciding is pure; `collect` carries it out.

Invariants: oldest first and without gaps, so what is kept is one continuous run; never the newest segment; never one
that a checkpoint which the policy waits for has not passed, or that one of the snapshots which it keeps still needs.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise

from ..config import Retention
from ..errors import Corrupt, FileMissing
from ..files import Files
from ..model import MessageFile
from .segments import Segment, segments_of
from .shard_files import SegmentView, shard_folder
from .snapshot import SnapshotFile, kept
from .snapshots import delete_snapshot, is_good, list_snapshots


def expired(
    segments: Sequence[Segment], policy: Retention, now_us: int, newest_bytes: int, passed: Collection[int]
) -> int:
    """How many segments, from the oldest on, may go.

    newest_bytes: how much the newest segment holds (all others are told by their successors).
    passed: the positions of the checkpoints that the policy waits for, and of the oldest snapshot that it keeps.
    """
    if policy == Retention():
        return 0
    held_bytes = newest_bytes + sum(_size(a, b) for a, b in pairwise(segments))
    count = 0
    for segment, later in pairwise(segments):
        # Everything in a segment is older than the next one's creation.
        old = policy.age_s is not None and now_us - later.created_us > policy.age_s * 1e6
        too_much = policy.size_bytes is not None and held_bytes > policy.size_bytes
        no_limit = policy.age_s is None and policy.size_bytes is None
        waited_for = any(position < later.data_base for position in passed)
        if waited_for or not (old or too_much or no_limit):
            break
        held_bytes -= _size(segment, later)
        count += 1
    return count


def _size(segment: Segment, later: Segment) -> int:
    return later.data_base - segment.data_base + later.index_base - segment.index_base


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection deleted: whole segments, their bytes, snapshots; and where the shard begins now."""

    segments: int
    size_bytes: int
    start: int
    snapshots: int = 0


def collect(
    files: Files, stream: str, shard: int, policy: Retention, now_us: int, passed: Collection[int]
) -> Collected:
    """Delete the segments of one shard that may go. Safe beside producers and consumers, and after a crash half-way."""
    folder = shard_folder(stream, shard)
    names = files.list(folder)
    segments = segments_of(names)
    while segments and not _is_whole(files, folder, segments[-1]):
        segments.pop()  # not begun yet, or never: what counts as the newest is the last one that stands
    if not segments:
        return Collected(0, 0, 0)
    with SegmentView(files, folder, segments[-1]) as newest:
        newest_bytes = newest.length().readable_bytes + newest.data_length().readable_bytes
    snapshots = [] if policy == Retention() else list_snapshots(files, stream, shard)
    good: list[SnapshotFile] | None = None  # not looked at yet: that means reading them
    covered = _covered(snapshots, policy)
    count = expired(segments, policy, now_us, newest_bytes, [*passed, *covered])
    if policy.keeps_snapshots is not None and (count or len(snapshots) > policy.keeps_snapshots):
        good = _good(files, stream, shard, snapshots, policy.keeps_snapshots)
        count = expired(segments, policy, now_us, newest_bytes, [*passed, *_covered(good, policy)])
    size = sum(_size(segments[i], segments[i + 1]) for i in range(count))
    for segment in segments[:count]:
        # The index first: without it the data file is no segment, so nobody opens half of one.
        for name in (segment.index_name, segment.data_name):
            _delete(files, f"{folder}/{name}")
    _delete_halves(files, folder, names, oldest_kept_us=segments[count].created_us)
    start = segments[count].data_base
    if good is None and len(snapshots) > 1 and snapshots[-1].position < start:
        good = _good(files, stream, shard, snapshots, 1)
    surplus = [] if good is None else snapshots[kept(snapshots, good, policy.keeps_snapshots, start) :]
    for snapshot in surplus:
        delete_snapshot(files, stream, shard, snapshot)
    return Collected(count, size, start, len(surplus))


def _covered(snapshots: Sequence[SnapshotFile], policy: Retention) -> list[int]:
    """Up to where no kept snapshot needs messages: nowhere until there are enough of them."""
    if policy.keeps_snapshots is None:
        return []
    enough = len(snapshots) >= policy.keeps_snapshots
    return [snapshots[policy.keeps_snapshots - 1].position if enough else 0]


def _good(files: Files, stream: str, shard: int, snapshots: Sequence[SnapshotFile], count: int) -> list[SnapshotFile]:
    """The newest of them that are whole, as many as asked for. A name alone is not believed when files are to go."""
    return list(islice((one for one in snapshots if is_good(files, stream, shard, one)), count))


def _is_whole(files: Files, folder: str, segment: Segment) -> bool:
    try:
        with SegmentView(files, folder, segment) as view:
            return view.has_header(view.length(), None)
    except (Corrupt, FileMissing):
        return False


def _delete_halves(files: Files, folder: str, names: list[str], oldest_kept_us: int) -> None:
    """Files without their other half, older than all that is kept: a deletion or a creation that a crash cut short."""
    whole = {segment.created_us for segment in segments_of(names)}
    for name in names:
        file = MessageFile.parse(name)
        if file and file.created_us < oldest_kept_us and file.created_us not in whole:
            _delete(files, f"{folder}/{name}")


def _delete(files: Files, path: str) -> None:
    with suppress(FileMissing):  # somebody else collects too
        files.delete(path)
