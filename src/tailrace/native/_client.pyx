# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of a cell's clients: `CellClient` reads from all backends of a cell, `pack` makes their mutations.

What decides is in cell_client.c. A CellClient lets go of the interpreter's lock while it looks, waits and copies; it
belongs to one thread at a time and says so when two come at once.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strdup
from libc.time cimport time
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from tailrace.native._core cimport Block

import errno
import os
from enum import IntEnum

cdef extern from "cell.h" nogil:
    enum:
        TR_WHY_BYTES
    ctypedef struct tr_index_entry:
        tr_version version
    tr_key_hash tr_key_hash_of(tr_slice key)
    void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask)

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef extern from "cell_place.h" nogil:
    enum:
        TR_COPIES_MAX
    uint32_t tr_home_of(tr_key_hash hash, uint32_t backends)

cdef extern from "cell_mutation.h" nogil:
    enum:
        TR_FRAME_MAGIC
        TR_FRAME_LAYOUT
        TR_FRAME_HEADER_BYTES
        TR_FRAME_COUNT_MAX
        TR_MUTATION_SET
        TR_MUTATION_CAS
        TR_MUTATION_ERASE
    ctypedef struct tr_frame_header:
        uint32_t magic, layout
        uint64_t count
    ctypedef struct tr_mutation_header:
        uint32_t kind, key_bytes, value_bytes, expiry_s
        tr_version version, expected
    uint64_t tr_mutation_bytes(uint64_t key_bytes, uint64_t value_bytes)
    uint8_t *tr_mutation_write(uint8_t *to, const tr_mutation_header *header, const void *key, const void *value)

cdef extern from "cell_probe.h" nogil:
    ctypedef struct tr_probe:
        tr_index_entry entry
        uint32_t value_bytes

cdef extern from "cell_view.h" nogil:
    int tr_view_map(tr_view *view, char *why)
    void tr_view_unmap(tr_view *view)

cdef extern from "cell_link.h" nogil:
    int tr_link_open(tr_link **link, const char *host, uint16_t port, const uint8_t *ticket, uint64_t deadline_ms,
                     char *why)
    void tr_link_close(tr_link *link)
    const tr_cell_head *tr_link_head(const tr_link *link)

cdef extern from "cell_client.h" nogil:
    int tr_client_open(tr_client *client, uint32_t backends, uint32_t copies, uint32_t quorum)
    void tr_client_close(tr_client *client)
    void tr_client_attach(tr_client *client, uint32_t backend, tr_view *view, tr_link *link, uint64_t config_id)
    int tr_client_prepare(tr_client *client, const tr_slice *keys, size_t count)
    void tr_client_offer(tr_client *client, size_t key, uint8_t *place, uint32_t bytes)
    size_t tr_client_glance(tr_client *client, uint32_t now_s, int relaxed)
    void tr_client_look(tr_client *client, uint32_t now_s, int relaxed, uint64_t deadline_ns)
    tr_probe *tr_client_chosen(const tr_client *client, size_t key)
    void tr_client_place(tr_client *client, size_t key, uint8_t *place)
    void tr_client_leave(tr_client *client, size_t key)
    size_t tr_client_take(tr_client *client)
    void tr_client_finish(tr_client *client)
    int _LINK "TR_TROUBLE_LINK"
    int _VIEW "TR_TROUBLE_VIEW"
    int _CONFIG "TR_TROUBLE_CONFIG"

cdef extern from "cell_frame.h" nogil:
    ctypedef struct tr_welcome:
        uint64_t instance, config_id

cdef extern from "cell_link.h" nogil:
    int tr_link_connect(int *connected, tr_welcome *told, const char *host, uint16_t port, const uint8_t *ticket,
                        uint64_t deadline_ms, char *why)

cdef extern from "cell_watch.h" nogil:
    enum:
        TR_WATCH_NEWS
        TR_WATCH_INTERRUPTED
        TR_WATCH_BROKEN
    int tr_watch_open(tr_watch **opened, const tr_slice *keys, const uint32_t *places, uint32_t count,
                      uint64_t skip_begin, uint64_t skip_end)
    void tr_watch_close(tr_watch *watch)
    int tr_watch_attach(tr_watch *watch, uint32_t backend, tr_link *link)
    int tr_watch_wait(tr_watch *watch, uint64_t timeout_ns)
    const uint8_t *tr_watch_value(const tr_watch *watch, uint32_t i, uint64_t *bytes)
    void tr_watch_stop(tr_watch *watch)

cdef extern from "cell_courier.h" nogil:
    ctypedef enum tr_parcel_state:
        TR_PARCEL_TAKEN, TR_PARCEL_WRONG, TR_PARCEL_SHUT, TR_PARCEL_MOVED, TR_PARCEL_UNSENT, TR_PARCEL_UNKNOWN
    ctypedef struct tr_parcel:
        uint32_t backend
        tr_parcel_state state
        tr_slice frame
        uint8_t *outcomes
        uint64_t outcomes_room, outcomes_count
        tr_version floor
    ctypedef struct tr_courier:
        int socket
    void tr_courier_attach(tr_courier *courier, int socket, const tr_welcome *told)
    void tr_courier_detach(tr_courier *courier)
    void tr_couriers_deliver(tr_courier *couriers, uint32_t backends, tr_parcel *parcels, size_t count, uint32_t spare,
                             uint64_t deadline_ns)


class Delivery(IntEnum):
    """What is known of a frame that was sent. Only TAKEN has outcomes; only of UNKNOWN nobody knows if it was taken."""
    TAKEN = TR_PARCEL_TAKEN
    WRONG = TR_PARCEL_WRONG
    SHUT = TR_PARCEL_SHUT
    MOVED = TR_PARCEL_MOVED
    UNSENT = TR_PARCEL_UNSENT
    UNKNOWN = TR_PARCEL_UNKNOWN


cdef dict _DELIVERIES = {int(one): one for one in Delivery}

TROUBLE_LINK, TROUBLE_VIEW, TROUBLE_CONFIG = _LINK, _VIEW, _CONFIG
KIND_SET, KIND_CAS, KIND_ERASE = TR_MUTATION_SET, TR_MUTATION_CAS, TR_MUTATION_ERASE
TICKET_BYTES = 32
cdef enum:
    _FEW = 64  # keys that are looked up while holding the interpreter's lock, if they are in memory
    _LITTLE = 16 << 10  # bytes that are copied while holding it
    _TOUCHES = 8192  # access records kept until they are sent; more are dropped, they are hints


def _weaken_hash(uint64_t low_mask=0xFFFFFFFFFFFFFFFF, uint64_t high_mask=0xFFFFFFFFFFFFFFFF):
    """Only for tests: keep these bits of every hash of this module. Without arguments, all of them again."""
    tr_key_hash_weaken(low_mask, high_mask)


cdef _refuse(int error, const char *why, what):
    text = why.decode("utf-8", "replace")
    if error == errno.EINVAL:
        raise ValueError(text)
    raise OSError(error, f"{text}: {os.strerror(error)}", what)


cdef inline tuple _as_tuple(tr_version version):
    return version.clock, version.client, version.sequence


cdef uint64_t _after(double seconds) noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec + <uint64_t> (max(seconds, 0.0) * 1e9)


def replicas_of(bytes key not None, uint32_t backends, uint32_t copies):
    """The backends that have a key, its home first."""
    cdef tr_slice slice
    if not 1 <= copies <= backends:
        raise ValueError(f"copies={copies} of {backends} backends; use 1 to {backends}")
    slice.at, slice.count = <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    cdef uint32_t home = tr_home_of(tr_key_hash_of(slice), backends)
    return [(home + copy) % backends for copy in range(copies)]


cdef inline uint32_t _number(const parts_run *run, uint32_t i) noexcept:
    return i if run.numbers == NULL else run.numbers[i]


cdef inline uint8_t *_place(const parts_run *run, uint32_t i) noexcept:
    return run.room + _number(run, i) * run.stride


cdef bint _are_apart(const parts_run *run) noexcept:
    """Whether no two of its parts have the same place."""
    cdef uint32_t i
    for i in range(1, run.count):
        if _number(run, i) <= _number(run, i - 1):
            return False
    return True


cdef class CellClient:
    """Reads from the backends of one cell, `copies` of each key, of which `quorum` must agree.

    `asks` has the places, in the last call's keys, of those that only the backends themselves can answer (overflowed
    buckets), `unreachable` of those that too few backends answered in time. `troubles()` tells which backends have to
    be attached anew.
    """

    def __cinit__(self, uint32_t backends, uint32_t copies, uint32_t quorum, *, uint32_t attempts_max=32,
                  uint32_t data_bytes_max=16384, double hedge_s=0.03, bint recording=False):
        if not (1 <= backends <= 65536 and 1 <= copies <= min(backends, <uint32_t> TR_COPIES_MAX)
                and 1 <= quorum <= copies):
            raise ValueError(f"backends={backends}, copies={copies}, quorum={quorum}; a cell has 1 to 65536 backends, "
                             f"at most {TR_COPIES_MAX} copies, no more than backends, and a quorum among them")
        if tr_client_open(&self.client, backends, copies, quorum):
            raise MemoryError(f"no memory for {backends} backends")
        self.client.attempts_max, self.client.data_bytes_max = min(max(attempts_max, 1), 255), data_bytes_max
        self.client.hedge_ns = <uint64_t> (hedge_s * 1e9)
        self.asks, self.unreachable = [], []
        self.recording = recording
        if recording:
            self.touched = <tr_key_hash *> malloc(_TOUCHES * sizeof(tr_key_hash))
            if self.touched == NULL:
                raise MemoryError("no memory for access records")

    def __dealloc__(self):
        tr_client_close(&self.client)
        free(self.touched)

    cdef int check(self, uint32_t backend) except -1:
        if backend >= self.client.backends:
            raise ValueError(f"backend {backend}; there are 0 to {self.client.backends - 1}")
        return self.begin()

    cdef int begin(self) except -1:
        if self.busy:
            raise RuntimeError("this client is reading for another thread; use one for each")
        self.busy = True
        return 0

    def attach_view(self, uint32_t backend, folder, uint64_t config_id):
        """Read this backend's memory on this host. ValueError: no cell of ours, or another configuration."""
        cdef char[TR_WHY_BYTES] why
        cdef tr_view *view
        self.check(backend)
        try:
            view = <tr_view *> calloc(1, sizeof(tr_view))
            if view == NULL:
                raise MemoryError("no memory for a view")
            view.folder = strdup(os.fsencode(folder))
            error = errno.ENOMEM if view.folder == NULL else tr_view_map(view, why)
            if error or view.head.config_id != config_id:
                seen = view.head.config_id
                tr_view_unmap(view)
                free(view.folder)
                free(view)
                if error:
                    _refuse(error, why, os.fspath(folder))
                raise ValueError(f"the cell in {folder} has configuration {seen}, not {config_id}")
            tr_client_attach(&self.client, backend, view, NULL, config_id)
        finally:
            self.busy = False

    def attach_link(self, uint32_t backend, str host not None, uint16_t port, bytes ticket not None,
                    uint64_t config_id, double deadline_s):
        """Read this backend through its engine."""
        cdef char[TR_WHY_BYTES] why
        cdef tr_link *link = NULL
        cdef bytes name = host.encode()
        cdef const char *name_at = name
        cdef const uint8_t *ticket_at = <const uint8_t *> PyBytes_AS_STRING(ticket)
        cdef uint64_t deadline_ms = <uint64_t> (max(deadline_s, 0.0) * 1000) + 1
        cdef int error
        if len(ticket) != TICKET_BYTES:
            raise ValueError(f"a ticket of {len(ticket)} bytes; the backend gives {TICKET_BYTES}")
        self.check(backend)
        try:
            with nogil:
                error = tr_link_open(&link, name_at, port, ticket_at, deadline_ms, why)
            if error:
                _refuse(error, why, f"{host}:{port}")
            if tr_link_head(link).config_id != config_id:
                seen = tr_link_head(link).config_id
                tr_link_close(link)
                raise ValueError(f"the cell at {host}:{port} has configuration {seen}, not {config_id}")
            tr_client_attach(&self.client, backend, NULL, link, config_id)
        finally:
            self.busy = False

    def detach(self, uint32_t backend):
        """There is no way to this backend for now."""
        self.check(backend)
        tr_client_attach(&self.client, backend, NULL, NULL, 0)
        self.busy = False

    def suspect(self, uint32_t backend, bint dead):
        """Whether a backend is said to be dead: its memory is still there, but it is asked last."""
        self.check(backend)
        self.client.backend[backend].suspect = dead
        self.busy = False

    def ways(self):
        """'memory', 'engine' or None, for each backend."""
        return ["memory" if self.client.backend[i].view != NULL else
                "engine" if self.client.backend[i].link != NULL else None for i in range(self.client.backends)]

    def instance_of(self, uint32_t backend):
        """Which instance is read there, or None."""
        if backend >= self.client.backends:
            raise ValueError(f"backend {backend}; there are 0 to {self.client.backends - 1}")
        if self.client.backend[backend].view != NULL:
            return self.client.backend[backend].view.head.instance
        if self.client.backend[backend].link != NULL:
            return tr_link_head(self.client.backend[backend].link).instance
        return None

    def troubles(self):
        """{backend: TROUBLE_… bits} since the last time this was asked."""
        cdef uint32_t i
        found = {}
        self.troubled = False
        for i in range(self.client.backends):
            if self.client.backend[i].trouble:
                found[i] = self.client.backend[i].trouble
                self.client.backend[i].trouble = 0
        return found

    cdef int note_rest(self) except -1:
        """Keys that this client alone cannot answer."""
        cdef size_t i
        if self.asks:
            self.asks = []
        if self.unreachable:
            self.unreachable = []
        for i in range(0 if self.client.all_hit and not self.recording else self.client.keys_count):
            if self.client.keys[i].state == TR_KEY_HIT:
                if self.recording and self.touched_count < _TOUCHES:
                    self.touched[self.touched_count] = self.client.keys[i].hash
                    self.touched_count += 1
            elif self.client.keys[i].state == TR_KEY_ASK:
                self.asks.append(i)
            elif self.client.keys[i].state == TR_KEY_UNREACHABLE:
                self.unreachable.append(i)
        for i in range(self.client.backends):
            if self.client.backend[i].trouble:
                self.troubled = True
        return 0

    def touches(self):
        """{backend: hashes} of the keys that were read since the last time, 16 bytes each, for those that have them."""
        cdef uint32_t i, copy, home
        cdef dict found = {}
        cdef bytes hash_bytes
        self.begin()
        try:
            for i in range(self.touched_count):
                hash_bytes = PyBytes_FromStringAndSize(<const char *> &self.touched[i], sizeof(tr_key_hash))
                home = tr_home_of(self.touched[i], self.client.backends)
                for copy in range(self.client.copies):
                    found.setdefault((home + copy) % self.client.backends, []).append(hash_bytes)
            self.touched_count = 0
        finally:
            self.busy = False
        return {backend: b"".join(hashes) for backend, hashes in found.items()}

    cdef int decide(self, uint32_t now_s, bint relaxed, uint64_t deadline_ns) except -1:
        """Decide every open key. The interpreter's lock is kept for what is over before it could be let go."""
        if not now_s:
            now_s = <uint32_t> time(NULL)
        if self.client.keys_count <= _FEW and tr_client_glance(&self.client, now_s, relaxed) == 0:
            return 0
        with nogil:
            tr_client_look(&self.client, now_s, relaxed, deadline_ns)
        return 0

    cdef size_t bring(self, uint64_t total_bytes) noexcept:
        """Values to their places; how many keys are open again."""
        cdef size_t left
        if total_bytes <= _LITTLE:
            return tr_client_take(&self.client)
        with nogil:
            left = tr_client_take(&self.client)
        return left

    def get(self, bytes key not None, uint32_t now_s=0, bint relaxed=False, double deadline_s=1.0):
        """The value or None. `now_s`, here and below: when it is, for what expires; 0: by the system's clock."""
        cdef tr_slice slice
        cdef uint64_t deadline_ns = _after(deadline_s)
        cdef bytes value = None
        cdef uint32_t size = 0
        slice.at, slice.count = <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        self.begin()
        try:
            if tr_client_prepare(&self.client, &slice, 1):
                raise MemoryError("no memory for a key")
            while True:
                self.decide(now_s, relaxed, deadline_ns)
                if self.client.keys[0].state == TR_KEY_TAKE or self.client.keys[0].state == TR_KEY_READY:
                    size = tr_client_chosen(&self.client, 0).value_bytes
                    value = PyBytes_FromStringAndSize(NULL, size)
                    tr_client_place(&self.client, 0, <uint8_t *> PyBytes_AS_STRING(value))
                if self.bring(size) == 0:
                    break
            self.note_rest()
            return value if self.client.keys[0].state == TR_KEY_HIT else None
        finally:
            tr_client_finish(&self.client)
            self.busy = False

    def get_many(self, list keys not None, uint32_t now_s=0, *, bint relaxed=False, double deadline_s=1.0,
                 bint versions=False):
        """A value, or (value, version), or None, for each key (bytes)."""
        cdef tuple kept = tuple(keys)  # the list is the caller's: keep its keys alive while we read without the lock
        cdef Py_ssize_t count = len(kept), i
        cdef tr_slice *slices = <tr_slice *> malloc((count + 1) * sizeof(tr_slice))
        cdef list values = [None] * count
        cdef uint64_t deadline_ns = _after(deadline_s), total
        cdef bytes value
        cdef object key
        cdef tr_probe *probe
        cdef int failed
        if slices == NULL:
            raise MemoryError(f"no memory for {count} keys")
        try:
            for i in range(count):
                key = kept[i]
                if not PyBytes_CheckExact(key):
                    key = <bytes?> key
                slices[i].at = <const uint8_t *> PyBytes_AS_STRING(key)
                slices[i].count = PyBytes_GET_SIZE(key)
            self.begin()
        except BaseException:
            free(slices)
            raise
        try:
            if tr_client_prepare(&self.client, slices, count):
                raise MemoryError(f"no memory for {count} keys")
            while True:
                total = 0
                self.decide(now_s, relaxed, deadline_ns)
                for i in range(count):
                    if self.client.keys[i].state == TR_KEY_TAKE or self.client.keys[i].state == TR_KEY_READY:
                        probe = tr_client_chosen(&self.client, i)
                        total += probe.value_bytes
                        value = PyBytes_FromStringAndSize(NULL, probe.value_bytes)
                        tr_client_place(&self.client, i, <uint8_t *> PyBytes_AS_STRING(value))
                        values[i] = value
                if not self.bring(total):
                    break
            for i in range(0 if self.client.all_hit and not versions else count):
                if self.client.keys[i].state != TR_KEY_HIT:
                    values[i] = None
                elif versions:
                    probe = tr_client_chosen(&self.client, i)
                    values[i] = (values[i], _as_tuple(probe.entry.version))
            self.note_rest()
        finally:
            tr_client_finish(&self.client)
            free(slices)
            self.busy = False
        return values

    cdef int read_parts(self, const parts_run *runs, uint32_t runs_count, bint relaxed, uint64_t deadline_ns,
                        int64_t *sizes) except -1:
        """The values of all parts of these runs, to their places. `sizes`, one for each part, run after run: -1 for what is
        not there or does not fit."""
        cdef uint64_t names_bytes = 0, total
        cdef uint32_t i, r, at, size, number, count = 0
        cdef uint8_t *names
        cdef uint8_t *name
        cdef const parts_run *run
        cdef const parts_run *last = &runs[runs_count - 1]
        cdef tr_slice *slices
        for r in range(runs_count):
            run = &runs[r]
            count += run.count
            names_bytes += run.count * (run.prefix.count + 4)
        self.begin()
        names = name = <uint8_t *> malloc(names_bytes + 1)
        slices = <tr_slice *> malloc((count + 1) * sizeof(tr_slice))
        try:
            if names == NULL or slices == NULL:
                raise MemoryError(f"no memory for {count} keys")
            at = 0
            for r in range(runs_count):
                run = &runs[r]
                for i in range(run.count):
                    number = run.first + _number(run, i)
                    memcpy(name, run.prefix.at, run.prefix.count)
                    memcpy(name + run.prefix.count, &number, 4)
                    slices[at + i].at, slices[at + i].count = name, run.prefix.count + 4
                    name += run.prefix.count + 4
                at += run.count
            if tr_client_prepare(&self.client, slices, count):
                raise MemoryError(f"no memory for {count} keys")
            # A client has one size of room for what may be received at once: the last run is the one with the most.
            for i in range(last.count if _are_apart(last) else 0):
                tr_client_offer(&self.client, count - last.count + i, _place(last, i),
                                <uint32_t> min(last.stride, <uint64_t> 0xFFFFFFFF))
            while True:
                self.decide(0, relaxed, deadline_ns)
                at = total = 0
                for r in range(runs_count):
                    run = &runs[r]
                    for i in range(at, at + run.count):
                        if self.client.keys[i].state != TR_KEY_TAKE and self.client.keys[i].state != TR_KEY_READY:
                            continue
                        size = tr_client_chosen(&self.client, i).value_bytes
                        if size > run.stride:
                            tr_client_leave(&self.client, i)
                            continue
                        total += size
                        tr_client_place(&self.client, i, _place(run, i - at))
                    at += run.count
                if not self.bring(total):
                    break
            for i in range(count):
                sizes[i] = tr_client_chosen(&self.client, i).value_bytes \
                    if self.client.keys[i].state == TR_KEY_HIT else -1
            self.note_rest()
            return 0
        finally:
            tr_client_finish(&self.client)
            free(names)
            free(slices)
            self.busy = False

    def get_parts(self, bytes prefix not None, uint32_t first, uint32_t count, buffer, uint64_t stride, *,
                  bint relaxed=False, double deadline_s=1.0, list only=None):
        """The values of the keys `prefix` + first, first + 1 … (4 bytes, little-endian), each `stride` bytes behind the
        one before in the buffer: a list of their sizes, -1 for those that are not there or do not fit. `only`: of these
        of them, counted from 0; the others have -1."""
        cdef Py_buffer room
        cdef parts_run run
        cdef uint64_t deadline_ns = _after(deadline_s)
        cdef uint32_t asked = count if only is None else len(only), i
        cdef list sizes = [-1] * count
        cdef int64_t *found = <int64_t *> malloc((asked + 1) * sizeof(int64_t))
        cdef uint32_t *numbers = <uint32_t *> malloc((asked + 1) * sizeof(uint32_t))
        try:
            if found == NULL or numbers == NULL:
                raise MemoryError(f"no memory for {asked} parts")
            for i in range(asked):
                numbers[i] = i if only is None else only[i]
                if numbers[i] >= count:
                    raise ValueError(f"part {numbers[i]} of {count}")
            PyObject_GetBuffer(buffer, &room, PyBUF_WRITABLE)
            try:
                if <uint64_t> room.len < <uint64_t> count * stride:
                    raise ValueError(f"{count} parts of {stride} bytes into {room.len}")
                run = run_of(prefix, first, asked, <uint8_t *> room.buf, stride, 0)
                run.numbers = numbers
                self.read_parts(&run, 1, relaxed, deadline_ns, found)
            finally:
                PyBuffer_Release(&room)
            for i in range(asked):
                sizes[numbers[i]] = found[i]
            return sizes
        finally:
            free(found)
            free(numbers)

    def get_into(self, bytes key not None, buffer, uint32_t now_s=0, *, bint relaxed=False, double deadline_s=1.0):
        """The value's size, once it lies at the buffer's start; or None, with the buffer in any state."""
        cdef tr_slice slice
        cdef Py_buffer room
        cdef uint32_t size
        cdef uint64_t deadline_ns = _after(deadline_s)
        slice.at, slice.count = <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        self.begin()
        try:
            PyObject_GetBuffer(buffer, &room, PyBUF_WRITABLE)
            try:
                if tr_client_prepare(&self.client, &slice, 1):
                    raise MemoryError("no memory for a key")
                while True:
                    self.decide(now_s, relaxed, deadline_ns)
                    if self.client.keys[0].state == TR_KEY_TAKE or self.client.keys[0].state == TR_KEY_READY:
                        size = tr_client_chosen(&self.client, 0).value_bytes
                        if <Py_ssize_t> size > room.len:
                            raise ValueError(f"a value of {size} bytes into {room.len}")
                        tr_client_place(&self.client, 0, <uint8_t *> room.buf)
                    if not self.bring(room.len):
                        break
            finally:
                PyBuffer_Release(&room)
            self.note_rest()
            return tr_client_chosen(&self.client, 0).value_bytes if self.client.keys[0].state == TR_KEY_HIT else None
        finally:
            tr_client_finish(&self.client)
            self.busy = False

    cdef int64_t fetch(self, bytes key, uint8_t *room, uint64_t room_bytes, uint64_t deadline_ns) except -2:
        """The size of a value that a quorum agrees on, once it lies there; -1: there is none, or none that fits."""
        cdef tr_slice slice
        cdef uint32_t size = 0
        slice.at, slice.count = <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        self.begin()
        try:
            if tr_client_prepare(&self.client, &slice, 1):
                raise MemoryError("no memory for a key")
            while True:
                self.decide(0, False, deadline_ns)
                if self.client.keys[0].state == TR_KEY_TAKE or self.client.keys[0].state == TR_KEY_READY:
                    size = tr_client_chosen(&self.client, 0).value_bytes
                    if size > room_bytes:
                        tr_client_leave(&self.client, 0)
                    else:
                        tr_client_place(&self.client, 0, room)
                if not self.bring(size):
                    break
            self.note_rest()
            return size if self.client.keys[0].state == TR_KEY_HIT else -1
        finally:
            tr_client_finish(&self.client)
            self.busy = False

    cdef int64_t gather(self, const parts_run *runs, uint32_t runs_count, uint64_t deadline_ns) except -2:
        """How much of the very last of these parts the first replica that answers has, if it has all that the runs need;
        else -1."""
        cdef uint32_t i, run, count = 0
        cdef int64_t last_bytes = -1
        cdef int64_t *sizes
        cdef int64_t *size
        for run in range(runs_count):
            count += runs[run].count
        sizes = size = <int64_t *> malloc((count + 1) * sizeof(int64_t))
        try:
            if sizes == NULL:
                raise MemoryError(f"no memory for {count} parts")
            self.read_parts(runs, runs_count, True, deadline_ns, sizes)
            for run in range(runs_count):
                for i in range(runs[run].count):
                    if size[i] < <int64_t> (runs[run].stride if i + 1 < runs[run].count else runs[run].last_bytes):
                        return -1
                    last_bytes = size[i]
                size += runs[run].count
            return last_bytes
        finally:
            free(sizes)

    def stats(self):
        cdef uint32_t i
        cdef uint64_t torn = 0, remaps = 0
        cdef tr_client_stats stats = self.client.stats
        for i in range(self.client.backends):
            if self.client.backend[i].view != NULL:
                torn += self.client.backend[i].view.stats.torn
                remaps += self.client.backend[i].view.stats.remaps
        return {"hits": stats.hits, "misses": stats.misses, "asks": stats.asks, "inquorate": stats.inquorate,
                "unreachable": stats.unreachable, "retries": stats.retries, "hedges": stats.hedges,
                "scan_reads": stats.scan_reads, "two_step_reads": stats.two_step_reads, "torn": torn, "remaps": remaps}


cdef class Watcher:
    """Sleeps until one of these keys has another value, as the engine of the backend at its place tells. Bytes of values
    from `skip[0]` to `skip[1]` do not count. Belongs to one thread at a time, but for `stop`."""

    def __cinit__(self, list keys not None, list places not None, skip=(0, 0)):
        cdef Py_ssize_t count = len(keys), i
        cdef int error = 0
        cdef uint64_t skip_begin = skip[0], skip_end = skip[1]
        cdef tr_slice *slices = <tr_slice *> malloc((count + 1) * sizeof(tr_slice))
        cdef uint32_t *where = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
        try:
            if slices == NULL or where == NULL:
                raise MemoryError(f"no memory for {count} keys")
            if not count or len(places) != count or skip_begin > skip_end:
                raise ValueError(f"{count} keys at {len(places)} places, without bytes {skip_begin} to {skip_end}")
            for i in range(count):
                one = <bytes?> keys[i]
                slices[i].at, slices[i].count = <const uint8_t *> PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)
                where[i] = places[i]
            error = tr_watch_open(&self.watch, slices, where, count, skip_begin, skip_end)
            if error:
                raise OSError(error, f"a watch of {count} keys: {os.strerror(error)}")
        finally:
            free(slices)
            free(where)

    def __dealloc__(self):
        if self.watch != NULL:
            tr_watch_close(self.watch)

    def attach(self, uint32_t backend, str host not None, uint16_t port, bytes ticket not None, double deadline_s):
        """Connect to the engine of a backend that has keys. Once for each, before the first wait."""
        cdef char[TR_WHY_BYTES] why
        cdef bytes name = host.encode()
        cdef const char *name_at = name
        cdef const uint8_t *ticket_at = <const uint8_t *> PyBytes_AS_STRING(ticket)
        cdef uint64_t deadline_ms = <uint64_t> (max(deadline_s, 0.0) * 1000) + 1
        cdef tr_link *link = NULL
        cdef int error
        if len(ticket) != TICKET_BYTES:
            raise ValueError(f"a ticket of {len(ticket)} bytes; the backend gives {TICKET_BYTES}")
        with nogil:
            error = tr_link_open(&link, name_at, port, ticket_at, deadline_ms, why)
        if error:
            _refuse(error, why, f"{host}:{port}")
        if tr_watch_attach(self.watch, backend, link):
            raise ValueError(f"backend {backend}: no key of this watch is there")

    def wait(self, double timeout_s):
        """Whether there was news; False after the time, after a signal, and once stopped. The first answer counts as
        news. ConnectionError: there will be none here any more."""
        cdef int state = self.sleep(timeout_s)
        if state == TR_WATCH_BROKEN:
            raise ConnectionError("the engine is gone, or its cell has changed hands; watch anew")
        return state == TR_WATCH_NEWS

    cdef int sleep(self, double timeout_s) except -1:
        cdef int state
        cdef uint64_t timeout_ns = <uint64_t> (min(max(timeout_s, 0.0), 1e6) * 1e9)
        if self.busy:
            raise RuntimeError("another thread waits here; use a watch for each")
        self.busy = True
        try:
            with nogil:
                state = tr_watch_wait(self.watch, timeout_ns)
        finally:
            self.busy = False
        return state

    def value(self, uint32_t number):
        """What this key had when there was last news, by one backend's word; None: nothing that is known."""
        cdef uint64_t count = 0
        cdef const uint8_t *at
        if self.busy:
            raise RuntimeError("another thread waits here")
        at = tr_watch_value(self.watch, number, &count)
        return None if at == NULL else PyBytes_FromStringAndSize(<const char *> at, count)

    def stop(self):
        """Whoever waits returns, and nobody waits any more."""
        tr_watch_stop(self.watch)


cdef class Couriers:
    """Brings frames of mutations to the engines of a cell's backends. Belongs to one thread at a time."""
    cdef tr_courier *couriers
    cdef uint32_t backends
    cdef bint busy

    def __cinit__(self, uint32_t backends):
        cdef uint32_t i
        self.couriers = <tr_courier *> calloc(max(backends, 1), sizeof(tr_courier))
        if self.couriers == NULL:
            raise MemoryError(f"no memory for {backends} couriers")
        self.backends = backends
        for i in range(backends):
            self.couriers[i].socket = -1

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.backends):
            tr_courier_detach(&self.couriers[i])
        free(self.couriers)

    cdef int check(self, uint32_t backend) except -1:
        if backend >= self.backends:
            raise ValueError(f"backend {backend}; there are 0 to {<int> self.backends - 1}")
        return self.begin()

    cdef int begin(self) except -1:
        if self.busy:
            raise RuntimeError("these couriers are out for another thread; use some for each")
        self.busy = True
        return 0

    def attach(self, uint32_t backend, str host not None, uint16_t port, bytes ticket not None, uint64_t instance,
               double deadline_s):
        """Connect to a backend's engine. ValueError: another instance is there."""
        cdef char[TR_WHY_BYTES] why
        cdef tr_welcome told
        cdef bytes name = host.encode()
        cdef const char *name_at = name
        cdef const uint8_t *ticket_at = <const uint8_t *> PyBytes_AS_STRING(ticket)
        cdef uint64_t deadline_ms = <uint64_t> (max(deadline_s, 0.0) * 1000) + 1
        cdef int error, connected = -1
        if len(ticket) != TICKET_BYTES:
            raise ValueError(f"a ticket of {len(ticket)} bytes; the backend gives {TICKET_BYTES}")
        self.check(backend)
        try:
            with nogil:
                error = tr_link_connect(&connected, &told, name_at, port, ticket_at, deadline_ms, why)
            if error:
                _refuse(error, why, f"{host}:{port}")
            tr_courier_attach(&self.couriers[backend], connected, &told)
            if told.instance != instance:
                tr_courier_detach(&self.couriers[backend])
                raise ValueError(f"the engine at {host}:{port} has instance {told.instance:x}, not {instance:x}")
        finally:
            self.busy = False

    def detach(self, uint32_t backend):
        self.check(backend)
        tr_courier_detach(&self.couriers[backend])
        self.busy = False

    def attached(self, uint32_t backend):
        """Whether there is a connection; it may turn out to be broken."""
        return backend < self.backends and self.couriers[backend].socket >= 0

    def deliver(self, frames not None, double deadline_s, uint32_t spare=0):
        """[(Delivery, outcomes, floor)] for [(backend, frame, numbers of its keys)], as `pack` makes them. The last
        `spare` backends are not waited for until the deadline, but a little longer than the others took."""
        cdef size_t i, count = len(frames)
        cdef tr_parcel *parcels
        cdef list outcomes = [], result = []
        cdef list kept = []
        cdef bytes room
        cdef uint64_t deadline_ns = _after(deadline_s)
        self.begin()
        parcels = <tr_parcel *> calloc(count + 1, sizeof(tr_parcel))
        try:
            if parcels == NULL:
                raise MemoryError(f"no memory for {count} frames")
            for i in range(count):
                backend, frame, numbers = frames[i]
                room = PyBytes_FromStringAndSize(NULL, max(len(numbers), 256))
                outcomes.append(room)
                parcels[i].backend = backend
                kept.append(frame)
                parcels[i].frame = _content_of(frame, kept)
                parcels[i].outcomes, parcels[i].outcomes_room = <uint8_t *> PyBytes_AS_STRING(room), len(room)
                parcels[i].outcomes_count = len(numbers)
            with nogil:
                tr_couriers_deliver(self.couriers, self.backends, parcels, count, spare, deadline_ns)
            for i in range(count):
                told = b""
                if parcels[i].state == TR_PARCEL_TAKEN or parcels[i].state == TR_PARCEL_WRONG:
                    told = (<bytes> outcomes[i])[:parcels[i].outcomes_count]
                result.append((_DELIVERIES[<int> parcels[i].state], told, _as_tuple(parcels[i].floor)))
            return result
        finally:
            free(parcels)
            self.busy = False


def pack(int kind, list keys not None, list values, version, list expected, uint32_t expiry_s, uint32_t backends,
         uint32_t copies, uint32_t first_copy=0, uint64_t frame_bytes_max=65536):
    """Frames for the backends that have these keys: [(backend, frame, the keys' numbers)]; without the first copies, of
    which a key's home is one, if some are to be left out.

    Key number i gets the version (clock, client, sequence + i). `values` is a list of bytes or of anything
    whose bytes lie in one piece, or None to erase; `expected` is a list of versions, for compare-and-set.
    """
    cdef Py_ssize_t count = len(keys), i
    cdef tr_slice key
    cdef uint32_t backend
    cdef uint32_t *homes
    cdef tr_slice *contents
    cdef list packed = [], kept = []
    if not 1 <= copies <= backends:
        raise ValueError(f"copies={copies} of {backends} backends; use 1 to {backends}")
    if values is not None and len(values) != count or expected is not None and len(expected) != count:
        raise ValueError(f"{count} keys, but another number of values or versions")
    if version[2] + count > 0xFFFFFFFF:
        raise ValueError(f"{count} keys do not fit behind sequence {version[2]}")
    homes = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    contents = <tr_slice *> calloc(count + 1, sizeof(tr_slice))
    try:
        if homes == NULL or contents == NULL:
            raise MemoryError(f"no memory for {count} keys")
        for i in range(count):
            one = <bytes?> keys[i]
            key.at, key.count = <const uint8_t *> PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)
            if values is not None:
                contents[i] = _content_of(values[i], kept)
            if key.count > 0x7FFFFFFF or contents[i].count > 0x7FFFFFFF:
                raise ValueError(f"key {i} or its value has more bytes than any entry")
            homes[i] = tr_home_of(tr_key_hash_of(key), backends)
        for backend in range(backends):
            _pack_for(packed, backend, kind, keys, contents, version, expected, expiry_s, homes, backends, copies,
                      first_copy, frame_bytes_max)
        return packed
    finally:
        free(homes)
        free(contents)


cdef tr_slice _content_of(value, list kept) except *:
    """Where a value's bytes lie. Whatever must live for that is kept."""
    cdef tr_slice slice
    cdef Py_buffer *room
    if PyBytes_CheckExact(value):
        slice.at, slice.count = <const uint8_t *> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        return slice
    view = memoryview(value)
    kept.append(view)
    room = PyMemoryView_GET_BUFFER(view)
    if not view.c_contiguous:
        raise ValueError("a value whose bytes do not lie in one piece; make bytes of it first")
    slice.at, slice.count = <const uint8_t *> room.buf, room.len
    return slice


cdef inline bint _has(uint32_t home, uint32_t backend, uint32_t backends, uint32_t copies, uint32_t first_copy) noexcept:
    cdef uint32_t copy = (backend + backends - home) % backends
    return first_copy <= copy < copies


cdef _pack_for(list packed, uint32_t backend, int kind, list keys, tr_slice *contents, version, list expected,
               uint32_t expiry_s, uint32_t *homes, uint32_t backends, uint32_t copies, uint32_t first_copy,
               uint64_t frame_bytes_max):
    """This backend's keys in as many frames as they need."""
    cdef Py_ssize_t count = len(keys), i = 0, end
    cdef uint64_t size, taken, more
    cdef uint32_t first_sequence = version[2]
    cdef tr_mutation_header header
    cdef tr_frame_header head
    cdef Block frame
    cdef uint8_t *at
    cdef bint all_of_them
    memset(&header, 0, sizeof(header))
    header.kind, header.expiry_s, header.version.clock, header.version.client = kind, expiry_s, version[0], version[1]
    while i < count:
        size, taken, end, all_of_them = TR_FRAME_HEADER_BYTES, 0, i, True
        while end < count:
            if _has(homes[end], backend, backends, copies, first_copy):
                more = tr_mutation_bytes(PyBytes_GET_SIZE(keys[end]), contents[end].count)
                if taken and (size + more > frame_bytes_max or taken == <uint64_t> TR_FRAME_COUNT_MAX):
                    break
                size += more
                taken += 1
            else:
                all_of_them = False
            end += 1
        if not taken:
            return
        frame = Block(size)
        at = frame.memory
        head.magic, head.layout, head.count = TR_FRAME_MAGIC, TR_FRAME_LAYOUT, taken
        memcpy(at, &head, sizeof(head))
        at += sizeof(head)
        numbers = range(i, end) if all_of_them else []
        while i < end:
            if _has(homes[i], backend, backends, copies, first_copy):
                header.key_bytes = <uint32_t> PyBytes_GET_SIZE(keys[i])
                header.value_bytes = <uint32_t> contents[i].count
                header.version.sequence = first_sequence + <uint32_t> i
                if expected is not None:
                    header.expected.clock, header.expected.client, header.expected.sequence = expected[i]
                at = tr_mutation_write(at, &header, PyBytes_AS_STRING(keys[i]), contents[i].at)
                if not all_of_them:
                    (<list> numbers).append(i)
            i += 1
        packed.append((backend, frame, numbers))
