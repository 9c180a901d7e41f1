"""Examples in docstrings and in the documentation run, and say what they show."""

import doctest
import importlib
import pkgutil
import runpy
from pathlib import Path

import pytest

import tailrace

ROOT = Path(__file__).parents[2]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace.")
    if not module.name.endswith(("__main__", ".worker", "._core"))
]
# Those that need Spark share its session: tests/spark/test_examples.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("spark_"))


@pytest.mark.parametrize("name", ["tailrace", *MODULES])
def test_docstring_examples(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    expected = [line[2:].strip() for line in path.read_text().splitlines() if line.startswith("# >")]
    printed = capsys.readouterr().out
    assert expected, f"{path.name} does not say what it prints (lines that begin with '# >')"
    for line in expected:
        assert line.lstrip("> ") in printed


def test_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of the tutorial, one after the other, in one interpreter."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) >= 5
    namespace: dict[str, object] = {"__name__": "tutorial"}
    for block in blocks:
        exec(compile(block, "tutorial.md", "exec"), namespace)
