# cython: language_level=3
"""What other modules of this room may know of vigils: what each kind of them has to do."""
from libc.stdint cimport int32_t, uint64_t

from tailrace.native._core cimport Records


cdef class Vigil:
    cdef type batch
    cdef str stream
    cdef int32_t shard
    cdef uint64_t bytes_max
    cdef double patience_s
    cdef bint streams, over
    cdef bint at_end           # the last look was certain that there is no more than it gave
    cdef uint64_t began_ns     # when the first wait of this call did; 0: there was none
    cdef readonly bint drained
    cdef readonly uint64_t created_us, entry, position
    cdef readonly double waited_s  # of the last next() that found nothing

    cdef int begin(self, type batch, str stream, int32_t shard, uint64_t created_us, uint64_t entry, uint64_t position,
                   uint64_t bytes_max, double patience_s) except -1
    cdef Records take(self, double timeout_s)
    cdef bint wait(self, double timeout_s) except -1
    cdef Records look(self)
