# cython: language_level=3
"""What other modules of this room may know of hints: how to sleep on them without a call through Python."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdatomic.h>
    typedef _Atomic uint32_t tr_own_word;
    """
    ctypedef uint32_t tr_own_word

cdef extern from "hints.h" nogil:
    enum:
        TR_HINT_SLOTS
    ctypedef struct tr_hint_slot:
        pass


cdef class Hints:
    cdef tr_hint_slot *slots


cdef class Waiter:
    cdef Hints hints
    cdef tr_own_word own
    cdef uint32_t[127] numbers
    cdef uint32_t[127] seen
    cdef uint32_t count, near  # how many there are, and how many of them are not further ones

    cdef bint raised(self, double timeout_s, uint32_t count) except -1
    cdef int sleep(self, double timeout_s, uint32_t count) except -1
