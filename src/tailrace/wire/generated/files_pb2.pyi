from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SightRequest(_message.Message):
    __slots__ = ("stream", "seen")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    stream: str
    seen: int
    def __init__(self, stream: _Optional[str] = ..., seen: _Optional[int] = ...) -> None: ...

class SightReply(_message.Message):
    __slots__ = ("number", "shards")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, number: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("shard", "listing", "newest")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    listing: int
    newest: Newest
    def __init__(self, shard: _Optional[int] = ..., listing: _Optional[int] = ..., newest: _Optional[_Union[Newest, _Mapping]] = ...) -> None: ...

class Newest(_message.Message):
    __slots__ = ("created_us", "data_base", "index_base", "data", "index")
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DATA_BASE_FIELD_NUMBER: _ClassVar[int]
    INDEX_BASE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    created_us: int
    data_base: int
    index_base: int
    data: Length
    index: Length
    def __init__(self, created_us: _Optional[int] = ..., data_base: _Optional[int] = ..., index_base: _Optional[int] = ..., data: _Optional[_Union[Length, _Mapping]] = ..., index: _Optional[_Union[Length, _Mapping]] = ...) -> None: ...

class Length(_message.Message):
    __slots__ = ("flushed", "readable", "appending")
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    APPENDING_FIELD_NUMBER: _ClassVar[int]
    flushed: int
    readable: int
    appending: bool
    def __init__(self, flushed: _Optional[int] = ..., readable: _Optional[int] = ..., appending: _Optional[bool] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("folder",)
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    folder: str
    def __init__(self, folder: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("listing", "names")
    LISTING_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    listing: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, listing: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("path", "offset", "size")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    size: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("length", "content")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    length: Length
    content: bytes
    def __init__(self, length: _Optional[_Union[Length, _Mapping]] = ..., content: _Optional[bytes] = ...) -> None: ...
