"""The models of the protocols: what must hold holds, and a protocol with one rule less is caught."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

SPECS = Path(__file__).parents[2] / "specs"


def load() -> ModuleType:
    """specs/ is no package: its script is used as a command, and from here."""
    spec = importlib.util.spec_from_file_location("specs_check", SPECS / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


check = load()
needs_tools = pytest.mark.skipif(
    bool(check.missing_tools()), reason=f"not installed: {', '.join(check.missing_tools())} (apt-get install spin gcc)"
)


@needs_tools
@pytest.mark.parametrize("name", [one.name for one in check.SMALL])
def test_the_protocol_holds(name: str) -> None:
    (one,) = [one for one in check.SMALL if one.name == name]
    verdict = check.search(one)
    assert verdict.holds, "\n".join([one.says, *verdict.story])
    assert verdict.states > 10_000, "next to nothing was searched"


@needs_tools
@pytest.mark.parametrize("name", [one.name for one in check.BROKEN])
def test_a_broken_protocol_is_caught(name: str) -> None:
    (one,) = [one for one in check.BROKEN if one.name == name]
    verdict = check.search(one)
    assert not verdict.holds, f"{one.says}, and nothing went wrong: then the model, or a rule, is of no use"
    assert verdict.story


@needs_tools
@pytest.mark.parametrize("name", [one.name for one in check.REACHED])
def test_what_is_checked_can_happen(name: str) -> None:
    (one,) = [one for one in check.REACHED if one.name == name]
    assert not check.search(one).holds, f"never seen: {one.says}"


def test_every_switch_that_breaks_a_rule_is_thrown() -> None:
    known = {found for model in SPECS.glob("*.pml") for found in re.findall(r"\bBROKEN_\w+", model.read_text())}
    thrown = {switch for one in check.BROKEN for switch in one.switches.split()}
    assert known <= thrown | {"BROKEN_"}, known - thrown


def test_every_check_is_in_the_table() -> None:
    page = (SPECS / "README.md").read_text()
    assert [one.name for one in check.EVERYTHING if f"| `{one.name}` |" not in page] == []
