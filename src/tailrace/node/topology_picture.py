"""Copy trees as an SVG picture: the source at the left, one column a hop, a colour for each continent.

Pure text, no library. Panels stand side by side, as in before and after an outage.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ..copytree.routing import Plan
from ..model import CopyTree, WorldMap

_COLUMN, _ROW, _BOX_WIDTH, _BOX_HEIGHT = 190, 30, 140, 22
_MARGIN, _HEAD = 24, 56
_COLOURS = ("#cfe2f3", "#d9ead3", "#fff2cc", "#f4cccc", "#d9d2e9", "#fce5cd", "#d0e0e3", "#ead1dc")


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    plans: Sequence[Plan]
    bad_clusters: Collection[str] = ()


def picture(world: WorldMap, panels: Sequence[Panel]) -> str:
    colours = _colours(world)
    drawn, left, height = [], 0, 0
    for panel in panels:
        body, width, panel_height = _panel(world, panel, colours)
        drawn.append(f'<g transform="translate({left},0)">{body}</g>')
        left, height = left + width, max(height, panel_height)
    legend = _legend(colours, height)
    height += _ROW if legend else 0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left} {height}" width="{left}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(drawn)}{legend}</svg>\n"
    )


def _panel(world: WorldMap, panel: Panel, colours: Mapping[str, str]) -> tuple[str, int, int]:
    parts = [_text(_MARGIN, 24, panel.title, "bold")]
    top, columns = _HEAD - 16, 1
    for plan in panel.plans:
        tree = plan.tree
        caption = (
            f"{tree.stream}: {plan.price_per_gb:.4g} per GB, {plan.cost_per_day:,.2f} a day, "
            f"depth {plan.depth} (mean {plan.depth_mean:.1f}), fan-out {plan.fan_out}"
        )
        parts.append(_text(_MARGIN, top + 12, caption))
        top += 24
        rows = _rows(tree)
        spots = {name: (_MARGIN + tree.depth(name) * _COLUMN, top + row * _ROW) for name, row in rows.items()}
        parts += [_edge(world, tree, name, spots) for name in rows if name != tree.source]
        parts += [
            _box(name, spot, colours.get(world.cluster(name).continent, "#eeeeee"), name in panel.bad_clusters, tree)
            for name, spot in spots.items()
        ]
        columns = max(columns, plan.depth + 1)
        top += int((max(rows.values()) + 1) * _ROW) + 8
    width = 2 * _MARGIN + max((columns - 1) * _COLUMN + _BOX_WIDTH, 480)
    return "".join(parts), width, top + _MARGIN


def _rows(tree: CopyTree) -> dict[str, float]:
    """Leaves one below the other; every other cluster in the middle of those behind it."""
    rows: dict[str, float] = {}
    free = 0
    order = [tree.source]
    for name in order:  # grows while it is walked: upstream before downstream
        order += tree.downstream(name)
    leaves: list[str] = []
    stack = [tree.source]
    while stack:
        name = stack.pop()
        behind = tree.downstream(name)
        stack += reversed(behind)
        if not behind:
            leaves.append(name)
    for name in leaves:
        rows[name], free = free, free + 1
    for name in reversed(order):
        if behind := tree.downstream(name):
            rows[name] = (rows[behind[0]] + rows[behind[-1]]) / 2
    return {name: rows[name] for name in order}


def _edge(world: WorldMap, tree: CopyTree, name: str, spots: Mapping[str, tuple[int, float]]) -> str:
    hop = tree.hop(name)
    assert hop is not None
    x1, y1 = spots[hop.upstream][0] + _BOX_WIDTH, spots[hop.upstream][1] + _BOX_HEIGHT / 2
    x2, y2 = spots[name][0], spots[name][1] + _BOX_HEIGHT / 2
    link = world.link(hop.upstream, name)
    price = f"{link.price_per_gb:.3g}" if link is not None else ""
    bend = (x2 - x1) / 2
    dashes = ' stroke-dasharray="5 3"' if hop.joining else ""
    return (
        f'<path d="M{x1} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2} {y2:g}" fill="none" '
        f'stroke="#888"{dashes}/>' + _text(x2 - 6, y2 - 3, price, anchor="end", size=9)
    )


def _box(name: str, spot: tuple[int, float], colour: str, bad: bool, tree: CopyTree) -> str:
    x, y = spot
    stroke, width = ("#cc0000", 2.5) if bad else ("#333333", 2 if name == tree.source else 1)
    shown = name if len(name) <= 20 else name[:19] + "…"
    return (
        f'<rect x="{x}" y="{y:g}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" fill="{colour}" '
        f'stroke="{stroke}" stroke-width="{width}"><title>{escape(name)}</title></rect>'
        + _text(x + _BOX_WIDTH / 2, y + 15, shown, anchor="middle")
    )


def _legend(colours: Mapping[str, str], top: int) -> str:
    parts = []
    for number, (continent, colour) in enumerate(colours.items()):
        x = _MARGIN + number * 120
        parts.append(f'<rect x="{x}" y="{top}" width="14" height="14" fill="{colour}" stroke="#333333"/>')
        parts.append(_text(x + 20, top + 12, continent))
    return "".join(parts)


def _colours(world: WorldMap) -> dict[str, str]:
    continents = dict.fromkeys(cluster.continent for cluster in world.clusters if cluster.continent)
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(continents)}


def _text(x: float, y: float, text: str, weight: str = "normal", *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-weight="{weight}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
