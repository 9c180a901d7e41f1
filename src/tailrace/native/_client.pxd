# cython: language_level=3
"""What other modules of this room may know of a cell's clients: how to read with one without a call through Python."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "cell.h" nogil:
    ctypedef struct tr_slice:
        const uint8_t *at
        uint64_t count
    ctypedef struct tr_key_hash:
        uint64_t low, high
    ctypedef struct tr_version:
        uint64_t clock
        uint32_t client, sequence
    ctypedef struct tr_cell_head:
        uint64_t instance, config_id

cdef extern from "cell_view.h" nogil:
    ctypedef struct tr_view_stats:
        uint64_t torn, remaps
    ctypedef struct tr_view:
        char *folder
        tr_cell_head head
        tr_view_stats stats

cdef extern from "cell_link.h" nogil:
    ctypedef struct tr_link:
        pass

cdef extern from "cell_watch.h" nogil:
    ctypedef struct tr_watch:
        pass

cdef extern from "cell_client.h" nogil:
    ctypedef enum tr_key_state:
        TR_KEY_TAKE
        TR_KEY_READY
        TR_KEY_HIT
        TR_KEY_ASK
        TR_KEY_INQUORATE
        TR_KEY_UNREACHABLE
    ctypedef struct tr_key:
        tr_key_hash hash
        tr_key_state state
    ctypedef struct tr_backend:
        tr_view *view
        tr_link *link
        uint32_t trouble
        int suspect
        double answer_ns
    ctypedef struct tr_client_stats:
        uint64_t hits, misses, asks, inquorate, unreachable, retries, hedges, scan_reads, two_step_reads
    ctypedef struct tr_client:
        uint32_t backends, copies, quorum, attempts_max, data_bytes_max
        uint64_t hedge_ns
        tr_backend *backend
        tr_client_stats stats
        tr_key *keys
        size_t keys_count
        int all_hit


ctypedef struct parts_run:
    tr_slice prefix
    uint32_t first, count
    const uint32_t *numbers  # of the parts, counted from the first; NULL: one after the other
    uint8_t *room
    uint64_t stride
    uint64_t last_bytes  # so much of the last part is needed, and all others whole; of `gather`


cdef inline parts_run run_of(bytes prefix, uint32_t first, uint32_t count, uint8_t *room, uint64_t stride,
                             uint64_t last_bytes):
    """Of the keys `prefix` + first, first + 1 … (4 bytes, little-endian), each value `stride` bytes behind the one before
    in the room. The prefix must outlive it."""
    cdef parts_run run
    run.prefix.at, run.prefix.count = <const uint8_t *> PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix)
    run.first, run.count, run.numbers, run.room, run.stride, run.last_bytes = first, count, NULL, room, stride, last_bytes
    return run


cdef class CellClient:
    cdef tr_client client
    cdef bint busy, recording
    cdef readonly list asks, unreachable
    cdef readonly bint troubled
    cdef tr_key_hash *touched
    cdef uint32_t touched_count

    cdef int check(self, uint32_t backend) except -1
    cdef int begin(self) except -1
    cdef int note_rest(self) except -1
    cdef int decide(self, uint32_t now_s, bint relaxed, uint64_t deadline_ns) except -1
    cdef size_t bring(self, uint64_t total_bytes) noexcept
    cdef int read_parts(self, const parts_run *runs, uint32_t runs_count, bint relaxed, uint64_t deadline_ns,
                        int64_t *sizes) except -1
    cdef int64_t fetch(self, bytes key, uint8_t *room, uint64_t room_bytes, uint64_t deadline_ns) except -2
    cdef int64_t gather(self, const parts_run *runs, uint32_t runs_count, uint64_t deadline_ns) except -2


cdef class Watcher:
    cdef tr_watch *watch
    cdef bint busy

    cdef int sleep(self, double timeout_s) except -1
