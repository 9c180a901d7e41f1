from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Version(_message.Message):
    __slots__ = ("clock_us", "client", "sequence")
    CLOCK_US_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    clock_us: int
    client: int
    sequence: int
    def __init__(self, clock_us: _Optional[int] = ..., client: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("client", "wants_engine")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    WANTS_ENGINE_FIELD_NUMBER: _ClassVar[int]
    client: str
    wants_engine: bool
    def __init__(self, client: _Optional[str] = ..., wants_engine: _Optional[bool] = ...) -> None: ...

class Engine(_message.Message):
    __slots__ = ("host", "port", "ticket")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    ticket: bytes
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("instance", "config_id", "cache", "backend", "host", "folder", "engine", "time_us", "mode")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    cache: str
    backend: int
    host: str
    folder: str
    engine: Engine
    time_us: int
    mode: str
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., cache: _Optional[str] = ..., backend: _Optional[int] = ..., host: _Optional[str] = ..., folder: _Optional[str] = ..., engine: _Optional[_Union[Engine, _Mapping]] = ..., time_us: _Optional[int] = ..., mode: _Optional[str] = ...) -> None: ...

class MutateRequest(_message.Message):
    __slots__ = ("instance", "config_id", "frame")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    frame: bytes
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., frame: _Optional[bytes] = ...) -> None: ...

class MutateReply(_message.Message):
    __slots__ = ("instance", "config_id", "outcomes", "floor")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    outcomes: bytes
    floor: Version
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., outcomes: _Optional[bytes] = ..., floor: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("instance", "now_s", "keys")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    now_s: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, instance: _Optional[int] = ..., now_s: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("found", "value", "version", "expiry_s")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_S_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: bytes
    version: Version
    expiry_s: int
    def __init__(self, found: _Optional[bool] = ..., value: _Optional[bytes] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., expiry_s: _Optional[int] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("instance", "config_id", "answers")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...

class TouchReply(_message.Message):
    __slots__ = ("instance", "config_id")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ...) -> None: ...

class DigestRequest(_message.Message):
    __slots__ = ("home", "backends")
    HOME_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    home: int
    backends: int
    def __init__(self, home: _Optional[int] = ..., backends: _Optional[int] = ...) -> None: ...

class DigestReply(_message.Message):
    __slots__ = ("instance", "config_id", "digests")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    digests: bytes
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., digests: _Optional[bytes] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("home", "backends", "partitions", "start")
    HOME_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    home: int
    backends: int
    partitions: int
    start: Version
    def __init__(self, home: _Optional[int] = ..., backends: _Optional[int] = ..., partitions: _Optional[int] = ..., start: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class ListPart(_message.Message):
    __slots__ = ("instance", "config_id", "records", "tombstones", "summary", "complete")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    records: bytes
    tombstones: bytes
    summary: Version
    complete: bool
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., records: _Optional[bytes] = ..., tombstones: _Optional[bytes] = ..., summary: _Optional[_Union[Version, _Mapping]] = ..., complete: _Optional[bool] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...

class FetchPart(_message.Message):
    __slots__ = ("instance", "config_id", "frame")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    frame: bytes
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., frame: _Optional[bytes] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("instance", "config_id", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config_id: int
    counters: _containers.ScalarMap[str, int]
    def __init__(self, instance: _Optional[int] = ..., config_id: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...
