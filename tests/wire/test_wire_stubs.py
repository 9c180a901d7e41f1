"""The committed messages are those of the .proto file; no compiler is needed to see that."""

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace.wire
from tailrace.wire import frames
from tailrace.wire.generated import backend_pb2 as pb
from tailrace.wire.methods import METHODS

ROOM = Path(tailrace.wire.__file__).parent
PROTO = ROOM / "protos" / "tailrace" / "cache" / "v1" / "backend.proto"
PROTOS = sorted((ROOM / "protos").rglob("*.proto"))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda proto: proto.stem)
def test_the_generated_messages_were_made_from_this_proto(proto: Path) -> None:
    recorded = (ROOM / "generated" / f"{proto.stem}.sha256").read_text().strip()
    assert recorded == hashlib.sha256(proto.read_bytes()).hexdigest(), "run src/tailrace/wire/generate.sh"


def test_every_field_has_the_name_type_and_number_that_the_proto_gives_it() -> None:
    text = re.sub("//.*", "", PROTO.read_text())
    written = {
        (message, name, kind, int(number))
        for message, body in re.findall(r"message (\w+) \{(.*?)\}", text, re.DOTALL)
        for kind, name, number in re.findall(r"((?:repeated )?[\w<>, ]+?) (\w+) = (\d+);", " ".join(body.split()))
    }
    types = {field: name.removeprefix("TYPE_").lower() for name, field in _kinds().items()}
    made = set()
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            kind = field.message_type.name if field.message_type else types[field.type]
            if field.message_type and field.message_type.GetOptions().map_entry:
                key, value = (types[part.type] for part in field.message_type.fields)
                kind = f"map<{key}, {value}>"
            elif field.is_repeated:
                kind = f"repeated {kind}"
            made.add((message.name, field.name, kind, field.number))
    assert made == {(message, name, kind.strip(), number) for message, name, kind, number in written}


def _kinds() -> dict[str, int]:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return dict(FieldDescriptorProto.Type.items())


def test_every_method_of_the_proto_is_served() -> None:
    service = pb.DESCRIPTOR.services_by_name["Backend"]
    assert {(method.name, method.streams) for method in METHODS} == {
        (method.name, method.server_streaming) for method in service.methods
    }
    assert all(hasattr(tailrace.wire.BackendService, method.call) for method in METHODS)
    assert all(hasattr(tailrace.wire.BackendPeer, method.call) for method in METHODS)


NUMBER = st.integers(0, (1 << 64) - 1)


@given(NUMBER, NUMBER, st.one_of(st.binary(max_size=300), st.integers(0, 3 << 14).map(bytes)))
def test_a_packed_frame_is_the_protobuf_message(instance: int, config_id: int, frame: bytes) -> None:
    packed = frames.pack(instance, config_id, frame)
    message = pb.MutateRequest.FromString(packed)
    assert (message.instance, message.config_id, message.frame) == (instance, config_id, frame)
    if instance and config_id and frame:
        assert packed == message.SerializeToString(deterministic=True)
    unpacked = frames.unpack(packed)
    assert unpacked is not None
    assert (unpacked[0], unpacked[1], bytes(unpacked[2])) == (instance, config_id, frame)


@given(NUMBER, NUMBER, st.binary(max_size=40), st.data())
def test_what_is_not_exactly_such_a_message_is_left_to_protobuf(
    instance: int, config_id: int, frame: bytes, data: st.DataObject
) -> None:
    """Whatever the shortcut takes, the library understands in the same way."""
    packed = bytearray(frames.pack(instance, config_id, frame))
    for _ in range(data.draw(st.integers(0, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(packed[: data.draw(st.integers(0, len(packed)))]) + data.draw(st.binary(max_size=3))
    unpacked = frames.unpack(changed)
    if unpacked is not None:
        message = pb.MutateRequest.FromString(changed)
        assert (message.instance, message.config_id, message.frame) == (*unpacked[:2], bytes(unpacked[2]))
