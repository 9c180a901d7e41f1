# cython: language_level=3
"""What is given by one module of this room and made ready by another: see notice.h."""

cdef extern from "notice.h" nogil:
    const char *TR_NOTICE_CAPSULE
    ctypedef struct tr_notice:
        void (*give)(void *whose) noexcept nogil
        void *whose
