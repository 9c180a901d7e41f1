# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of a flush: see fenced.h."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint64_t

from tailrace.native.notice cimport TR_NOTICE_CAPSULE, tr_notice

cdef extern from "fenced.h" nogil:
    enum:
        TR_FENCE_BYTES
    ctypedef struct tr_side:
        int file, fence, direct
        const uint8_t *mine
        const uint8_t *following
        const uint8_t *bytes
        size_t count
        uint64_t offset
        size_t written, passed
        int sync_error, told
    int tr_fenced_flush(tr_side *first, tr_side *second, size_t turn_bytes, size_t direct_least)


cdef class Side:
    """What is appended to one file, whose fence is `mine` and is to be `following`. `direct`: a second handle of the file,
    which passes the page cache by; -1: there is none."""
    cdef tr_side side
    cdef bytes mine, following
    cdef Py_buffer content
    cdef bint given, used

    def __cinit__(self, int file, int fence, bytes mine not None, bytes following not None, content, uint64_t offset,
                  int direct=-1):
        if len(mine) != TR_FENCE_BYTES or len(following) != TR_FENCE_BYTES:
            raise ValueError(f"fences of {len(mine)} and {len(following)} bytes; they have {TR_FENCE_BYTES}")
        PyObject_GetBuffer(content, &self.content, PyBUF_SIMPLE)
        self.mine, self.following, self.given = mine, following, direct >= 0
        self.side.file, self.side.fence, self.side.direct, self.side.offset = file, fence, direct, offset
        self.side.mine, self.side.following = <const uint8_t *> mine, <const uint8_t *> following
        self.side.bytes, self.side.count = <const uint8_t *> self.content.buf, self.content.len

    def __dealloc__(self):
        PyBuffer_Release(&self.content)  # which does nothing if there is none

    @property
    def whole(self):
        """Whether all of it was written."""
        return self.side.written == self.side.count

    @property
    def passed(self):
        """How many bytes passed the page cache by."""
        return self.side.passed

    @property
    def refused(self):
        """Whether a direct handle was given and turned out to be of no use."""
        return self.given and self.side.direct < 0

    @property
    def end(self):
        """Where it ends in the file."""
        return self.side.offset + self.side.count

    @property
    def sync_error(self):
        """An errno, if it could not be synced: then what the disk has of it is unknown."""
        return self.side.sync_error

    @property
    def told(self):
        """Whether the fence is the following one: all of it is on the disk, and others know."""
        return bool(self.side.told)


def flush(Side first not None, Side second not None, *, size_t turn_bytes, size_t direct_least, notice=None):
    """Append to both files and bring them to the disk together; then tell of the first, then of the second, and then
    give the notice, if there is one. As far as it goes: both sides tell."""
    cdef tr_notice *last = NULL if notice is None else <tr_notice *> PyCapsule_GetPointer(notice, TR_NOTICE_CAPSULE)
    if first is second or first.used or second.used or not turn_bytes:
        raise ValueError("two sides, each of them once, in turns of at least one byte")
    first.used = second.used = True
    with nogil:
        if not tr_fenced_flush(&first.side, &second.side, turn_bytes, direct_least) and last != NULL:
            last.give(last.whose)
