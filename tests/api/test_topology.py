"""world.toml and `tailrace topology`: read, checked, written back, planned, explained, drawn, applied."""

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.config import CoordinationConfig, StreamConfig
from tailrace.coordination import SqliteCoordination
from tailrace.copytree import Router, load
from tailrace.copytree.routing import Preferences
from tailrace.errors import ConfigError
from tailrace.model import Cluster, Demand, Link, Sizes, Tariff
from tailrace.node.cli import app
from tailrace.node.world_file import WorldFile, parse_world_file, read_world_file, write_world_file

WORLDS = Path(__file__).parents[2] / "examples" / "worlds"
SHOP = WORLDS / "shop.toml"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["topology", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def as_json(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["topology", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# ---- the file


@pytest.mark.parametrize("path", sorted(WORLDS.glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_is_right_and_comes_back_as_it_was(path: Path) -> None:
    file = read_world_file(path)
    assert file.world.demands
    again = parse_world_file(write_world_file(file))
    assert again == file
    assert write_world_file(again) == write_world_file(file)


def test_names_that_need_quotes_and_every_kind_of_value_come_back() -> None:
    text = """
        name = "w.1"
        [coordination]
        etcd = ["10.0.0.1:2379", "[::1]:2379"]
        prefix = "/shop/ü/"
        [coordination.tls]
        certificate = "a \\"b\\".pem"
        key = "k"
        roots = "r"
        [clusters."a.b"]
        relays = false
        [clusters.c]
        egress_bytes_per_s = inf
        [streams."s.1"]
        source = "a.b"
        [streams."s.1".settings]
        shards = 3
        retention = { age_s = 60.0 }
    """
    file = parse_world_file(text)
    assert file.coordination.etcd == ("10.0.0.1:2379", "[::1]:2379")
    assert file.settings["s.1"].shards == 3
    assert parse_world_file(write_world_file(file)) == file


def test_an_empty_file_is_an_empty_world() -> None:
    assert parse_world_file("") == WorldFile(coordination=CoordinationConfig(), settings={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clusters", "w.toml: not TOML"),
        ("[nodes.a]", "w.toml: nodes: no such table; there are name, coordination, tls, clusters"),
        ("name = '../x'", "name: '../x' is not a world name"),
        ("coordination = 5", "coordination=5: use a table"),
        ("[coordination]\netcd = ['http://a']", "etcd='http://a': use host:port, without http://"),
        ("[coordination]\netcd = 'a:1'", "coordination.etcd='a:1': use a list"),
        ("[clusters.a]\n[streams.s]\nsource = 'a'\nsettings = 3", "streams.s.settings=3: use a table"),
        ("[clusters.a]\n[streams.s]\nsource = 'a'\n[streams.s.settings]\nshards = 0", "streams.s.settings.shards=0"),
        ("streams = 3", "streams=3: use a table"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_path_of_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        parse_world_file(text, "w.toml")


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_world_file(tmp_path / "none.toml")
    output = run("show", tmp_path / "none.toml", code=2)
    assert "cannot be read" in output


def test_the_file_that_the_documentation_shows_is_right_and_all_its_settings_are_the_defaults() -> None:
    page = (WORLDS.parents[1] / "docs" / "formats" / "world.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    file = parse_world_file(text)
    us, eu = file.world.clusters
    assert dataclasses.replace(eu, name="x") == Cluster(name="x")
    assert dataclasses.replace(us, name="x", continent="", region="", jurisdiction="") == Cluster(name="x")
    assert file.world.demands[0] == Demand(stream="prices", source="us-east")
    assert file.world.tariffs == (Tariff(scope="region"),)
    assert file.preferences == Preferences()
    for kind in (Cluster, Tariff, Link, Demand, Preferences, CoordinationConfig, Sizes):
        for field in dataclasses.fields(kind):
            named = field.name in text or field.name in ("name", "scope", "stream", "upstream", "downstream")
            assert named, f"{kind.__name__}.{field.name} is not in docs/formats/world.md"


# ---- the commands


def test_show_draws_the_tree_and_its_cost() -> None:
    output = run("show", SHOP, "--stream", "orders")
    assert "orders from eu-west: 0.04 per GB, 6.91 a day, 2 clusters, depth 1" in output
    assert "└─ eu-north  0.02 per GB, 20 ms" in output


def test_show_as_json_has_every_hop() -> None:
    told = as_json("show", SHOP)
    prices = next(one for one in told["streams"] if one["stream"] == "prices")
    assert len(prices["hops"]) == prices["clusters"] - 1 == 9
    assert {"from": "us-west", "to": "japan"}.items() <= {
        **prices["hops"][[h["to"] for h in prices["hops"]].index("japan")]
    }.items()


def test_plan_compares_before_and_after_and_makes_the_bad_one_a_leaf() -> None:
    told = as_json("plan", SHOP, "--outage", "japan", "--stream", "prices")["streams"][0]
    assert told["after"]["price_per_gb"] > told["before"]["price_per_gb"]
    assert not [hop for hop in told["after"]["hops"] if hop["from"] == "japan"]
    assert "japan" in told["moved"]
    assert told["refuges"]["japan"][0].startswith("asia")
    output = run("plan", SHOP, "--outage", "japan")
    assert "copy from elsewhere" in output
    assert "prices: consumers in japan go to asia-" in output


def test_a_link_is_named_by_its_two_ends_even_if_they_have_dashes() -> None:
    told = as_json("plan", SHOP, "--outage", "us-west-japan")["streams"][0]
    assert ("us-west", "japan") not in {(hop["from"], hop["to"]) for hop in told["after"]["hops"]}


def test_explain_gives_reasons_for_one_hop_or_all() -> None:
    (stream,) = as_json("explain", SHOP, "--cluster", "japan", "--stream", "prices")["streams"]
    (hop,) = stream["hops"]
    assert hop["from"] == "us-west"
    assert hop["others"][0]["against"].startswith("0.03 per GB more")
    assert "not us-central: 0.03 per GB more" in run("explain", SHOP)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", SHOP, "--outage", "mars"], "neither a cluster nor a link"),
        (["show", SHOP, "--stream", "news"], "--stream news: there is prices, orders"),
        (["explain", SHOP, "--cluster", "mars"], "has no such cluster"),
        (["show", SHOP, "--svg", "/nowhere/x.svg"], "cannot be written"),
    ],
)
def test_wrong_arguments_are_said(arguments: list[object], words: str) -> None:
    result = CliRunner().invoke(app, ["topology", *map(str, arguments)])
    assert result.exit_code in (2, 3)
    assert words in result.output


def test_the_picture_is_well_formed_and_has_every_cluster_in_both_panels(tmp_path: Path) -> None:
    path = tmp_path / "outage.svg"
    run("plan", SHOP, "--outage", "japan", "--stream", "prices", "--svg", path)
    titles = [title.text for title in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(map(str, titles)) == sorted(2 * [c.name for c in read_world_file(SHOP).world.clusters])


def test_apply_reaches_a_running_router_and_show_live_shows_its_trees(tmp_path: Path) -> None:
    path = tmp_path / "world.toml"
    file = read_world_file(SHOP)
    path.write_text(write_world_file(file))
    assert as_json("apply", path) == {"world": "shop", "version": 1, "changed": True}
    assert as_json("apply", path)["changed"] is False
    assert "there are no streams with a tree yet" in run("show", path, "--live")
    with SqliteCoordination(tmp_path / "coordination.db") as store, Router(store, "r") as router:
        router.step(0)
        assert len(as_json("show", path, "--live")["streams"]) == 2
        more = Demand(stream="clicks", source="sydney", destinations=("japan",))
        world = file.world
        path.write_text(
            write_world_file(WorldFile(name="shop", world=type(world)(
                clusters=world.clusters, links=world.links, tariffs=world.tariffs, demands=(*world.demands, more))))
        )  # fmt: skip
        run("apply", path)
        while "clicks" not in load(store).trees:
            router.step(0.1)
        assert "clicks from sydney" in run("show", path, "--live", "--stream", "clicks")


def test_settings_of_streams_are_those_of_a_stream() -> None:
    assert read_world_file(SHOP).settings == {"prices": StreamConfig(shards=4)}
