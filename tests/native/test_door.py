"""What the native room lets out, and whether its type stubs tell the truth."""

import ast
from pathlib import Path

from tailrace import native
from tailrace.native import _core

from . import model

STUBS = ast.parse(Path(native.__file__).with_name("_core.pyi").read_text())


def test_the_door_is_this_small():
    assert native.__all__ == [
        "ENTRY_BYTES",
        "KEY_BYTES_MAX",
        "Block",
        "Message",
        "Packed",
        "Packer",
        "Pages",
        "Records",
        "count_to_position",
        "count_to_time",
        "crc32c",
        "crc32c_tables",
        "entry_at",
        "hash64",
        "moved_entries",
        "shard_of",
        "verify",
    ]


def test_the_stubs_name_exactly_what_the_door_lets_out():
    named = {node.name for node in STUBS.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    named |= {node.target.id for node in STUBS.body if isinstance(node, ast.AnnAssign)}
    assert named == set(native.__all__)


def test_the_stubs_name_the_members_that_are_there():
    for stub in STUBS.body:
        if not isinstance(stub, ast.ClassDef):
            continue
        stubbed = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
        stubbed |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
        real = {name for name in vars(getattr(_core, stub.name)) if not name.startswith("_")}
        assert {name for name in stubbed if not name.startswith("_")} == real, stub.name


def test_the_model_has_the_names_of_the_native_room():
    missing = {name for name in native.__all__ if not hasattr(model, name)}
    assert missing == {"Block", "Pages"}  # bytes will do
    assert (model.ENTRY_BYTES, model.KEY_BYTES_MAX) == (native.ENTRY_BYTES, native.KEY_BYTES_MAX)
