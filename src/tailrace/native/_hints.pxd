# cython: language_level=3
"""What other modules of this room may know of hints: how to sleep on them without a call through Python."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "hints.h" nogil:
    enum:
        TR_HINT_SLOTS
    ctypedef struct tr_hint_slot:
        pass
    ctypedef struct tr_watched:
        uint32_t number, seen
    ctypedef struct tr_sleeper:
        uint64_t began_ns


cdef class Hints:
    cdef tr_hint_slot *slots


cdef class Waiter:
    cdef Hints hints
    cdef tr_sleeper sleeper
    cdef uint32_t count, near  # how many there are, and how many of them, the first ones, are not further ones
    cdef tr_watched[127] watched

    cdef bint raised(self, double timeout_s, uint32_t count) except -1
    cdef int sleep(self, double timeout_s, uint32_t count) except -1
