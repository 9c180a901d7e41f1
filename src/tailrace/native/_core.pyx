# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of the native core: buffers in, buffers out. What decides is in the C files beside this one.

Everything here runs under the interpreter's lock except the loops marked `nogil`, which touch only buffers that their
caller holds. Entries are checked by `verify` before any other function may look at the data they describe.
"""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from posix.unistd cimport _SC_PAGESIZE, sysconf
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from tailrace.errors import Closed, Corrupt


cdef extern from "blocks.h":
    enum: TR_BLOCK_ALIGNMENT
    void *tr_block_take(size_t count, size_t *capacity)
    void tr_block_give(void *block, size_t capacity)

cdef extern from "checksum.h":
    uint32_t tr_crc32c(uint32_t sum, const void *bytes, size_t count) nogil
    uint32_t tr_crc32c_tables(uint32_t sum, const void *bytes, size_t count) nogil

cdef extern from "hash.h":
    uint64_t tr_hash64(const void *bytes, size_t count, uint64_t seed) nogil
    uint32_t tr_shard_of(uint64_t hash, uint32_t shards) nogil

cdef extern from "pages.h":
    int tr_pages_touch(const void *bytes, size_t count) nogil

cdef extern from "records.h":
    enum: TR_ENTRY_BYTES
    uint32_t TR_KEY_MAX, TR_HAS_KEY, TR_NO_VALUE, TR_FILLER
    ctypedef struct tr_measure:
        uint64_t key_bytes, value_bytes, absent_keys, absent_values, fillers
    ctypedef struct tr_columns:
        int32_t *key_offsets
        int32_t *value_offsets
        uint8_t *key_out
        uint8_t *value_out
        uint8_t *key_present
        uint8_t *value_present
        int64_t *times
        int64_t *positions
        int32_t *shards
    tr_entry tr_describe(const uint8_t *message, uint64_t start, uint64_t length, uint32_t key_length, uint32_t flags,
                         int64_t time_us) nogil
    size_t tr_verify(const tr_entry *entries, size_t count, uint64_t start, const uint8_t *data,
                     uint64_t data_bytes, int proven) nogil
    size_t tr_count_to_position(const tr_entry *entries, size_t count, uint64_t limit) nogil
    size_t tr_count_to_time(const tr_entry *entries, size_t count, int64_t time_us) nogil
    void tr_move_entries(tr_entry *entries, size_t count, uint64_t start, uint64_t to, int64_t time_us) nogil
    tr_measure tr_measure_columns(const tr_entry *entries, size_t count, uint64_t start) nogil
    void tr_split_columns(const tr_entry *entries, size_t count, uint64_t start, const uint8_t *data, int32_t shard,
                          tr_columns columns) nogil

ENTRY_BYTES = TR_ENTRY_BYTES
KEY_BYTES_MAX = TR_KEY_MAX
cdef enum:
    _FILE_BLOCK_BYTES = 512  # the smallest piece of a file that a disk can take by itself


# ---- memory -----------------------------------------------------------------------------------------------------------

@cython.no_gc
@cython.final
@cython.freelist(8)
cdef class Block:
    """Memory from the pool, as a buffer of `size` bytes. It goes back to the pool when the last user lets go. Its address
    is `skip` bytes behind a page's. With an `owner` it is that one's memory, which it says itself."""

    def __cinit__(self, Py_ssize_t size, size_t skip=0, *, owner=None):
        if size < 0 or skip >= TR_BLOCK_ALIGNMENT:
            raise ValueError(f"a block of {size} bytes, {skip} behind a page's")
        self.owner, self.is_lent = owner, owner is not None
        if self.is_lent:
            return
        self.memory = <uint8_t *> tr_block_take(size + skip, &self.capacity)
        if self.memory == NULL:
            raise MemoryError(f"no memory for a block of {size} bytes")
        self.memory, self.capacity, self.skip, self.size = self.memory + skip, self.capacity - skip, skip, size

    def __dealloc__(self):
        if self.memory != NULL and not self.is_lent:
            tr_block_give(self.memory - self.skip, self.capacity + self.skip)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory, self.size, 0, flags)

    def __len__(self):
        return self.size


cdef Block grown(Block block, size_t needed):
    """A block with the same content and room for `needed` bytes."""
    cdef Block larger = Block(max(needed, 2 * (block.capacity + block.skip) - block.skip), block.skip)
    memcpy(larger.memory, block.memory, block.size)
    larger.size = block.size
    return larger


cdef Block _NO_ROOM = Block(0, owner=True)  # where the first message of a buffer makes room


@cython.no_gc
@cython.final
cdef class Pages:
    """Bytes `begin` to `end` of a file where the kernel has them, mapped as long as somebody looks at them."""
    cdef uint8_t *base
    cdef size_t length, skip
    cdef readonly uint64_t begin, end

    def __cinit__(self, int file, uint64_t begin, uint64_t end):
        cdef void *base
        if begin >= end:
            raise ValueError(f"bytes {begin} to {end} of a file are none")
        self.begin, self.end = begin, end
        self.skip = begin % <uint64_t> sysconf(_SC_PAGESIZE)
        self.length = end - begin + self.skip
        base = mmap(NULL, self.length, PROT_READ, MAP_SHARED, file, begin - self.skip)
        if base == MAP_FAILED:
            raise OSError(errno, f"{end - begin} bytes of a file cannot be mapped: {os.strerror(errno)}")
        self.base = <uint8_t *> base

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.length)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base + self.skip, self.end - self.begin, 1, flags)

    def view(self, uint64_t begin, uint64_t end):
        """These bytes of the file, in memory, so that whoever looks at them does not wait, or worse. OSError: they cannot
        be had, or nobody can tell."""
        cdef int error
        if not self.begin <= begin <= end <= self.end:
            raise ValueError(f"bytes {begin} to {end}, of {self.begin} to {self.end}")
        with nogil:
            error = tr_pages_touch(self.base + self.skip + (begin - self.begin), end - begin)
        if error:
            raise OSError(error, f"bytes {begin} to {end} of a mapped file: {os.strerror(error)}")
        return memoryview(self)[begin - self.begin:end - self.begin]


cdef class _Bytes:
    """Any object's bytes, held for as long as this lives."""

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.at = <const uint8_t *> self.view.buf
        self.count = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


@cython.final
cdef class _Entries(_Bytes):
    """A buffer of whole, aligned entries."""

    def __cinit__(self, source):
        if self.count % TR_ENTRY_BYTES:
            raise ValueError(f"{self.count} bytes are not a whole number of {TR_ENTRY_BYTES}-byte entries")
        if <size_t> self.at % 8:
            raise ValueError("entries must lie at a multiple of 8 bytes in memory")
        self.first = <const tr_entry *> self.at
        self.entries = self.count // TR_ENTRY_BYTES


# ---- sums and hashes --------------------------------------------------------------------------------------------------

def crc32c(source, uint32_t sum=0):
    cdef _Bytes view = _Bytes(source)
    with nogil:
        sum = tr_crc32c(sum, view.at, view.count)
    return sum


def crc32c_tables(source, uint32_t sum=0):
    cdef _Bytes view = _Bytes(source)
    return tr_crc32c_tables(sum, view.at, view.count)


def hash64(source):
    cdef _Bytes view = _Bytes(source)
    return tr_hash64(view.at, view.count, 0)


def shard_of(key, uint32_t shards):
    if shards == 0:
        raise ValueError("a stream has at least one shard")
    return tr_shard_of(hash64(key), shards)


# ---- reading records --------------------------------------------------------------------------------------------------

def verify(entries, uint64_t start, data):
    """How many entries, from the first on, are whole and match the data bytes that begin at `start`."""
    cdef _Entries index = _Entries(entries)
    cdef _Bytes content = _Bytes(data)
    cdef size_t good
    with nogil:
        good = tr_verify(index.first, index.entries, start, content.at, content.count, False)
    return good


def count_to_position(entries, uint64_t limit):
    """How many entries end at or before the position."""
    cdef _Entries index = _Entries(entries)
    return tr_count_to_position(index.first, index.entries, limit)


def count_to_time(entries, int64_t time_us):
    """How many entries are older than the time."""
    cdef _Entries index = _Entries(entries)
    return tr_count_to_time(index.first, index.entries, time_us)


def entry_at(entries, size_t number):
    """(end, time_us) of one entry, unchecked against its data."""
    cdef _Entries index = _Entries(entries)
    if number >= index.entries:
        raise IndexError(f"entry {number} of {index.entries}")
    return index.first[number].end, index.first[number].time_us


def moved_entries(entries, uint64_t start, uint64_t to, int64_t time_us):
    """The entries of messages that begin at `start`, as they are when the messages begin at `to` instead. No time is
    less than time_us, or than the one before it. The messages' bytes are not needed."""
    cdef _Entries index = _Entries(entries)
    if to > <uint64_t> 1 << 62:  # far below the end of the numbers, which no shard will reach
        raise ValueError(f"a shard has no position {to}")
    cdef Block moved = Block(index.count)
    memcpy(moved.memory, index.at, index.count)
    with nogil:
        tr_move_entries(<tr_entry *> moved.memory, index.entries, start, to, time_us)
    return moved


@cython.no_gc
@cython.final
@cython.freelist(4096)
cdef class Message:
    """One message as a consumer sees it. `position` is where it begins in its shard."""
    cdef readonly str stream
    cdef readonly object key
    cdef readonly object value
    cdef readonly int64_t timestamp_us
    cdef readonly int64_t position
    cdef readonly int32_t shard

    def __init__(self, *, str stream, int32_t shard, int64_t position, int64_t timestamp_us, bytes key, bytes value):
        self.stream, self.shard, self.position, self.timestamp_us = stream, shard, position, timestamp_us
        self.key, self.value = key, value

    def _fields(self):
        return (self.stream, self.shard, self.position, self.timestamp_us, self.key, self.value)

    def __eq__(self, other):
        return isinstance(other, Message) and self._fields() == (<Message> other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (f"Message(stream={self.stream!r}, shard={self.shard}, position={self.position}, "
                f"timestamp_us={self.timestamp_us}, key={self.key!r}, value={self.value!r})")

    def __reduce__(self):
        return _message, self._fields()


def _message(stream, shard, position, timestamp_us, key, value):
    return Message(stream=stream, shard=shard, position=position, timestamp_us=timestamp_us, key=key, value=value)


@cython.no_gc_clear  # entries and data are looked at for as long as it lives
cdef class Records:
    """A run of records of one shard. Of the entries given, the first `count` are whole and match the data, which begins
    at `start`; what lies behind them is not looked at again. `proven`: entries and data were checked where they come
    from, so that sums need not be made again. `shown`: they lie in memory that their producer shares, where they are good
    as long as it is: they are copied and checked when messages are asked for, and not at all for those who want the bytes
    alone."""

    def __init__(self, str stream, int32_t shard, int64_t start, entries, data, *, bint proven=False, bint shown=False):
        self.lay(stream, shard, start, entries, data, proven, shown)

    cdef int lay(self, str stream, int32_t shard, int64_t start, entries, data, bint proven, bint shown) except -1:
        cdef _Entries index
        cdef _Bytes content
        self._keep()
        self.count = 0  # until they are checked, also when this fails or runs a second time
        if start < 0:
            raise ValueError(f"records cannot start at {start}")
        index, content = _Entries(entries), _Bytes(data)
        self._keep()  # these may be records of themselves
        self.start = self._end = start  # what they had is let go now, and there is nothing to lend until all is new
        self.stream, self.shard, self._source = stream, shard, data
        self._index, self._first, self._entries = index, index.first, index.entries
        self._content, self._at, self._bytes = content, content.at, content.count
        self._unchecked = shown
        if shown:
            if self._entries:
                self._end = self._first[self._entries - 1].end
            if self._end - start == self._bytes:
                self.count = self._entries
            else:
                self._end, self._unchecked = start, False
            return 0
        with nogil:
            self.count = tr_verify(self._first, self._entries, start, self._at, self._bytes, proven)
        if self.count:
            self._end = self._first[self.count - 1].end
        return 0

    cdef int lay_block(self, str stream, int32_t shard, int64_t start, Block block, size_t entries) except -1:
        """Of new records, by the shortest way: a few that are proven, copied into a block of their own. Its `size` bytes
        are the data, and the entries lie behind them, at the next multiple of 8."""
        self.stream, self.shard, self.start, self._source = stream, shard, start, block
        self._at, self._bytes = block.memory, block.size
        self._first, self._entries = <const tr_entry *> (block.memory + (block.size + 7 & ~7)), entries
        self.count = tr_verify(self._first, entries, start, self._at, self._bytes, True)
        self._end = self._first[self.count - 1].end if self.count else start
        return 0

    cdef int _check(self) except -1:
        """Before the first message is looked at."""
        cdef Block own
        cdef size_t good
        if not self._unchecked or not self.count:
            return 0
        own = Block(self.count * TR_ENTRY_BYTES)
        memcpy(own.memory, self._first, own.size)
        good = tr_verify(<const tr_entry *> own.memory, self.count, self.start, self._at, self._bytes, True)
        if <Py_ssize_t> good < self.count or (<const tr_entry *> own.memory)[self.count - 1].end != <uint64_t> self._end:
            raise Corrupt(
                f"{self.stream}/{self.shard}: what its producer has in shared memory is damaged, behind position "
                f"{self.start}. None of it was delivered; seek to {self.start} with in_place=False to read the files",
                shard=self.shard, position=self.start, resume_position=self.start)
        self._index, self._first, self._unchecked = own, <const tr_entry *> own.memory, False
        return 0

    @property
    def data(self):
        """The messages' bytes, from start to end."""
        view = PyMemoryView_FromObject(self._source)
        return view if self._end - self.start == self._bytes else view[:self._end - self.start]

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        # As `data`, for those who look at it in passing: no view has to be made.
        PyBuffer_FillInfo(buffer, self, <void *> self._at, self._end - self.start, 1, flags)
        self._lent += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self._lent -= 1

    cdef int _keep(self) except -1:
        if self._lent:
            raise BufferError(f"records whose bytes are in use, {self._lent} times: they cannot become others")
        return 0

    @property
    def end(self):
        return self._end

    @property
    def first_time_us(self):
        return self._first[0].time_us if self.count else None

    @property
    def last_time_us(self):
        return self._first[self.count - 1].time_us if self.count else None

    def messages(self):
        """All of them as a list of Message."""
        self._check()
        cdef list result = []
        cdef Py_ssize_t i
        cdef uint64_t origin = self.start, start = self.start
        cdef const tr_entry *entry
        cdef const char *at
        cdef uint32_t key
        cdef Message message
        for i in range(self.count):
            entry = &self._first[i]
            at = <const char *> self._at + (start - origin)
            key = entry.shape & TR_KEY_MAX
            message = Message.__new__(Message)
            message.stream = self.stream
            message.shard = self.shard
            message.position = start
            message.timestamp_us = entry.time_us
            message.key = PyBytes_FromStringAndSize(at, key) if entry.shape & TR_HAS_KEY else None
            if entry.shape & TR_NO_VALUE:
                message.value = None
            else:
                message.value = PyBytes_FromStringAndSize(
                    at + key, entry.end - start - key - (1 if entry.shape & TR_FILLER else 0))
            result.append(message)
            start = entry.end
        return result

    def columns(self):
        """Buffers for Arrow arrays: (keys, key offsets, key bitmap or None, absent keys, values, value offsets,
        value bitmap or None, absent values, times, positions, shards). Values that lie side by side are not copied."""
        cdef tr_measure room
        cdef tr_columns out
        cdef size_t count = self.count
        self._check()
        with nogil:
            room = tr_measure_columns(self._first, count, self.start)
        if self.end - self.start >= 1 << 31:
            raise OverflowError(f"{self.end - self.start} bytes in one batch; Arrow's binary columns end at 2 GiB")
        side_by_side = room.key_bytes == 0 and room.fillers == 0
        cdef Block keys = Block(room.key_bytes)
        cdef Block values = Block(0 if side_by_side else room.value_bytes)
        cdef Block key_offsets = Block(4 * (count + 1)), value_offsets = Block(4 * (count + 1))
        cdef Block key_bits = Block((count + 7) // 8) if room.absent_keys else None
        cdef Block value_bits = Block((count + 7) // 8) if room.absent_values else None
        cdef Block times = Block(8 * count), positions = Block(8 * count), shards = Block(4 * count)
        out.key_out, out.value_out = keys.memory, NULL if side_by_side else values.memory
        out.key_offsets, out.value_offsets = <int32_t *> key_offsets.memory, <int32_t *> value_offsets.memory
        out.key_present = NULL if key_bits is None else key_bits.memory
        out.value_present = NULL if value_bits is None else value_bits.memory
        out.times, out.positions = <int64_t *> times.memory, <int64_t *> positions.memory
        out.shards = <int32_t *> shards.memory
        with nogil:
            tr_split_columns(self._first, count, self.start, self._at, self.shard, out)
        return (keys, key_offsets, key_bits, room.absent_keys, self._source if side_by_side else values, value_offsets,
                value_bits, room.absent_values, times, positions, shards)


# ---- awaiting ---------------------------------------------------------------------------------------------------------

cdef tuple _NOTHING = ()


@cython.final
cdef class Ready:
    """An awaitable that is ready. Awaiting it costs a fraction of a coroutine, so async twins need be no slower."""

    def __await__(self):
        return iter(_NOTHING)


cdef Ready _READY = Ready()


# ---- packing records --------------------------------------------------------------------------------------------------

cdef inline int64_t now_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t> now.tv_sec * 1000000 + now.tv_nsec // 1000


@cython.final
cdef class Packed:
    """Messages of one shard on their way to disk: data bytes and their entries, from `start` to `end`."""
    cdef readonly int64_t start
    cdef readonly int64_t end
    cdef readonly int64_t last_time_us
    cdef readonly Py_ssize_t count
    cdef readonly Block data
    cdef readonly Block entries
    cdef readonly object sheet         # in which it lies; None: in none
    cdef readonly Py_ssize_t data_at   # where in that, in bytes …
    cdef readonly Py_ssize_t entry_at  # … and in entries


@cython.final
cdef class _Lane:
    """The open buffer of one shard: a part of a sheet, which consumers will read in place; or, if there is none to be had,
    memory of our own."""
    cdef Block data
    cdef Block entries
    cdef object sheets        # where to have sheets from, or None
    cdef object sheet         # in which the buffer lies, or None
    cdef Py_ssize_t data_at   # where it begins in the sheet …
    cdef Py_ssize_t entry_at
    cdef list full            # parts that are complete, and wait to be taken
    cdef Py_ssize_t expected_data, expected_entries  # the next round will be as large as the last one
    cdef int64_t start
    cdef int64_t time_us
    cdef int64_t base  # where the file begins that this will be written to, if no other is begun before

    cdef int make_room(self, size_t length) except -1:
        """For one more message of this length."""
        cdef Block data, entries, more_data, more_entries
        cdef Py_ssize_t size
        cdef size_t skip
        while self.data.size + length > self.data.capacity or \
                self.entries.size + TR_ENTRY_BYTES > <Py_ssize_t> self.entries.capacity:
            data, entries, size, sheet = self.data, self.entries, self.entries.size, None
            if self.sheet is not None:
                if not self.sheet.extend(data, entries, length):
                    self.end_part(False)
                continue
            # It lies in memory as it will lie in the file's blocks: then it can be written without being copied before.
            skip = (self.start + data.size - self.base) % _FILE_BLOCK_BYTES
            if size == 0 and self.sheets is not None:
                sheet = self.sheets.begin(skip, length)
            if sheet is not None:
                more_data, more_entries = sheet.blocks()
            elif size == 0:
                more_data = Block(max(<Py_ssize_t> length, self.expected_data), skip)
                more_entries = Block(max(<Py_ssize_t> TR_ENTRY_BYTES, self.expected_entries))
                more_data.size = more_entries.size = 0
            else:
                more_data = data if data.size + length <= data.capacity else grown(data, data.size + length)
                more_entries = entries if size + TR_ENTRY_BYTES <= <Py_ssize_t> entries.capacity else \
                    grown(entries, size + TR_ENTRY_BYTES)
            # Making objects may have let another thread in, which sends: then it made room, or used up what there was.
            if self.data is data and self.entries is entries and self.entries.size == size:
                self.data, self.entries, self.sheet = more_data, more_entries, sheet
                if sheet is not None:
                    self.data_at, self.entry_at = skip, 0
        return 0

    cdef int end_part(self, bint goes_on) except -1:
        """What is in the open buffer becomes a part, if there is anything. A new buffer is begun with the next message, or
        `goes_on` in the same sheet."""
        cdef Packed packed = Packed.__new__(Packed)
        cdef Block data, entries
        cdef Py_ssize_t size
        while True:
            data, entries, size, rest = self.data, self.entries, self.entries.size, None
            if goes_on and self.sheet is not None:
                rest = self.sheet.rest(data, entries)
            if self.data is data and self.entries is entries and self.entries.size == size:  # as in make_room
                break
        if size:
            packed.start, packed.end, packed.last_time_us = self.start, self.start + data.size, self.time_us
            packed.data, packed.entries, packed.count = data, entries, size // TR_ENTRY_BYTES
            packed.sheet, packed.data_at, packed.entry_at = self.sheet, self.data_at, self.entry_at
            self.start = packed.end
            self.full.append(packed)
        if rest is not None:
            self.data, self.entries = rest
            self.data_at, self.entry_at = self.data_at + data.size, self.entry_at + size // TR_ENTRY_BYTES
        else:
            self.data = self.entries = _NO_ROOM
            self.sheet = None
        return 0

    cdef list take(self):
        """All parts."""
        cdef list parts, none = []
        if self.entries.size:
            self.expected_data, self.expected_entries = self.data.size, self.entries.size
            self.end_part(True)
        parts, self.full = self.full, none
        return parts

    cdef int add(self, const uint8_t *key, Py_ssize_t key_count, const uint8_t *value, Py_ssize_t value_count,
                 uint32_t flags, int64_t time_us) except -1:
        cdef size_t filler = 1 if key_count + value_count == 0 else 0
        cdef size_t length = key_count + value_count + filler
        cdef size_t at
        cdef uint8_t *message
        if self.data.size + length > self.data.capacity or \
                self.entries.size + TR_ENTRY_BYTES > <Py_ssize_t> self.entries.capacity:
            self.make_room(length)
        at = self.data.size
        message = self.data.memory + at
        if key_count:
            memcpy(message, key, key_count)
        if value_count:
            memcpy(message + key_count, value, value_count)
        if filler:
            message[0] = 0
            flags |= TR_FILLER
        if time_us > self.time_us:
            self.time_us = time_us
        (<tr_entry *> (self.entries.memory + self.entries.size))[0] = tr_describe(
            message, self.start + at, length, <uint32_t> key_count, flags, self.time_us)
        self.data.size += length
        self.entries.size += TR_ENTRY_BYTES
        return 0


@cython.final
cdef class Packer:
    """Takes messages, spreads them over shards and lays them out as records, in memory, until `take`.

    Positions go on from the given ones and times never go back within a shard, whatever the clock does.
    """
    cdef list _lanes   # by shard; None where another producer writes
    cdef list _own     # those that are not None
    cdef uint32_t _shards
    cdef uint32_t _turn
    cdef readonly Py_ssize_t message_bytes_max
    cdef readonly Py_ssize_t pending_bytes
    cdef bint _closed
    cdef public bint detour            # offer() must take the long way: the buffer is full, or something else is special
    cdef public object long_way        # called then, with the message; what it returns is awaited
    cdef public Py_ssize_t press_bytes # how much may be pending before `press` is called
    cdef public object press

    def __init__(self, positions, times_us, Py_ssize_t message_bytes_max, sheets=None):
        """`sheets`: by shard, where its messages are packed so that consumers can read them in place."""
        cdef _Lane lane
        cdef list lanes = [], own
        for shard, (position, time_us) in enumerate(zip(positions, times_us, strict=True)):
            lane = None
            if position is not None:
                if not 0 <= position <= 1 << 62:  # far below the end of the numbers, which no shard will reach
                    raise ValueError(f"a shard cannot begin at position {position}")
                lane = _Lane.__new__(_Lane)
                lane.start, lane.time_us, lane.base = position, time_us, position
                lane.data = lane.entries = _NO_ROOM
                lane.sheets = None if sheets is None else sheets.get(shard)
                lane.full = []
            lanes.append(lane)
        own = [lane for lane in lanes if lane is not None]
        if not own:
            raise ValueError("a packer needs at least one shard to pack for")
        self._lanes, self._own = lanes, own
        self._shards = len(lanes)
        self._turn = 0
        self.message_bytes_max = message_bytes_max
        self.pending_bytes = 0

    def close(self):
        """Take nothing more. What is pending can still be taken."""
        self._closed = True

    @property
    def pending_count(self):
        """How many messages wait to be taken."""
        return sum((<_Lane> lane).entries.size // TR_ENTRY_BYTES + sum(part.count for part in (<_Lane> lane).full)
                   for lane in self._own or ())

    cdef int _refuse_size(self, Py_ssize_t key_count, Py_ssize_t value_count) except -1:
        if self._closed:
            raise Closed("the producer was closed; open a new one. It was not sent")
        if key_count + value_count > self.message_bytes_max:
            raise ValueError(f"a message of {key_count + value_count} bytes; the stream takes at most "
                             f"message_bytes_max={self.message_bytes_max}. It was not sent")
        if key_count > <Py_ssize_t> TR_KEY_MAX:
            raise ValueError(f"a key of {key_count} bytes; the format takes at most {TR_KEY_MAX}. It was not sent")
        return 0

    cdef _Lane _lane(self, const uint8_t *key, Py_ssize_t key_count, bint keyed, shard):
        cdef uint32_t number
        cdef _Lane lane
        if shard is None and not keyed:
            lane = <_Lane> self._own[self._turn]
            self._turn = self._turn + 1 if self._turn + 1 < <uint32_t> len(self._own) else 0
            return lane
        if shard is None:
            number = tr_shard_of(tr_hash64(key, key_count, 0), self._shards)
        elif isinstance(shard, int) and 0 <= shard < self._shards:
            number = shard
        else:
            raise ValueError(f"shard {shard!r} of a stream with shards 0 to {self._shards - 1}. It was not sent")
        if self._lanes[number] is None:
            raise ValueError(f"shard {number} is not among those that this producer writes. It was not sent")
        return <_Lane> self._lanes[number]

    def add(self, value, key=None, shard=None, time_us=None):
        """Pack one message; how many bytes are pending now. A key of bytes, or None; a value of bytes, or None with a
        key: the key's tombstone."""
        return self._add(value, key, shard, time_us)

    def offer(self, value, key=None, *, shard=None):
        """Send one message from a coroutine: await what this returns. When the buffer is full it waits, without stopping
        the others. (Native from end to end, so that awaiting costs no more than it saves.)"""
        if self.detour:
            return self.long_way(value, key, shard=shard)
        if self._add(value, key, shard, None) >= self.press_bytes:
            self.press()
        return _READY

    cdef Py_ssize_t _add(self, value, key, shard, time_us) except -1:
        cdef const uint8_t *key_at = NULL
        cdef const uint8_t *value_at = NULL
        cdef Py_ssize_t key_count = 0, value_count = 0
        cdef uint32_t flags = 0
        cdef _Bytes key_view, value_view
        if PyBytes_CheckExact(value):
            value_at, value_count = <const uint8_t *> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        elif value is None:
            if key is None:
                raise ValueError("a message without a value deletes a key, so it needs one. It was not sent")
            flags |= TR_NO_VALUE
        else:
            value_view = as_bytes(value, "value")
            value_at, value_count = value_view.at, value_view.count
        if key is not None:
            flags |= TR_HAS_KEY
            if PyBytes_CheckExact(key):
                key_at, key_count = <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            else:
                key_view = as_bytes(key, "key")
                key_at, key_count = key_view.at, key_view.count
        self._refuse_size(key_count, value_count)
        cdef int64_t stamp = now_us() if time_us is None else time_us
        cdef _Lane lane = self._lane(key_at, key_count, key is not None, shard)
        lane.add(key_at, key_count, value_at, value_count, flags, stamp)
        self.pending_bytes += key_count + value_count + TR_ENTRY_BYTES
        return self.pending_bytes

    def add_list(self, list values, list keys, shard=None, time_us=None):
        """Pack messages from lists, all with one time. Without keys they go to one shard together. All or none."""
        cdef Py_ssize_t i, key_count, value_count
        cdef const uint8_t *key_at
        cdef const uint8_t *value_at
        cdef uint32_t flags
        cdef int64_t stamp = now_us() if time_us is None else time_us
        cdef _Lane lane = None
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(values)} values with {len(keys)} keys. Nothing was sent")
        for i in range(len(values)):  # everything is looked at before anything is packed
            value, key = values[i], None if keys is None else keys[i]
            if not (PyBytes_CheckExact(value) or (value is None and key is not None)):
                raise TypeError(f"value {i} is {type(value).__name__}; send_many takes bytes, and None with a key. "
                                f"Nothing was sent")
            if not (key is None or PyBytes_CheckExact(key)):
                raise TypeError(f"key {i} is {type(key).__name__}; send_many takes bytes or None. Nothing was sent")
            self._refuse_size(0 if key is None else PyBytes_GET_SIZE(key),
                              0 if value is None else PyBytes_GET_SIZE(value))
            if key is not None and shard is None and len(self._own) < len(self._lanes):
                self._lane(<const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), True, None)
        if not values:
            return self.pending_bytes
        if keys is None or shard is not None:
            lane = self._lane(NULL, 0, False, shard)
        for i in range(len(values)):
            value, key = values[i], None if keys is None else keys[i]
            flags, key_at, key_count, value_at, value_count = 0, NULL, 0, NULL, 0
            if key is not None:
                flags = TR_HAS_KEY
                key_at, key_count = <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if value is None:
                flags |= TR_NO_VALUE
            else:
                value_at, value_count = <const uint8_t *> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
            (lane if lane is not None else self._lane(key_at, key_count, key is not None, None)).add(
                key_at, key_count, value_at, value_count, flags, stamp)
            self.pending_bytes += key_count + value_count + TR_ENTRY_BYTES
        return self.pending_bytes

    def add_columns(self, values, value_offsets, value_present, keys, key_offsets, key_present,
                    Py_ssize_t first, Py_ssize_t count, shard=None, time_us=None):
        """Pack rows first … first+count of two Arrow binary columns with 64-bit offsets. All or none.

        Without a key column, or with a shard given, the rows go to one shard together.
        """
        cdef Py_ssize_t row, key_count = 0, value_count
        cdef uint32_t flags = 0
        cdef int64_t stamp = now_us() if time_us is None else time_us
        cdef const uint8_t *key_at = NULL
        cdef bint keyed = key_offsets is not None, some_elsewhere = len(self._own) < len(self._lanes)
        cdef bint together = not keyed or shard is not None
        cdef _Lane lane
        cdef _Column value_column = _Column(values, value_offsets, value_present, first, count, "value")
        cdef _Column key_column = _Column(keys, key_offsets, key_present, first, count, "key") if keyed else value_column
        for row in range(first, first + count):  # everything is looked at before anything is packed
            if not value_column.has(row) and not (keyed and key_column.has(row)):
                raise ValueError(f"row {row} has no value and no key to delete. Nothing was sent")
            self._refuse_size(key_column.length(row) if keyed else 0, value_column.length(row))
            if some_elsewhere and not together and key_column.has(row):
                self._lane(key_column.at(row), key_column.length(row), True, None)
        if count == 0:
            return self.pending_bytes
        lane = self._lane(NULL, 0, False, shard) if together else None
        for row in range(first, first + count):
            flags = 0
            if keyed:
                key_at, key_count = key_column.at(row), key_column.length(row)
                flags = TR_HAS_KEY if key_column.has(row) else 0
                if not together:
                    lane = self._lane(key_at, key_count, flags != 0, None)
            value_count = value_column.length(row)
            if not value_column.has(row):
                flags |= TR_NO_VALUE
            lane.add(key_at, key_count, value_column.at(row), value_count, flags, stamp)
            self.pending_bytes += key_count + value_count + TR_ENTRY_BYTES
        return self.pending_bytes

    def let_go(self):
        """Of all sheets in which nothing is pending: no more will be sent."""
        cdef _Lane lane
        for lane in self._own:
            lane.sheets = None
            if lane.entries.size == 0:
                lane.data = lane.entries = _NO_ROOM
                lane.sheet = None

    def note_file(self, uint32_t shard, int64_t base):
        """Where the file begins that a shard's messages are being written to."""
        cdef _Lane lane = self._lanes[shard]
        if lane is not None and 0 <= base <= lane.start:
            lane.base = base

    def take(self):
        """Everything pending, as {shard: [Packed, …]}, in order; the packer is empty afterwards."""
        cdef dict result = {}
        cdef uint32_t shard
        # First: making objects may let another thread in, whose messages must stay counted if they miss this round.
        self.pending_bytes = 0
        for shard in range(self._shards):
            if self._lanes[shard] is not None and (parts := (<_Lane> self._lanes[shard]).take()):
                result[shard] = parts
        return result


@cython.final
cdef class _Column:
    """An Arrow binary column with 64-bit offsets, every bound checked once, at the start."""
    cdef _Bytes _data, _offsets, _bits
    cdef const uint8_t *first_byte
    cdef const int64_t *ends
    cdef const uint8_t *present

    def __init__(self, data, offsets, present, Py_ssize_t first, Py_ssize_t count, str name):
        self._data, self._offsets = _Bytes(data), _Bytes(offsets)
        self._bits = None if present is None else _Bytes(present)
        self.first_byte, self.ends = self._data.at, <const int64_t *> self._offsets.at
        self.present = NULL
        if present is not None:
            self.present = self._bits.at
        cdef Py_ssize_t row, rows = self._offsets.count // 8 - 1
        if <size_t> self.ends % 8:
            raise ValueError(f"the {name} offsets must lie at a multiple of 8 bytes in memory. Nothing was sent")
        if first < 0 or count < 0 or first > rows or count > rows - first:  # no sum here that could overflow
            raise ValueError(f"{count} rows from row {first} on of a {name} column with {rows} rows. Nothing was sent")
        if present is not None and first + count > 8 * self._bits.count:
            raise ValueError(f"the {name} column's bitmap is too short. Nothing was sent")
        for row in range(first, first + count):
            if not 0 <= self.ends[row] <= self.ends[row + 1] <= self._data.count:
                raise ValueError(f"row {row} of the {name} column lies outside its data. Nothing was sent")

    cdef inline bint has(self, Py_ssize_t row) noexcept:
        return self.present == NULL or self.present[row // 8] >> (row % 8) & 1

    cdef inline Py_ssize_t length(self, Py_ssize_t row) noexcept:
        return self.ends[row + 1] - self.ends[row] if self.has(row) else 0

    cdef inline const uint8_t *at(self, Py_ssize_t row) noexcept:
        return self.first_byte + self.ends[row]


cdef _Bytes as_bytes(source, str what):
    if isinstance(source, str):
        raise TypeError(f"the {what} is a str; send bytes, for example {what}.encode(). It was not sent")
    try:
        return _Bytes(source)
    except TypeError:
        raise TypeError(f"the {what} is {type(source).__name__}; send bytes or another buffer. It was not sent") from None
