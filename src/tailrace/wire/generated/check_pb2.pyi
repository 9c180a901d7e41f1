from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldingRequest(_message.Message):
    __slots__ = ("stream", "shard")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    stream: str
    shard: int
    def __init__(self, stream: _Optional[str] = ..., shard: _Optional[int] = ...) -> None: ...

class HoldingReply(_message.Message):
    __slots__ = ("incarnation", "shards", "held")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    shards: int
    held: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, incarnation: _Optional[str] = ..., shards: _Optional[int] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("created_us", "data_base", "index_base", "data_length", "index_length")
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DATA_BASE_FIELD_NUMBER: _ClassVar[int]
    INDEX_BASE_FIELD_NUMBER: _ClassVar[int]
    DATA_LENGTH_FIELD_NUMBER: _ClassVar[int]
    INDEX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    created_us: int
    data_base: int
    index_base: int
    data_length: int
    index_length: int
    def __init__(self, created_us: _Optional[int] = ..., data_base: _Optional[int] = ..., index_base: _Optional[int] = ..., data_length: _Optional[int] = ..., index_length: _Optional[int] = ...) -> None: ...

class HashesRequest(_message.Message):
    __slots__ = ("stream", "shard", "created_us", "data_base", "index_base", "track", "offset", "size", "block_bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DATA_BASE_FIELD_NUMBER: _ClassVar[int]
    INDEX_BASE_FIELD_NUMBER: _ClassVar[int]
    TRACK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: str
    shard: int
    created_us: int
    data_base: int
    index_base: int
    track: int
    offset: int
    size: int
    block_bytes: int
    def __init__(self, stream: _Optional[str] = ..., shard: _Optional[int] = ..., created_us: _Optional[int] = ..., data_base: _Optional[int] = ..., index_base: _Optional[int] = ..., track: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., block_bytes: _Optional[int] = ...) -> None: ...

class HashesReply(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...
