# cython: language_level=3
"""What other modules of this room may know of the core's: how a block lies in memory."""
cimport cython
from libc.stdint cimport uint8_t


@cython.no_gc
@cython.final
cdef class Block:
    cdef uint8_t *memory
    cdef size_t capacity, skip
    cdef readonly Py_ssize_t size
    cdef readonly object owner
    cdef bint is_lent
