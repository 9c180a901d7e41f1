# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of a cell backend's memory: `Cell` writes it, `CellView` reads it. What decides is in the C files.

Callers of a Cell take turns by the cell's own lock, so that others may hold it without the interpreter's. While it is
held no Python object is made that could set off a collection of garbage, since that may call anything. A CellView lets
go of the interpreter's lock while it looks and copies; it belongs to one thread at a time and says so when two come at
once.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strdup

import errno
import os
from enum import IntEnum


cdef extern from "cell.h":
    enum: TR_HEAD_BYTES, TR_BUCKET_BYTES, TR_BUCKET_ENTRIES, TR_DATA_HEADER_BYTES, TR_SLAB_BYTES, TR_WHY_BYTES
    uint64_t TR_CELL_REVOKED, TR_RESERVE_BYTES_MAX
    ctypedef struct tr_key_hash:
        uint64_t low, high
    ctypedef struct tr_version:
        uint64_t clock
        uint32_t client, sequence
    ctypedef struct tr_slice:
        const uint8_t *at
        uint64_t count
    ctypedef struct tr_index_entry:
        tr_version version
    ctypedef struct tr_cell_head:
        uint64_t instance, config_id, generation, buckets, reserved, populated
    tr_key_hash tr_key_hash_of(tr_slice key) nogil
    void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask)

cdef extern from "cell_sum.h":
    void tr_sum_narrow(int narrower)

cdef extern from "cell_recency.h":
    ctypedef enum tr_policy:
        TR_LRM, TR_LRU, TR_ARC

cdef extern from "cell_tombs.h":
    ctypedef struct tr_gone:
        tr_key_hash hash
        tr_version version

cdef extern from "cell_store.h":
    ctypedef enum tr_outcome:
        TR_APPLIED, TR_STALE, TR_MISMATCH, TR_TOO_LARGE, TR_NO_ROOM, TR_AHEAD
    ctypedef struct tr_cell_config:
        uint64_t reserve_bytes, capacity_bytes, buckets, config_id
        uint32_t tombstones
        tr_policy policy
        int chaining
    ctypedef struct tr_cell_stats:
        uint64_t records, chained, used_bytes, populated_bytes, joined_bytes, index_bytes, heap_bytes
        uint64_t buckets, generation, growths, growths_failed, moved
        uint64_t evicted_capacity, evicted_associativity, expired, tombstones, touched
        tr_version summary
    ctypedef struct tr_item:
        tr_slice key, value
        tr_key_hash hash
        tr_version version
        uint32_t expiry_s
    ctypedef struct tr_cell:
        pass
    int tr_cell_open(tr_cell **opened, const char *folder, const tr_cell_config *config, char *why)
    void tr_cell_close(tr_cell *cell) nogil
    void tr_cell_free(tr_cell *cell) nogil
    int tr_cell_lock(tr_cell *cell) nogil
    int tr_cell_try_lock(tr_cell *cell) nogil
    void tr_cell_unlock(tr_cell *cell) nogil
    tr_outcome tr_cell_set(tr_cell *cell, tr_slice key, tr_slice value, tr_version version, uint32_t expiry_s,
                           uint32_t now_s, const tr_version *expected) nogil
    tr_outcome tr_cell_erase(tr_cell *cell, tr_slice key, tr_version version) nogil
    int tr_cell_get(tr_cell *cell, tr_slice key, uint32_t now_s, tr_item *item) nogil
    void tr_cell_touch(tr_cell *cell, tr_key_hash hash) nogil
    tr_version tr_cell_floor(const tr_cell *cell, tr_slice key) nogil
    uint64_t tr_cell_collect(tr_cell *cell, uint32_t now_s, uint64_t budget) nogil
    int tr_cell_join(tr_cell *cell) nogil
    void tr_cell_configure(tr_cell *cell, uint64_t config_id) nogil
    uint32_t tr_cell_records(const tr_cell *cell) nogil
    int tr_cell_item_at(const tr_cell *cell, uint32_t number, tr_item *item) nogil
    int tr_cell_item_of(const tr_cell *cell, tr_key_hash hash, tr_item *item) nogil
    tr_gone tr_cell_gone_at(const tr_cell *cell, uint32_t number) nogil
    tr_cell_stats tr_cell_look(const tr_cell *cell) nogil
    uint64_t tr_cell_instance(const tr_cell *cell) nogil
    void tr_cell_remove(tr_cell *cell) nogil
    void tr_cell_fence(tr_cell *cell, tr_version version) nogil

cdef extern from "cell_mutation.h" nogil:
    long long tr_frame_check(tr_slice frame, char *why)
    ctypedef int (*tr_apply)(void *taker, tr_slice frame, uint8_t *outcomes, uint64_t room, uint64_t *count,
                             tr_version *floor, char *why) noexcept
    ctypedef struct tr_bell:
        pass
    ctypedef int (*tr_hang)(void *taker, tr_bell bell) noexcept
    ctypedef void (*tr_take_down)(void *taker, const void *whose) noexcept
    ctypedef struct tr_mutator:
        tr_apply apply
        tr_hang hang
        tr_take_down take_down
        void *taker

cdef extern from "cell_apply.h" nogil:
    ctypedef struct tr_gate:
        uint64_t clock_error_us
    void tr_gate_open(tr_gate *gate, tr_cell *cell, uint64_t clock_error_us)
    void tr_gate_close(tr_gate *gate)
    void tr_gate_ring(tr_gate *gate)
    int tr_gate_hang(void *gate, tr_bell bell) noexcept
    void tr_gate_take_down(void *gate, const void *whose) noexcept
    int tr_gate_apply(void *gate, tr_slice frame, uint8_t *outcomes, uint64_t room, uint64_t *count, tr_version *floor,
                      char *why) noexcept
    void tr_frame_repair(tr_cell *cell, tr_slice frame, uint8_t *outcomes)
    void tr_frame_apply(tr_cell *cell, tr_slice frame, uint32_t now_s, uint64_t clock_max, uint8_t *outcomes,
                        tr_version *floor)

cdef extern from "cell_cohort.h" nogil:
    enum: TR_PARTITIONS
    ctypedef struct tr_buffer:
        uint8_t *at
        uint64_t count
    void tr_buffer_free(tr_buffer *buffer)
    int tr_cohort_digest(tr_cell *cell, uint32_t home, uint32_t backends, uint64_t *digests)
    int tr_cohort_list(tr_cell *cell, uint32_t home, uint32_t backends, uint64_t partitions, tr_buffer *list)
    int tr_cohort_fetch(tr_cell *cell, const tr_key_hash *hashes, uint64_t count, uint64_t bytes_max,
                        tr_buffer *frame, uint64_t *done)

cdef extern from "cell_view.h":
    ctypedef enum tr_probe_state:
        TR_PROBE_NEW, TR_PROBE_FOUND, TR_PROBE_HIT, TR_PROBE_MISS, TR_PROBE_ASK, TR_PROBE_UNSETTLED, TR_PROBE_REVOKED
        TR_PROBE_DOWN
    ctypedef struct tr_probe:
        tr_slice key
        tr_key_hash hash
        tr_index_entry entry
        uint32_t value_bytes
        tr_probe_state state
    ctypedef struct tr_view_stats:
        uint64_t hits, misses, torn, remaps, hints, unsettled
    ctypedef struct tr_view:
        char *folder
        tr_cell_head head
        tr_view_stats stats
    int tr_view_map(tr_view *view, char *why)
    void tr_view_unmap(tr_view *view)
    int tr_view_renew(tr_view *view, tr_probe *probes, size_t count, char *why)
    void tr_view_locate(tr_view *view, tr_probe *probes, size_t count, uint32_t now_s) nogil
    void tr_view_fetch(tr_view *view, tr_probe *probes, uint8_t **places, size_t count) nogil


SLAB_BYTES = TR_SLAB_BYTES
PARTITIONS = TR_PARTITIONS  # of the keys of one home, for digests and lists
# The layout's sizes, for a test that holds them against docs/formats/cells.md.
_LAYOUT = {"head": TR_HEAD_BYTES, "bucket": TR_BUCKET_BYTES, "entries": TR_BUCKET_ENTRIES,
           "data header": TR_DATA_HEADER_BYTES, "slab": TR_SLAB_BYTES}


class Outcome(IntEnum):
    """What became of a mutation. Only APPLIED changed anything."""
    APPLIED = TR_APPLIED
    STALE = TR_STALE
    MISMATCH = TR_MISMATCH
    TOO_LARGE = TR_TOO_LARGE
    NO_ROOM = TR_NO_ROOM
    AHEAD = TR_AHEAD


cdef tuple _OUTCOMES = tuple(Outcome)


cdef class _Bytes:
    """Any object's bytes, held for as long as this lives."""
    cdef Py_buffer view
    cdef tr_slice slice

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.slice.at = <const uint8_t *> self.view.buf
        self.slice.count = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef tr_version _version(object version) except *:
    cdef tr_version result
    result.clock, result.client, result.sequence = version
    return result


cdef inline tuple _as_tuple(tr_version version):
    return (version.clock, version.client, version.sequence)


cdef inline bytes _copied(tr_slice content):
    return PyBytes_FromStringAndSize(<const char *> content.at, content.count)


cdef bytes _hash_bytes(tr_key_hash hash):
    return PyBytes_FromStringAndSize(<const char *> &hash, sizeof(tr_key_hash))


cdef _refuse(int error, const char *why, folder):
    """What was tried, what was seen: a ValueError for something that is no cell, else the system's kind of error."""
    text = why.decode("utf-8", "replace")
    if error == errno.EINVAL:
        raise ValueError(text)
    raise OSError(error, f"{text}: {os.strerror(error)}", os.fspath(folder))


def key_hash(key):
    """The 16 bytes under which a key is indexed."""
    return _hash_bytes(tr_key_hash_of((<_Bytes> _Bytes(key)).slice))


def _weaken_hash(uint64_t low_mask=0xFFFFFFFFFFFFFFFF, uint64_t high_mask=0xFFFFFFFFFFFFFFFF):
    """Only for tests: keep these bits of every hash in this process. Without arguments, all of them again."""
    tr_key_hash_weaken(low_mask, high_mask)


def _sum_narrow(int narrower=0):
    """Only for tests: sum and copy without the widest instructions that there are, or without any wide ones (2). Without
    an argument, with all of them again."""
    tr_sum_narrow(narrower)


cdef enum:
    LISTED = 512  # records that are listed before others get their turn


cdef class Cell:
    """One backend's memory in a folder that is its own. Versions are (clock, client, sequence); expiry 0 means never.

    `capacity_bytes` bounds the memory of the data, which lies anywhere in `reserve_bytes` of addresses. `policy` says
    what goes first: "lrm", least recently modified; "lru", least recently used as far as `touch` and `get` tell; or
    "arc", which weighs what came once against what came again. Threads may share a Cell.
    """
    cdef tr_cell *cell
    cdef tr_gate gate
    cdef tr_mutator taken
    cdef readonly object folder

    def __cinit__(self, folder, uint64_t reserve_bytes, uint64_t capacity_bytes, uint64_t buckets, str policy="lrm",
                  uint64_t config_id=0, *, bint chaining=True, uint32_t tombstones=4096):
        cdef tr_cell_config config
        cdef char[TR_WHY_BYTES] why
        policies = {"lrm": TR_LRM, "lru": TR_LRU, "arc": TR_ARC}
        if policy not in policies:
            raise ValueError(f"policy {policy!r}; use 'lrm', 'lru' or 'arc'")
        if not SLAB_BYTES <= capacity_bytes <= reserve_bytes <= TR_RESERVE_BYTES_MAX:
            raise ValueError(f"capacity_bytes={capacity_bytes}, reserve_bytes={reserve_bytes}; a capacity of a slab "
                             f"({SLAB_BYTES}) or more fits within the reserve, and that within {TR_RESERVE_BYTES_MAX}")
        if not 1 <= buckets <= 1 << 32:
            raise ValueError(f"buckets={buckets}; use 1 to {1 << 32}")
        if config_id == TR_CELL_REVOKED:
            raise ValueError("config_id of all ones marks an index that is revoked; use any other")
        if tombstones > 1 << 24:
            raise ValueError(f"tombstones={tombstones}; use {1 << 24} or fewer")
        self.folder = folder
        config.reserve_bytes = (reserve_bytes + SLAB_BYTES - 1) // SLAB_BYTES * SLAB_BYTES
        config.capacity_bytes, config.buckets, config.config_id = capacity_bytes, buckets, config_id
        config.tombstones, config.policy, config.chaining = tombstones, <tr_policy> <int> policies[policy], chaining
        error = tr_cell_open(&self.cell, os.fsencode(folder), &config, why)
        if error:
            self.cell = NULL
            _refuse(error, why, folder)
        tr_gate_open(&self.gate, self.cell, 0)
        self.taken.apply, self.taken.hang, self.taken.take_down = tr_gate_apply, tr_gate_hang, tr_gate_take_down
        self.taken.taker = &self.gate

    def __dealloc__(self):
        if self.cell != NULL:
            tr_gate_close(&self.gate)
            tr_cell_free(self.cell)

    def close(self, *, bint remove=False):
        """Let go of the folder. Its files stay, and views go on with them until the next backend starts there; or
        `remove` takes them away, and views notice."""
        with nogil:
            if remove:
                tr_cell_remove(self.cell)
            else:
                tr_cell_close(self.cell)

    @property
    def instance_id(self):
        return tr_cell_instance(self.cell)

    def mutator(self, uint64_t clock_error_us):
        """For an engine in this process, which applies frames of mutations without the interpreter."""
        self.gate.clock_error_us = clock_error_us
        capsule = PyCapsule_New(&self.taken, "tailrace.mutator", _release_cell)
        PyCapsule_SetContext(capsule, <void *> self)
        Py_INCREF(self)  # as long as anyone may use it
        return capsule

    def apply(self, frame, uint32_t now_s, uint64_t clock_max):
        """Apply a frame of mutations, docs/formats/mutations.md: (an Outcome's byte for each, the highest version that
        stood in the way). ValueError: the frame is wrong somewhere, and nothing was applied."""
        cdef _Bytes held = _Bytes(frame)
        cdef tr_slice slice = held.slice
        cdef char[TR_WHY_BYTES] why
        cdef tr_version floor
        cdef long long count
        cdef uint8_t *at
        with nogil:
            count = tr_frame_check(slice, why)
        if count < 0:
            raise ValueError(why.decode("utf-8", "replace"))
        cdef bytes outcomes = PyBytes_FromStringAndSize(NULL, count)
        at = <uint8_t *> PyBytes_AS_STRING(outcomes)
        floor.clock = floor.client = floor.sequence = 0
        cdef tr_cell *cell = self.locked()
        with nogil:
            tr_frame_apply(cell, slice, now_s, clock_max, at, &floor)
            tr_cell_unlock(cell)
            tr_gate_ring(&self.gate)
        return outcomes, _as_tuple(floor)

    cdef _finish(self, int error):
        if error == errno.ENOMEM:
            raise MemoryError("no memory for a list")
        if error:
            raise ValueError(f"the cell in {self.folder} is closed")

    def digest(self, uint32_t home, uint32_t backends):
        """PARTITIONS numbers of 8 bytes: equal where two backends have the same keys, of this home, at the same
        versions."""
        cdef uint64_t[TR_PARTITIONS] digests
        cdef int i, error
        for i in range(TR_PARTITIONS):
            digests[i] = 0
        with nogil:
            error = tr_cohort_digest(self.cell, home, backends, digests)
        self._finish(error)
        return PyBytes_FromStringAndSize(<const char *> digests, sizeof(digests))

    def known(self, uint32_t home, uint32_t backends, uint64_t partitions):
        """Hash and version, 32 bytes, of each stored key of this home in those partitions (a bit each)."""
        cdef tr_buffer found
        cdef int error
        found.at, found.count = NULL, 0
        memset(&found, 0, sizeof(found))
        with nogil:
            error = tr_cohort_list(self.cell, home, backends, partitions, &found)
        try:
            self._finish(error)
            return PyBytes_FromStringAndSize(<const char *> found.at, found.count)
        finally:
            tr_buffer_free(&found)

    def fetch(self, bytes hashes not None, uint64_t bytes_max):
        """(a frame that sets what is stored under these hashes, as it is; how many hashes it got through)."""
        cdef tr_buffer frame
        cdef uint64_t done = 0, count = len(hashes) // sizeof(tr_key_hash)
        cdef const tr_key_hash *at = <const tr_key_hash *> PyBytes_AS_STRING(hashes)
        cdef int error
        memset(&frame, 0, sizeof(frame))
        with nogil:
            error = tr_cohort_fetch(self.cell, at, count, bytes_max, &frame, &done)
        try:
            self._finish(error)
            return PyBytes_FromStringAndSize(<const char *> frame.at, frame.count), done
        finally:
            tr_buffer_free(&frame)

    def erase_known(self, bytes hash not None, version):
        """Erase what is stored under this hash, if that is older."""
        cdef tr_version given = _version(version)
        cdef tr_key_hash asked
        cdef tr_item item
        cdef int outcome = TR_STALE
        if len(hash) != sizeof(tr_key_hash):
            raise ValueError(f"a hash of {len(hash)} bytes; key_hash gives {sizeof(tr_key_hash)}")
        memcpy(&asked, PyBytes_AS_STRING(hash), sizeof(tr_key_hash))
        cdef tr_cell *cell = self.locked()
        if tr_cell_item_of(cell, asked, &item):
            outcome = tr_cell_erase(cell, item.key, given)
        tr_cell_unlock(cell)
        tr_gate_ring(&self.gate)
        return _OUTCOMES[outcome]

    def fence(self, version):
        """From now on clients' mutations at or below this version are stale. It only rises."""
        cdef tr_version given = _version(version)
        cdef tr_cell *cell = self.locked()
        tr_cell_fence(cell, given)
        tr_cell_unlock(cell)

    def repair(self, frame):
        """Apply what another backend stores, as `fetch` gave it: an Outcome's byte for each."""
        cdef _Bytes held = _Bytes(frame)
        cdef tr_slice slice = held.slice
        cdef char[TR_WHY_BYTES] why
        cdef long long count
        cdef uint8_t *at
        with nogil:
            count = tr_frame_check(slice, why)
        if count < 0:
            raise ValueError(why.decode("utf-8", "replace"))
        cdef bytes outcomes = PyBytes_FromStringAndSize(NULL, count)
        at = <uint8_t *> PyBytes_AS_STRING(outcomes)
        cdef tr_cell *cell = self.locked()
        with nogil:
            tr_frame_repair(cell, slice, at)
            tr_cell_unlock(cell)
            tr_gate_ring(&self.gate)
        return outcomes

    cdef tr_cell *locked(self) except NULL:
        """The cell, to be unlocked by whoever asked for it."""
        cdef int state = tr_cell_try_lock(self.cell)
        if state == 0:  # whoever has it may take its time, and other threads shall run meanwhile
            with nogil:
                state = tr_cell_lock(self.cell)
        if state != 1:
            raise ValueError(f"the cell in {self.folder} is closed")
        return self.cell

    cdef _set(self, key, value, version, uint32_t expiry_s, uint32_t now_s, const tr_version *expected):
        cdef _Bytes key_held = _Bytes(key), value_held = _Bytes(value)
        cdef tr_version given = _version(version)
        cdef tr_cell *cell = self.locked()
        cdef int outcome = tr_cell_set(cell, key_held.slice, value_held.slice, given, expiry_s, now_s, expected)
        tr_cell_unlock(cell)
        tr_gate_ring(&self.gate)
        return _OUTCOMES[outcome]

    def set(self, key, value, version, uint32_t expiry_s=0, uint32_t now_s=0):
        return self._set(key, value, version, expiry_s, now_s, NULL)

    def cas(self, key, value, expected_version, version, uint32_t expiry_s=0, uint32_t now_s=0):
        """Set only if `expected_version` is stored; (0, 0, 0) expects nothing, or only what has expired."""
        cdef tr_version expected = _version(expected_version)
        return self._set(key, value, version, expiry_s, now_s, &expected)

    def erase(self, key, version):
        cdef _Bytes key_held = _Bytes(key)
        cdef tr_version given = _version(version)
        cdef tr_cell *cell = self.locked()
        cdef int outcome = tr_cell_erase(cell, key_held.slice, given)
        tr_cell_unlock(cell)
        tr_gate_ring(&self.gate)
        return _OUTCOMES[outcome]

    def get(self, key, uint32_t now_s):
        """(value, version), also of keys that found no place in their buckets; or None."""
        cdef _Bytes key_held = _Bytes(key)
        cdef tr_item item
        cdef bytes value = None
        cdef tr_cell *cell = self.locked()
        try:
            if tr_cell_get(cell, key_held.slice, now_s, &item):
                value = _copied(item.value)
        finally:
            tr_cell_unlock(cell)
        return None if value is None else (value, _as_tuple(item.version))

    def floor(self, key):
        """The version that a mutation of this key has to exceed."""
        cdef _Bytes key_held = _Bytes(key)
        cdef tr_cell *cell = self.locked()
        cdef tr_version version = tr_cell_floor(cell, key_held.slice)
        tr_cell_unlock(cell)
        return _as_tuple(version)

    def set_many(self, items, uint32_t now_s=0):
        """`set` for each (key, value, version, expiry_s), in order."""
        return [self.set(key, value, version, expiry_s, now_s) for key, value, version, expiry_s in items]

    def cas_many(self, items, uint32_t now_s=0):
        """`cas` for each (key, value, expected_version, version, expiry_s), in order."""
        return [self.cas(key, value, expected, version, expiry_s, now_s)
                for key, value, expected, version, expiry_s in items]

    def erase_many(self, items):
        """`erase` for each (key, version), in order."""
        return [self.erase(key, version) for key, version in items]

    def get_many(self, keys, uint32_t now_s):
        return [self.get(key, now_s) for key in keys]

    def touch(self, hashes):
        """Clients used these keys, by `key_hash`. Those that are gone are ignored, and under "lrm" all are."""
        cdef list each = list(hashes)
        for one in each:
            if len(<bytes?> one) != sizeof(tr_key_hash):
                raise ValueError(f"a hash of {len(one)} bytes; key_hash gives {sizeof(tr_key_hash)}")
        cdef bytes joined = b"".join(each)
        cdef const char *at = PyBytes_AS_STRING(joined)
        cdef size_t i, count = len(each)
        cdef tr_key_hash hash
        cdef tr_cell *cell = self.locked()
        with nogil:
            for i in range(count):
                memcpy(&hash, at + i * sizeof(tr_key_hash), sizeof(tr_key_hash))
                tr_cell_touch(cell, hash)
            tr_cell_unlock(cell)

    def collect(self, uint32_t now_s, uint64_t budget):
        """Look at up to `budget` keys and drop the expired; evict up to `budget` above the watermark. How many went."""
        cdef uint64_t gone
        cdef tr_cell *cell = self.locked()
        with nogil:
            gone = tr_cell_collect(cell, now_s, budget)
            tr_cell_unlock(cell)
        return gone

    def join(self, uint32_t pages_max):
        """Make up to so many huge pages of memory that has small ones, as far as the system does that: how many it
        tried. Nobody waits for it; but nobody may close the cell meanwhile."""
        cdef uint32_t tried = 0
        cdef int more = 1
        with nogil:
            while more and tried < pages_max:
                more = tr_cell_join(self.cell)
                tried += more
        return tried

    def configure(self, uint64_t config_id):
        """Give head and buckets another configuration id. Views notice."""
        if config_id == TR_CELL_REVOKED:
            raise ValueError("config_id of all ones marks an index that is revoked; use any other")
        cdef tr_cell *cell = self.locked()
        with nogil:
            tr_cell_configure(cell, config_id)
            tr_cell_unlock(cell)

    def hashes(self):
        """[(hash, version)] of all that is stored, expired or not. A key that stays stored comes once."""
        cdef tr_gone[LISTED] found
        cdef tr_item item
        cdef uint32_t number = 0, made = 1, i, count
        cdef tr_cell *cell
        cdef list result = []
        while number < made:
            cell, count = self.locked(), 0
            with nogil:
                made = tr_cell_records(cell)
                while number < made and count < LISTED:
                    if tr_cell_item_at(cell, number, &item):
                        found[count].hash, found[count].version = item.hash, item.version
                        count += 1
                    number += 1
                tr_cell_unlock(cell)
            for i in range(count):
                result.append((_hash_bytes(found[i].hash), _as_tuple(found[i].version)))
        return result

    def tombstones(self):
        """[(hash, version)] of what was erased, from the oldest on; also of keys that were set again since."""
        cdef tr_cell *cell = self.locked()
        cdef uint64_t i, count = tr_cell_look(cell).tombstones
        cdef tr_gone *found = <tr_gone *> malloc((count + 1) * sizeof(tr_gone))
        if found != NULL:
            for i in range(count):
                found[i] = tr_cell_gone_at(cell, <uint32_t> i)
        tr_cell_unlock(cell)
        if found == NULL:
            raise MemoryError(f"no memory for {count} tombstones")
        try:
            return [(_hash_bytes(found[i].hash), _as_tuple(found[i].version)) for i in range(count)]
        finally:
            free(found)

    def items(self):
        """Each (key, value, version, expiry_s). A key that stays stored comes once, as it is when it comes."""
        cdef tr_item item
        cdef uint32_t number = 0, made = 1
        cdef bytes key, value
        cdef tr_cell *cell
        while number < made:
            key = None
            cell = self.locked()
            try:
                made = tr_cell_records(cell)
                while number < made and key is None:
                    if tr_cell_item_at(cell, number, &item):
                        key, value = _copied(item.key), _copied(item.value)
                    number += 1
            finally:
                tr_cell_unlock(cell)
            if key is not None:
                yield key, value, _as_tuple(item.version), item.expiry_s

    cdef tr_cell_stats look(self) except *:
        cdef tr_cell *cell = self.locked()
        cdef tr_cell_stats stats = tr_cell_look(cell)
        tr_cell_unlock(cell)
        return stats

    @property
    def summary_version(self):
        """The largest version that was dropped without a tombstone: keys that are not stored need more than this."""
        return _as_tuple(self.look().summary)

    def stats(self):
        """Memory is `populated_bytes` of data, `index_bytes`, and `heap_bytes` of bookkeeping."""
        cdef tr_cell_stats stats = self.look()
        return {
            "records": stats.records, "chained": stats.chained, "used_bytes": stats.used_bytes,
            "populated_bytes": stats.populated_bytes, "joined_bytes": stats.joined_bytes, "index_bytes": stats.index_bytes,
            "heap_bytes": stats.heap_bytes, "buckets": stats.buckets, "generation": stats.generation,
            "growths": stats.growths, "growths_failed": stats.growths_failed, "moved": stats.moved,
            "evicted_capacity": stats.evicted_capacity, "evicted_associativity": stats.evicted_associativity,
            "expired": stats.expired, "tombstones": stats.tombstones, "touched": stats.touched,
        }


cdef void _release_cell(object capsule) noexcept:
    Py_DECREF(<Cell> PyCapsule_GetContext(capsule))


cdef class _Probes:
    """The questions of one call, and the memory their answers are copied to."""
    cdef tr_probe *probes
    cdef uint8_t **places
    cdef tuple keys
    cdef list values
    cdef size_t count

    def __cinit__(self, tuple keys):
        self.keys, self.count, self.values = keys, len(keys), [None] * len(keys)
        self.probes = <tr_probe *> calloc(self.count + 1, sizeof(tr_probe))
        self.places = <uint8_t **> calloc(self.count + 1, sizeof(uint8_t *))
        if self.probes == NULL or self.places == NULL:
            raise MemoryError(f"no memory for {self.count} keys")
        cdef size_t i
        for i in range(self.count):
            key = <bytes?> keys[i]
            self.probes[i].key.at = <const uint8_t *> PyBytes_AS_STRING(key)
            self.probes[i].key.count = PyBytes_GET_SIZE(key)
            self.probes[i].hash = tr_key_hash_of(self.probes[i].key)

    def __dealloc__(self):
        free(self.probes)
        free(self.places)

    cdef int make_room(self) except -1:
        """Objects for the values that were found, for the copy to fill: nobody else knows them yet."""
        cdef size_t i
        cdef bytes value
        for i in range(self.count):
            if self.probes[i].state == TR_PROBE_FOUND:
                value = PyBytes_FromStringAndSize(NULL, self.probes[i].value_bytes)
                self.places[i] = <uint8_t *> PyBytes_AS_STRING(value)
                self.values[i] = value
        return 0


cdef class CellView:
    """Another process's cell, read in place and without asking it. Give `config_id` to refuse any other configuration.

    `hints` has the places, in the last call's keys, of misses that the backend may answer after all: their bucket has
    overflowed.
    """
    cdef tr_view view
    cdef readonly object folder
    cdef readonly list hints
    cdef object expected_config_id
    cdef bint busy

    def __cinit__(self, folder, config_id=None):
        cdef char[TR_WHY_BYTES] why
        self.folder, self.expected_config_id, self.hints = folder, config_id, []
        self.view.folder = strdup(os.fsencode(folder))
        if self.view.folder == NULL:
            raise MemoryError("no memory for a path")
        error = tr_view_map(&self.view, why)
        if error:
            _refuse(error, why, folder)
        self.check_config()

    def __dealloc__(self):
        tr_view_unmap(&self.view)
        free(self.view.folder)

    cdef int check_config(self) except -1:
        if self.expected_config_id is not None and self.expected_config_id != self.view.head.config_id:
            raise ValueError(f"the cell in {self.folder} has configuration {self.view.head.config_id}, not "
                             f"{self.expected_config_id}; ask for the current one")
        return 0

    cdef int locate(self, _Probes asked, uint32_t now_s) except -1:
        """Find all; map again when the index turns out to be revoked."""
        cdef char[TR_WHY_BYTES] why
        cdef size_t i
        while True:
            with nogil:
                tr_view_locate(&self.view, asked.probes, asked.count, now_s)
            for i in range(asked.count):
                if asked.probes[i].state == TR_PROBE_REVOKED:
                    break
            else:
                return 0
            error = tr_view_renew(&self.view, asked.probes, asked.count, why)
            if error:
                _refuse(error, why, self.folder)
            self.check_config()

    cdef int fetch(self, _Probes asked) except -1:
        """Copy all that were found. True when nothing is left to look for again."""
        cdef size_t i
        with nogil:
            tr_view_fetch(&self.view, asked.probes, asked.places, asked.count)
        for i in range(asked.count):
            if asked.probes[i].state == TR_PROBE_NEW:
                return 0
        return 1

    cdef int begin(self) except -1:
        if self.busy:
            raise RuntimeError("this view is reading for another thread; open one for each")
        self.check_config()
        self.busy = True
        return 0

    cdef list read(self, tuple keys, uint32_t now_s):
        cdef _Probes asked = _Probes(keys)
        cdef list result = asked.values
        cdef size_t i
        self.begin()
        try:
            while True:
                self.locate(asked, now_s)
                asked.make_room()
                if self.fetch(asked):
                    break
        finally:
            self.busy = False
        self.hints = []
        for i in range(asked.count):
            if asked.probes[i].state == TR_PROBE_HIT:
                result[i] = (result[i], _as_tuple(asked.probes[i].entry.version))
                continue
            result[i] = None  # room was made for a value that did not prove itself
            if asked.probes[i].state == TR_PROBE_ASK:
                self.hints.append(i)
        return result

    def get(self, bytes key not None, uint32_t now_s):
        """(value, version), or None."""
        return self.read((key,), now_s)[0]

    def get_many(self, keys, uint32_t now_s):
        """(value, version) or None, for each key."""
        return self.read(tuple(keys), now_s)

    def get_into(self, bytes key not None, buffer, uint32_t now_s):
        """The value's size, once it lies at the buffer's start; or None, with the buffer in any state."""
        cdef _Probes asked = _Probes((key,))
        cdef Py_buffer room
        self.begin()
        try:
            PyObject_GetBuffer(buffer, &room, PyBUF_WRITABLE)
            try:
                asked.places[0] = <uint8_t *> room.buf
                while True:
                    self.locate(asked, now_s)
                    if asked.probes[0].state == TR_PROBE_FOUND and <Py_ssize_t> asked.probes[0].value_bytes > room.len:
                        raise ValueError(f"a value of {asked.probes[0].value_bytes} bytes into {room.len}")
                    if self.fetch(asked):
                        break
            finally:
                PyBuffer_Release(&room)
        finally:
            self.busy = False
        self.hints = [0] if asked.probes[0].state == TR_PROBE_ASK else []
        return asked.probes[0].value_bytes if asked.probes[0].state == TR_PROBE_HIT else None

    @property
    def config_id(self):
        return self.view.head.config_id

    @property
    def instance_id(self):
        return self.view.head.instance

    @property
    def generation(self):
        return self.view.head.generation

    def stats(self):
        """`torn`: looks that had to be repeated. `hints`: misses in overflowed buckets. `unsettled`: not decided."""
        cdef tr_view_stats stats = self.view.stats
        return {"hits": stats.hits, "misses": stats.misses, "torn": stats.torn, "remaps": stats.remaps,
                "hints": stats.hints, "unsettled": stats.unsettled}
