"""Search for the tree that counts least: from several starts, in small worlds from the best one shaken a little, and in
tiny ones among all there are.

Pure and deterministic: shaking draws from a generator with a fixed seed, so that equal worlds have equal trees.
"""

import math
import random

from tailrace.model import CopyTree

from .exhaustion import Exhaustion
from .growth import Parents, grow
from .improvement import Improvement, height
from .task import Task

_PATIENCE = (1.0, 30.0)  # Prim twice, minding distance little and much: one of the two is a good start
_SMALL = 40  # a world of so many clusters is searched from many more starts: each takes a millisecond or so
_TINY = 9  # a world of so many has few enough trees to look at all of them, more often than not
_SHAKES = 200  # by the number of clusters: so often is a small world's best tree shaken
_LEAST = 1e-12


def best_tree(task: Task, current: CopyTree | None) -> tuple[Parents, float]:
    """Of those that reach most destinations, the one that counts least; and what it counts."""
    starts = _starts(task, current)
    reached = max(_reached(task, start) for start in starts)
    best, value = {}, math.inf
    for start in starts:
        if _reached(task, start) == reached:
            parents = Improvement(task, start).run()
            if (counted := task.value(parents)) < value - _LEAST:
                best, value = parents, counted
    if len(task.members) <= _TINY and reached == len(task.wanted):
        exhaustion = Exhaustion(task, best, value)
        best, value = exhaustion.run()
        if exhaustion.complete:
            return best, value
    if len(task.members) <= _SMALL:
        return _shake(task, best, value)
    return best, value


def _starts(task: Task, current: CopyTree | None) -> list[Parents]:
    kept = None if current is None else _still_possible(task, current)
    if len(task.members) <= _SMALL:
        direct = task.weight[task.source]
        hubs = [grow(task, hub=hub) for hub in task.members[1:] if direct[hub] < math.inf]
        return [*(grow(task, patience=patience) for patience in _PATIENCE), *([kept] if kept else []), *hubs]
    # In a large world a way around is wanted soon, and most of the tree stays as it is anyway.
    if kept is not None and all(v in kept for v in task.wanted):
        return [kept]
    return [grow(task, patience=patience) for patience in _PATIENCE]


def _still_possible(task: Task, current: CopyTree) -> Parents | None:
    """The tree as it is, if today's map still allows all of it."""
    place, members = task.ground.place, set(task.members)
    if current.source != task.demand.source or any(name not in place for name in current.clusters):
        return None
    parents = {place[hop.downstream]: place[hop.upstream] for hop in current.hops}
    for v, u in parents.items():
        if v not in members or u not in members or task.weight[u][v] == math.inf:
            return None
    return parents if height(parents, task.source) <= task.hops_max else None


def _shake(task: Task, best: Parents, value: float) -> tuple[Parents, float]:
    """Small moves stop at trees that two or three moves at once would better. So some are made at random."""
    if len(best) < 2 and not task.relays:
        return best, value
    draw = random.Random(0)
    for _ in range(_SHAKES // len(task.members)):
        start = _shaken(task, best, draw)
        if start is None:
            continue
        parents = Improvement(task, start).run()
        if (counted := task.value(parents)) < value - _LEAST:
            best, value = parents, counted
    return best, value


def _shaken(task: Task, parents: Parents, draw: random.Random) -> Parents | None:
    """A tree in which one to three clusters copy from elsewhere, perhaps from a relay; None if it would be too deep."""
    trial = dict(parents)
    for _ in range(draw.randint(1, 3)):
        new = [relay for relay in task.relays if relay not in trial]
        v = draw.choice(new if new and draw.random() < 0.3 else list(trial) or new)
        ways = [
            u
            for u in (task.source, *trial)
            if u != v and task.weight[u][v] < math.inf and not _comes_through(trial, task.source, u, v)
        ]
        if ways:
            trial[v] = draw.choice(ways)
    return trial if height(trial, task.source) <= task.hops_max else None


def _comes_through(parents: Parents, source: int, u: int, v: int) -> bool:
    while u != source:
        if u == v:
            return True
        u = parents[u]
    return False


def _reached(task: Task, parents: Parents) -> int:
    return sum(v in parents for v in task.wanted)
