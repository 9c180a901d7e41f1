"""A picture of what `tailrace bench fanout --json` measured: python bench/plot_fanout.py RESULT.json PICTURE.png

Needs matplotlib: pip install 'tailrace[plot]'.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

_CELL = re.compile(r"n(\d+)_([a-z]+)_(.+)")
_PANELS = {
    "mb_per_s": "delivered to all consumers together, MB/s",
    "p99_ms": "delay at a fixed rate, 99 of 100 messages, ms",
}
_OURS = ("shm", "reading", "ambassador", "tcp")
_LIMITS = {"memcpy": "copying memory (limit)", "wake": "waking processes alone"}


def curves(result: dict[str, Any], measure: str) -> dict[str, list[tuple[int, float]]]:
    """By system: (consumers, value), in order of consumers."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in result["summary"].items():
        cell = _CELL.fullmatch(name)
        if cell is not None and cell[3] == measure:
            found[cell[2]].append((int(cell[1]), value))
    return {system: sorted(points) for system, points in found.items()}


def label(system: str, versions: dict[str, str]) -> str:
    if system in _LIMITS:
        return _LIMITS[system]
    return f"tailrace, {system}" if system in _OURS else f"{system} {versions.get(system, '')}"


def draw(result: dict[str, Any], picture: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("matplotlib is not installed: pip install 'tailrace[plot]'")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(_PANELS), figsize=(12, 4.5), layout="constrained")
    systems = list({system: None for measure in _PANELS for system in curves(result, measure)})
    for panel, (measure, title) in zip(panels, _PANELS.items(), strict=True):
        numbers: set[int] = set()
        for system, points in curves(result, measure).items():
            numbers.update(consumers for consumers, _ in points)
            panel.plot(
                [consumers for consumers, _ in points],
                [value for _, value in points],
                label=label(system, result["summary"]["peers"]),
                color=f"C{systems.index(system)}",
                linewidth=2.5 if system in _OURS else 1.2,
                linestyle=":" if system in _LIMITS else "-",
                marker="o",
                markersize=4,
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sorted(numbers), [str(number) for number in sorted(numbers)])
        panel.minorticks_off()
        panel.set_xlabel("consumers, a process each")
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
    shown = {text: line for panel in panels for line, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, fontsize=8)
    figure.savefig(picture, dpi=110)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
