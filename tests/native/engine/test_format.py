"""The bytes are those of docs/formats/engine.md, and the door is small."""

import ast
import inspect
import struct
from pathlib import Path

import pytest

from tailrace.native import engine as door
from tailrace.native.cell import CellView, key_hash
from tailrace.native.engine import Engine, Link, State

from ..cell.places import folder
from . import frames
from .frames import FOUND, MISS, Peer
from .served import link_to, peer_of, served, ticket_for

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "formats" / "engine.md").read_text()
STUBS = ast.parse(Path(door.__file__).with_name("_engine.pyi").read_text())


def test_the_door_is_this_small():
    assert door.__all__ == ["TICKET_BYTES", "Engine", "Link", "State"]


def test_the_stubs_name_the_members_that_are_there():
    classes = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
    for name in ("Engine", "Link"):
        stubbed = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)}
        stubbed |= {node.target.id for node in classes[name].body if isinstance(node, ast.AnnAssign)}
        real = {member for member in vars(getattr(door, name)) if not member.startswith("_")}
        assert {member for member in stubbed if not member.startswith("_")} == real, name
    values = {node.targets[0].id: node.value.value for node in classes["State"].body if isinstance(node, ast.Assign)}
    assert values == {state.name: state.value for state in State}


def test_the_stubs_have_the_defaults_that_hold():
    stub = ast.unparse(next(node for node in STUBS.body if isinstance(node, ast.ClassDef) and node.name == "Engine"))
    with served() as (_, engine), peer_of(engine) as peer:
        assert f"request_bytes_max: int={peer.welcome.request_bytes_max}," in stub
    assert "connections_max: int=1024," in stub


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("hello", frames.HELLO),
        ("welcome", frames.WELCOME),
        ("request", frames.REQUEST),
        ("range", frames.RANGE),
        ("answer", frames.ANSWER),
        ("scanned", frames.SCANNED),
        ("fetched", frames.FETCHED),
        ("mutated", frames.MUTATED),
    ],
)
def test_sizes_are_those_of_the_page(name, layout):
    assert f"| {name} ({layout.size} bytes)" in PAGE


def test_the_numbers_are_those_of_the_page():
    for name, number in inspect.getmembers(frames, lambda member: isinstance(member, int)):
        if name != "VERSION":
            assert f"{number} {name.lower().replace('_', ' ')}" in PAGE, name


def test_every_byte_of_a_welcome_and_of_an_answer():
    key, value, version = b"a key", b"its value", (2**63, 2**31, 7)
    with served() as (cell, engine):
        cell.set(key, value, version, expiry_s=1234)
        cell.configure(77)
        view, ticket = CellView(cell.folder), ticket_for(engine)
        with Peer(engine.address) as peer:
            peer.send(b"TAILLINK" + struct.pack("<II", 1, 0) + ticket)
            raw = peer.receive(72)
            magic, version_told, status, layout, request_max, answer_max, zero = struct.unpack_from("<8s6I", raw)
            assert (magic, version_told, status, zero, request_max) == (b"TAILENGN", 1, 0, 0, 65536)
            assert layout == struct.unpack_from("<8xI", (Path(cell.folder) / "head").read_bytes())[0]
            assert 256 << 10 < answer_max <= 1 << 20
            instance, config_id, generation, buckets, reserved = struct.unpack_from("<5Q", raw, 32)
            assert (instance, config_id, generation) == (view.instance_id, 77, view.generation)
            assert (buckets, reserved) == (64, 256 * (256 << 10))

            header = struct.pack("<IHHQQQIIII", 48 + 32, 1, 0, 99, instance, 77, 2, 0, 1 << 20, 0)
            peer.send(header + key_hash(key) + key_hash(b"nobody"))
            answer = peer.receive(64)
            size, *told = struct.unpack("<IHHQQQQQQII", answer)
            assert told == [1, 0, 99, instance, 77, generation, buckets, reserved, 0, 2]
            body = peer.receive(size - 64)
            state, zero, data_bytes, clock, client, sequence, offset, entry_size, expiry_s = struct.unpack_from(
                "<HHIQIIQII", body
            )
            assert (state, zero, data_bytes, expiry_s) == (FOUND, 0, entry_size, 1234)
            assert (clock, client, sequence) == version
            data = (Path(cell.folder) / "data").read_bytes()
            assert body[40 : 40 + entry_size] == data[offset : offset + entry_size]
            assert body[40 : 40 + entry_size].endswith(value)
            end = 40 + -(-entry_size // 8) * 8
            assert body[end:] == struct.pack("<H", MISS) + bytes(38)


def test_a_link_tells_what_the_welcome_told():
    with served() as (cell, engine), link_to(engine) as link:
        view = CellView(cell.folder)
        assert (link.instance_id, link.config_id, link.generation) == (view.instance_id, 0, view.generation)
        assert (link.host, link.port) == engine.address
        assert link.fileno() > 2


def test_bad_settings_are_refused():
    with served() as (cell, engine):
        path = cell.folder
        for settings, seen in [
            ({"connections_max": 0}, "connections_max=0"),
            ({"request_bytes_max": 100}, "request_bytes_max=100"),
            ({"request_bytes_max": 1 << 30}, "request_bytes_max"),
            ({"pending_bytes_max": 1}, "pending_bytes_max=1"),
            ({"idle_s": 0.0}, "idle_s=0"),
            ({"hello_s": float("nan")}, "hello_s=nan"),
            ({"stall_s": -1.0}, "stall_s=-1"),
        ]:
            with pytest.raises(ValueError, match=seen):
                Engine(path, **settings)
        with pytest.raises(ValueError, match="a ticket of 5 bytes"):
            engine.admit(b"short", 1.0)
        with pytest.raises(ValueError, match="valid_s=0"):
            engine.admit(bytes(32), 0.0)
        with pytest.raises(ValueError, match="a ticket of 33 bytes"):
            Link(*engine.address, bytes(33))
        with pytest.raises(ValueError, match="deadline_s=0"):
            Link(*engine.address, bytes(32), 0.0)
        with pytest.raises(OSError, match="bind"):
            Engine(path, *engine.address)
        with pytest.raises(OSError, match=r"192\.0\.2\.1"):
            Engine(path, "192.0.2.1")


def test_no_cell_no_engine():
    with folder() as path:
        with pytest.raises(FileNotFoundError):
            Engine(path)
        (path / "head").write_bytes(b"short")
        with pytest.raises(ValueError, match="is no cell this can read"):
            Engine(path)


def test_closed_ones_say_so():
    with served() as (_, engine):
        link = link_to(engine)
        link.close()
        link.close()
        with pytest.raises(ValueError, match=r"the link to .* is closed"):
            link.scan([b"key"], 0)
        engine.close()
        engine.close()
        for call in (engine.stats, lambda: engine.admit(bytes(32), 1.0), lambda: engine.revoke(bytes(32))):
            with pytest.raises(ValueError, match=r"the engine for .* is closed"):
                call()


def test_an_engine_serves_other_addresses_too():
    with served(host="::1") as (cell, engine):
        cell.set(b"key", b"value", (1, 0, 0))
        assert engine.address[0] == "::1"
        with link_to(engine) as link:
            assert link.scan([b"key"], 0) == [(State.HIT, b"value", (1, 0, 0))]
    with served(host="localhost") as (_, engine), link_to(engine) as link:
        assert link.scan([b"key"], 0) == [(State.MISS, None, None)]
