# cython: language_level=3
"""What other modules of this room may know of the core's: how blocks and records lie in memory."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "records.h":
    ctypedef struct tr_entry:
        uint64_t end
        int64_t time_us
        uint32_t shape
        uint32_t sum


@cython.no_gc
@cython.final
cdef class Block:
    cdef uint8_t *memory
    cdef size_t capacity, skip
    cdef readonly Py_ssize_t size
    cdef readonly object owner
    cdef bint is_lent


cdef class _Bytes:
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef Py_ssize_t count


@cython.final
cdef class _Entries(_Bytes):
    cdef const tr_entry *first
    cdef size_t entries


cdef class Records:
    cdef readonly str stream
    cdef readonly int32_t shard
    cdef readonly int64_t start
    cdef readonly Py_ssize_t count
    cdef object _source            # whose bytes the data are
    cdef object _index, _content   # what keeps entries and data where they are
    cdef const tr_entry *_first
    cdef size_t _entries           # that were given; the first `count` of them are good
    cdef const uint8_t *_at
    cdef Py_ssize_t _bytes
    cdef int64_t _end
    cdef bint _unchecked
    cdef size_t _lent              # how often, as a buffer

    cdef int lay(self, str stream, int32_t shard, int64_t start, entries, data, bint proven, bint shown) except -1
    cdef int lay_block(self, str stream, int32_t shard, int64_t start, Block block, size_t entries) except -1
    cdef int _check(self) except -1
    cdef int _keep(self) except -1
