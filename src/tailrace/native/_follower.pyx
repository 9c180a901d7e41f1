# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The head of a segment in one look: what two caches know of it that consumers do not have yet.

Invariant: what it gives is what the files have; of what it is unsure it says nothing, and the long way must tell.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from tailrace.native._client cimport CellClient, Watcher, parts_run, run_of
from tailrace.native._core cimport Records
from tailrace.native._vigil cimport Vigil

cdef extern from "cell_watch.h" nogil:
    enum:
        TR_WATCH_NEWS

cdef extern from "lengths.h" nogil:
    ctypedef struct tr_segment_lengths:
        uint64_t created_us, data_base, index_base
        uint32_t data_chunk_bytes, index_chunk_bytes
        uint64_t data_cached, index_cached, data_durable, index_durable
    int tr_lengths_of(const void *raw, size_t count, uint64_t created_us, tr_segment_lengths *found,
                      uint64_t *index_end)

cdef extern from "records.h" nogil:
    enum:
        TR_ENTRY_BYTES
    ctypedef struct tr_entry:
        uint64_t end
    size_t tr_count_to_position(const tr_entry *entries, size_t count, uint64_t limit)

cdef uint64_t _UNKNOWN = 0xFFFFFFFFFFFFFFFF
cdef enum:
    _ENTRIES_MAX = 16384  # of a segment, at a time
    _TOLD_NS = 20 * 1000 * 1000  # for so long lengths that were said tell of enough, if they do
    _ENTRIES_FIRST = 1024  # as long as nobody knows how large messages are
    _SHORT_BYTES = 64 << 10  # of messages, to the end of what there is
    _LENGTHS_ROOM = 28 + 4 * 64  # as many segments as are told


cdef uint64_t _after(double seconds) noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec + <uint64_t> (max(seconds, 0.0) * 1e9)


ctypedef struct _Span:
    uint64_t first, count  # chunks
    uint64_t skip  # bytes before what is wanted, in the first one
    uint64_t last_bytes  # that the last one must have


cdef class Follower:
    """What is new in one segment, as far as two caches know: the shard's lengths from one, then entries and messages from
    the other. All of it in one call: whoever slept finds little of itself in the processor's cache, so what counts is
    how much it touches.

    `room` makes memory of a size. `at_end`: the last look was certain that there is no more than it gave. `holds`: it has
    clients of both caches, and `glance` looks with them. `entries_max`: where the segment ends, once that is known.

    Where each question is a round trip, few are asked: `ahead_bytes` beyond a batch bring entries for several of them, a
    batch has whole chunks, what came along with it is kept for the next one, and who knows of more than a batch does not
    ask how much there is, for a moment. Near the end entries and messages are one question, and of how much there is
    whoever was woken knows already.
    """
    cdef CellClient lengths, data
    cdef uint64_t until_ns
    cdef double deadline_s
    cdef readonly bint holds
    cdef bytes lengths_key, index_key, data_key
    cdef uint64_t created_us, data_base, index_base
    cdef uint64_t index_chunk, data_chunk, header_bytes
    cdef uint8_t[2][_LENGTHS_ROOM] raw
    cdef int64_t raw_count
    cdef int side  # which of the two is what was last said
    cdef bint known, overheard
    cdef uint64_t index_end  # where its successor begins, as the lengths say
    cdef public uint64_t entries_max
    cdef tr_segment_lengths told
    cdef uint64_t told_ns, heard_ns  # when something new was said, and when it was last asked for
    cdef uint64_t typical_bytes  # of a message, as far as is known
    cdef public uint64_t ahead_bytes  # entries are read for so many bytes of messages at once; 0: questions cost little
    cdef object window  # entries that were read: window_count of them from window_entry on
    cdef uint64_t window_entry, window_count
    cdef uint8_t *rest  # what follows the last batch in its last chunk: rest_bytes from rest_offset on
    cdef uint64_t rest_offset, rest_bytes
    cdef object room
    cdef readonly bint at_end

    def __cinit__(self, bytes lengths_key not None, segment, bytes index_key not None, uint32_t index_chunk,
                  bytes data_key not None, uint32_t data_chunk, uint32_t header_bytes, room):
        self.lengths_key, self.index_key, self.data_key = lengths_key, index_key, data_key
        self.created_us, self.data_base, self.index_base = segment
        if not index_chunk or not data_chunk:
            raise ValueError("chunks of no bytes")
        self.index_chunk, self.data_chunk, self.header_bytes, self.room = index_chunk, data_chunk, header_bytes, room
        self.raw_count, self.entries_max = -1, _UNKNOWN

    def __dealloc__(self):
        free(self.rest)

    @property
    def told_end(self):
        """The position up to which both cache and file of this segment go, as it was last said; 0: nothing was."""
        return self.data_base + min(self.told.data_cached, self.told.data_durable) if self.known else 0

    def hold(self, CellClient lengths not None, CellClient data not None, double for_s, double deadline_s):
        """Look with these for so long, and as long as they have no trouble. Whoever lent them takes them away again by
        `let_go`."""
        self.lengths, self.data, self.holds = lengths, data, True
        self.until_ns, self.deadline_s = _after(for_s), deadline_s

    def let_go(self):
        self.lengths, self.data, self.holds = None, None, False

    def glance(self, uint64_t entry, uint64_t start, uint64_t bytes_max):
        """look() with what is held; None, too, once that is over."""
        cdef CellClient lengths = self.lengths, data = self.data
        self.at_end = False
        if lengths is None:
            return None
        if _after(0.0) >= self.until_ns:
            self.holds = False
            return None
        found = self.look(lengths, data, entry, start, bytes_max, 1.0, self.deadline_s)
        if lengths.troubled or data.troubled:
            self.holds = False
        return found

    cpdef look(self, CellClient lengths, CellClient data, uint64_t entry, uint64_t start, uint64_t bytes_max,
               double silent_s=1.0, double deadline_s=0.5):
        """(entries from this one on, the data of all of them); None: nothing, or nothing that could be had at first
        sight. `start`: where the message of the first entry begins."""
        cdef uint64_t now_ns = _after(0.0), deadline_ns = now_ns + <uint64_t> (deadline_s * 1e9)
        cdef uint64_t fresh, wanted, ahead, count, length, offset
        cdef bint last, overheard
        cdef Py_buffer view
        cdef const tr_entry *entries
        brought = None
        self.at_end = False
        # Entries whose messages do not fit the batch would be read once more by the next look: so about as many as do.
        wanted = bytes_max // self.typical_bytes + 1 if self.typical_bytes else <uint64_t> _ENTRIES_FIRST
        wanted = min(wanted, <uint64_t> _ENTRIES_MAX)
        overheard = self.overheard and now_ns <= self.heard_ns + <uint64_t> _TOLD_NS
        self.overheard = False
        if not overheard and (
                not self.ahead_bytes or not self.known or now_ns > self.heard_ns + <uint64_t> _TOLD_NS or
                self.fresh() <= entry + wanted):  # of the last one it must be certain that it is
            if not self.hear(lengths, now_ns, deadline_ns):
                return None
        if not self.known or now_ns > self.told_ns + <uint64_t> (silent_s * 1e9):
            return None
        fresh = self.fresh()
        last = self.index_end == _UNKNOWN and self.entries_max == _UNKNOWN and \
            self.told.index_cached == self.told.index_durable
        if fresh <= entry:
            self.at_end = last and fresh == entry
            return None
        count = min(fresh - entry, wanted)
        if not self.has_entries(entry, count) and self.is_short(start, bytes_max) and count == fresh - entry:
            brought = self.read_end(data, entry, count, start - self.data_base, deadline_ns)
            if brought is None:
                return None
        if not self.has_entries(entry, count):
            ahead = min(fresh - entry, self.entries_ahead(wanted))
            # What is missing further ahead is no reason to do without what is needed now.
            if not self.read_entries(data, entry, ahead, deadline_ns) and \
                    (ahead == count or not self.read_entries(data, entry, count, deadline_ns)):
                return None
        offset = (entry - self.window_entry) * TR_ENTRY_BYTES
        PyObject_GetBuffer(self.window, &view, PyBUF_SIMPLE)
        try:
            entries = <const tr_entry *> (<const uint8_t *> view.buf + offset)
            count = max(<uint64_t> tr_count_to_position(entries, count, start + self.rounded(bytes_max)), <uint64_t> 1)
            length = entries[count - 1].end - start
        finally:
            PyBuffer_Release(&view)
        if length - 1 >= bytes_max or start < self.data_base:  # nothing, or one large message, or what cannot be
            return None
        self.typical_bytes = max(length // count, <uint64_t> 1)
        index = self.window[offset:offset + count * TR_ENTRY_BYTES]
        self.at_end = last and entry + count == fresh
        if not self.ahead_bytes or entry + count == self.window_entry + self.window_count:
            self.forget_entries()
        if brought is not None and length <= <uint64_t> len(brought):
            return index, brought[:length]
        found = self.read_messages(data, start - self.data_base, length, deadline_ns)
        if found is None:
            self.at_end = False
            return None
        return index, found

    cdef bint has_entries(self, uint64_t entry, uint64_t count) noexcept:
        return self.window_entry <= entry <= entry + count <= self.window_entry + self.window_count

    cdef bint is_short(self, uint64_t start, uint64_t bytes_max) noexcept:
        """Whether what the cache has from here on is so little that it is read to its end, together with its entries, where
        each question is a round trip."""
        cdef uint64_t offset = start - self.data_base
        return self.ahead_bytes and start >= self.data_base and offset < self.told.data_cached and \
            self.told.data_cached - offset <= min(bytes_max, <uint64_t> _SHORT_BYTES)

    cdef object read_end(self, CellClient data, uint64_t entry, uint64_t count, uint64_t offset, uint64_t deadline_ns):
        """The last entries that were told of into the window, and what the segment's data have from here on; None: the
        cache does not have it all."""
        cdef uint64_t index_bytes = count * TR_ENTRY_BYTES, content_bytes = self.told.data_cached - offset
        cdef _Span index = self.span(self.header_bytes + entry * TR_ENTRY_BYTES, index_bytes, self.index_chunk)
        cdef _Span content = self.span(offset, content_bytes, self.data_chunk)
        cdef Py_buffer index_view, content_view
        cdef parts_run[2] runs
        self.forget_entries()
        if index.skip % 8:
            return None
        window, found = self.room(index.count * self.index_chunk), self.room(content.count * self.data_chunk)
        PyObject_GetBuffer(window, &index_view, PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(found, &content_view, PyBUF_WRITABLE)
            try:
                runs[0] = run_of(self.index_key, index.first, index.count, <uint8_t *> index_view.buf, self.index_chunk,
                                 index.last_bytes)
                runs[1] = run_of(self.data_key, content.first, content.count, <uint8_t *> content_view.buf,
                                 self.data_chunk, content.last_bytes)
                if data.gather(runs, 2, deadline_ns) < 0:
                    return None
            finally:
                PyBuffer_Release(&content_view)
        finally:
            PyBuffer_Release(&index_view)
        self.window = memoryview(window)[index.skip:index.skip + index_bytes]
        self.window_entry, self.window_count = entry, count
        return memoryview(found)[content.skip:content.skip + content_bytes]

    cdef _Span span(self, uint64_t offset, uint64_t size, uint64_t chunk_bytes) noexcept:
        cdef _Span span
        span.first, span.skip = offset // chunk_bytes, offset % chunk_bytes
        span.count = (span.skip + size + chunk_bytes - 1) // chunk_bytes
        span.last_bytes = span.skip + size - (span.count - 1) * chunk_bytes
        return span

    cdef void forget_entries(self):
        self.window, self.window_entry, self.window_count = None, 0, 0

    cdef uint64_t rounded(self, uint64_t bytes_max) noexcept:
        """Whole chunks, where questions are dear: one more, of which the batch needs only the beginning, would often be a
        round trip of its own."""
        if not self.ahead_bytes or bytes_max < self.data_chunk:
            return bytes_max
        return bytes_max - bytes_max % self.data_chunk

    cdef object read_messages(self, CellClient data, uint64_t offset, uint64_t size, uint64_t deadline_ns):
        """So many bytes of the segment's data; None: the cache does not have them all."""
        cdef _Span span = self.span(offset, size, self.data_chunk)
        cdef uint64_t kept = 0, end = span.skip + size
        cdef int64_t last_bytes = self.data_chunk
        cdef Py_buffer view
        cdef parts_run run
        found = self.room(span.count * self.data_chunk)
        PyObject_GetBuffer(found, &view, PyBUF_WRITABLE)
        try:
            if self.rest_bytes and self.rest_offset == offset:
                kept = 1
                memcpy(<uint8_t *> view.buf + span.skip, self.rest, self.rest_bytes)
            if kept < span.count:
                run = run_of(self.data_key, span.first + kept, span.count - kept,
                              <uint8_t *> view.buf + kept * self.data_chunk, self.data_chunk, span.last_bytes)
                last_bytes = data.gather(&run, 1, deadline_ns)
            self.rest_bytes = 0
            if last_bytes == <int64_t> self.data_chunk:
                self.keep_rest(<const uint8_t *> view.buf + end, offset + size, span.count * self.data_chunk - end)
        finally:
            PyBuffer_Release(&view)
        return None if last_bytes < 0 else memoryview(found)[span.skip:end]

    cdef void keep_rest(self, const uint8_t *at, uint64_t offset, uint64_t size) noexcept:
        """What came along with a batch, from here to the end of its last chunk, begins the next one: if it was told of,
        and asking for it again would cost a round trip. A copy, so that nobody has to keep a large batch for it."""
        if not self.ahead_bytes or offset + size > self.told.data_cached:
            return
        if self.rest == NULL:
            self.rest = <uint8_t *> malloc(self.data_chunk)
        if self.rest != NULL:
            memcpy(self.rest, at, size)
            self.rest_offset, self.rest_bytes = offset, size

    cdef bint hear(self, CellClient lengths, uint64_t now_ns, uint64_t deadline_ns) except *:
        """What is said of the shard by now; whether anything is."""
        cdef int other = 1 - self.side
        cdef int64_t told = lengths.fetch(self.lengths_key, self.raw[other], _LENGTHS_ROOM, deadline_ns)
        if told < 0:
            return False
        self.learn(told, now_ns)
        return True

    cdef void learn(self, int64_t told, uint64_t now_ns) noexcept:
        """What was read beside what was said last: so many bytes."""
        cdef int other = 1 - self.side
        self.heard_ns = now_ns
        if told != self.raw_count or memcmp(self.raw[other], self.raw[self.side], told):
            self.side, self.raw_count, self.told_ns = other, told, now_ns
            self.known = tr_lengths_of(self.raw[other], told, self.created_us, &self.told, &self.index_end) and \
                self.told.data_base == self.data_base and self.told.index_base == self.index_base and \
                self.told.index_chunk_bytes == self.index_chunk and self.told.data_chunk_bytes == self.data_chunk

    def overhear(self, bytes raw not None):
        """The lengths as somebody else has just read them: the next look need not ask for them."""
        cdef int64_t told = PyBytes_GET_SIZE(raw)
        if told <= _LENGTHS_ROOM:
            memcpy(self.raw[1 - self.side], PyBytes_AS_STRING(raw), told)
            self.learn(told, _after(0.0))
            self.overheard = True

    cdef uint64_t fresh(self) noexcept:
        """How many entries the cache has, as was said."""
        cdef uint64_t fresh = 0, begin = self.index_base + self.header_bytes
        if self.told.index_cached > self.header_bytes:
            fresh = (self.told.index_cached - self.header_bytes) // TR_ENTRY_BYTES
        if self.index_end != _UNKNOWN:  # where a segment ends is said by its successor, not by whoever wrote it
            fresh = min(fresh, (self.index_end - begin) // TR_ENTRY_BYTES if self.index_end > begin else 0)
        return min(fresh, self.entries_max)

    cdef uint64_t entries_ahead(self, uint64_t wanted) noexcept:
        """How many to read at once, when so many are needed now."""
        if not self.ahead_bytes or not self.typical_bytes:
            return wanted
        return max(wanted, min(self.ahead_bytes // self.typical_bytes, <uint64_t> _ENTRIES_MAX))

    cdef bint read_entries(self, CellClient data, uint64_t entry, uint64_t count, uint64_t deadline_ns) except *:
        """These into the window; whether the cache has them."""
        cdef uint64_t size = count * TR_ENTRY_BYTES
        cdef _Span span = self.span(self.header_bytes + entry * TR_ENTRY_BYTES, size, self.index_chunk)
        cdef Py_buffer view
        cdef parts_run run
        cdef bint found
        self.forget_entries()
        if span.skip % 8:
            return False
        window = self.room(span.count * self.index_chunk)
        PyObject_GetBuffer(window, &view, PyBUF_WRITABLE)
        try:
            run = run_of(self.index_key, span.first, span.count, <uint8_t *> view.buf, self.index_chunk,
                          span.last_bytes)
            found = data.gather(&run, 1, deadline_ns) >= 0
        finally:
            PyBuffer_Release(&view)
        if found:
            self.window = memoryview(window)[span.skip:span.skip + size]
            self.window_entry, self.window_count = entry, count
        return found


cdef tuple _NO_ARGUMENTS = ()


cdef class HeadVigil(Vigil):
    """Of a shard whose cache is on another host: the watcher of its lengths tells of news, and the follower looks. It begins
    where there is nothing more, and is over where there is more than comes at once.

    `reading`: a lock that whoever looks must have, or the look is left to others. `renew`: gives the follower something
    to look with again, when the time of what it holds is over; whether it did. `counts[source]` grows by the bytes that
    come."""
    cdef Follower follower
    cdef Watcher watcher
    cdef object reading, renew, counts, source

    def __cinit__(self, Follower follower not None, Watcher watcher not None, reading not None, renew not None,
                  type batch not None, str stream not None, int32_t shard, uint64_t created_us, uint64_t entry, uint64_t position,
                  uint64_t bytes_max, double patience_s, counts not None, source):
        self.begin(batch, stream, shard, created_us, entry, position, bytes_max, patience_s)
        self.follower, self.watcher, self.reading, self.renew = follower, watcher, reading, renew
        self.counts, self.source = counts, source
        self.drained = True

    cdef bint wait(self, double timeout_s) except -1:
        if not self.began_ns:
            self.began_ns = _after(0.0)
        # One that is broken says nothing here: whoever waits by the long way hears of it.
        return self.watcher.sleep(timeout_s) == TR_WATCH_NEWS

    cdef Records look(self):
        self.at_end = False
        if not self.reading.acquire(False):
            return None
        try:
            return None if self.over else self.look_alone()
        finally:
            self.reading.release()

    cdef Records look_alone(self):
        cdef Records batch
        cdef uint64_t size, index_size
        lengths = self.watcher.value(0)
        if lengths is not None:
            self.follower.overhear(lengths)
        found = self.follower.glance(self.entry, self.position, self.bytes_max)
        if found is None and not self.follower.holds and self.renew():
            found = self.follower.glance(self.entry, self.position, self.bytes_max)
        if found is None:
            self.at_end = self.follower.at_end
            return None
        index, data = found
        batch = <Records> (<PyTypeObject *> self.batch).tp_new(self.batch, <PyObject *> _NO_ARGUMENTS, NULL)
        batch.lay(self.stream, self.shard, self.position, index, data, True, False)
        size, index_size = len(data), len(index)
        if self.over or not batch.count:
            return None  # what is wrong with it, the long way must tell
        self.entry, self.position = self.entry + batch.count, batch._end
        self.at_end = self.follower.at_end and <uint64_t> batch.count * TR_ENTRY_BYTES == index_size
        self.counts[self.source] += index_size + size
        return batch
