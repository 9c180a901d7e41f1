from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Opening(_message.Message):
    __slots__ = ("stream", "shard", "storage", "source", "target", "origin", "settings", "epoch", "reader")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    stream: str
    shard: int
    storage: str
    source: str
    target: str
    origin: str
    settings: bytes
    epoch: int
    reader: str
    def __init__(self, stream: _Optional[str] = ..., shard: _Optional[int] = ..., storage: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., origin: _Optional[str] = ..., settings: _Optional[bytes] = ..., epoch: _Optional[int] = ..., reader: _Optional[str] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("track", "offset", "content", "raw_bytes")
    TRACK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    track: int
    offset: int
    content: bytes
    raw_bytes: int
    def __init__(self, track: _Optional[int] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ..., raw_bytes: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("created_us", "data_base", "index_base", "pieces", "oldest_us", "beat_us", "data_chunk_bytes", "index_chunk_bytes", "data_start", "index_start", "data_needed", "behind_bytes")
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DATA_BASE_FIELD_NUMBER: _ClassVar[int]
    INDEX_BASE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_US_FIELD_NUMBER: _ClassVar[int]
    BEAT_US_FIELD_NUMBER: _ClassVar[int]
    DATA_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_START_FIELD_NUMBER: _ClassVar[int]
    INDEX_START_FIELD_NUMBER: _ClassVar[int]
    DATA_NEEDED_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    created_us: int
    data_base: int
    index_base: int
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    oldest_us: int
    beat_us: int
    data_chunk_bytes: int
    index_chunk_bytes: int
    data_start: int
    index_start: int
    data_needed: int
    behind_bytes: int
    def __init__(self, created_us: _Optional[int] = ..., data_base: _Optional[int] = ..., index_base: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., oldest_us: _Optional[int] = ..., beat_us: _Optional[int] = ..., data_chunk_bytes: _Optional[int] = ..., index_chunk_bytes: _Optional[int] = ..., data_start: _Optional[int] = ..., index_start: _Optional[int] = ..., data_needed: _Optional[int] = ..., behind_bytes: _Optional[int] = ...) -> None: ...

class ToWriter(_message.Message):
    __slots__ = ("opening", "batch")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    opening: Opening
    batch: Batch
    def __init__(self, opening: _Optional[_Union[Opening, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("created_us", "data_base", "index_base", "data_length", "index_length", "taken_bytes", "window_bytes")
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DATA_BASE_FIELD_NUMBER: _ClassVar[int]
    INDEX_BASE_FIELD_NUMBER: _ClassVar[int]
    DATA_LENGTH_FIELD_NUMBER: _ClassVar[int]
    INDEX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    created_us: int
    data_base: int
    index_base: int
    data_length: int
    index_length: int
    taken_bytes: int
    window_bytes: int
    def __init__(self, created_us: _Optional[int] = ..., data_base: _Optional[int] = ..., index_base: _Optional[int] = ..., data_length: _Optional[int] = ..., index_length: _Optional[int] = ..., taken_bytes: _Optional[int] = ..., window_bytes: _Optional[int] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("stream", "shard", "storage", "target")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    stream: str
    shard: int
    storage: str
    target: str
    def __init__(self, stream: _Optional[str] = ..., shard: _Optional[int] = ..., storage: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("operation", "writers", "origin", "epoch", "compression", "bytes_per_s")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    operation: Operation
    writers: _containers.RepeatedScalarFieldContainer[str]
    origin: str
    epoch: int
    compression: str
    bytes_per_s: int
    def __init__(self, operation: _Optional[_Union[Operation, _Mapping]] = ..., writers: _Optional[_Iterable[str]] = ..., origin: _Optional[str] = ..., epoch: _Optional[int] = ..., compression: _Optional[str] = ..., bytes_per_s: _Optional[int] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("orders",)
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class Running(_message.Message):
    __slots__ = ("operation", "writer", "state", "copied_bytes", "behind_bytes", "problem")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    operation: Operation
    writer: str
    state: str
    copied_bytes: int
    behind_bytes: int
    problem: str
    def __init__(self, operation: _Optional[_Union[Operation, _Mapping]] = ..., writer: _Optional[str] = ..., state: _Optional[str] = ..., copied_bytes: _Optional[int] = ..., behind_bytes: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("reader", "running")
    READER_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    reader: str
    running: _containers.RepeatedCompositeFieldContainer[Running]
    def __init__(self, reader: _Optional[str] = ..., running: _Optional[_Iterable[_Union[Running, _Mapping]]] = ...) -> None: ...
