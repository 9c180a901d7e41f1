# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of a cell backend's memory: `Cell` writes it, `CellView` reads it. What decides is in the C files.

A Cell runs under the interpreter's lock, which makes its callers take turns. A CellView lets go of the lock while it
looks and copies; it belongs to one thread at a time and says so when two come at once.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strdup

import errno
import os
from enum import IntEnum


cdef extern from "cell.h":
    enum: TR_HEAD_BYTES, TR_BUCKET_BYTES, TR_BUCKET_ENTRIES, TR_DATA_HEADER_BYTES, TR_SLAB_BYTES, TR_WHY_BYTES
    uint64_t TR_CELL_REVOKED
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

cdef extern from "cell_store.h":
    ctypedef enum tr_outcome:
        TR_APPLIED, TR_STALE, TR_MISMATCH, TR_TOO_LARGE, TR_NO_ROOM
    ctypedef struct tr_cell_config:
        uint64_t reserve_bytes, capacity_bytes, buckets, config_id
        uint32_t tombstones
        int by_use, chaining
    ctypedef struct tr_cell_stats:
        uint64_t records, chained, used_bytes, populated_bytes, buckets, generation, growths, growths_failed
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
    void tr_cell_close(tr_cell *cell)
    tr_outcome tr_cell_set(tr_cell *cell, tr_slice key, tr_slice value, tr_version version, uint32_t expiry_s,
                           uint32_t now_s, const tr_version *expected)
    tr_outcome tr_cell_erase(tr_cell *cell, tr_slice key, tr_version version)
    int tr_cell_get(tr_cell *cell, tr_slice key, uint32_t now_s, tr_item *item)
    void tr_cell_touch(tr_cell *cell, tr_key_hash hash)
    uint64_t tr_cell_collect(tr_cell *cell, uint32_t now_s, uint64_t budget)
    void tr_cell_configure(tr_cell *cell, uint64_t config_id)
    uint32_t tr_cell_records(const tr_cell *cell)
    int tr_cell_item_at(tr_cell *cell, uint32_t number, tr_item *item)
    tr_cell_stats tr_cell_look(const tr_cell *cell)

cdef extern from "cell_view.h":
    ctypedef enum tr_probe_state:
        TR_PROBE_NEW, TR_PROBE_FOUND, TR_PROBE_HIT, TR_PROBE_MISS, TR_PROBE_ASK, TR_PROBE_UNSETTLED, TR_PROBE_REVOKED
    ctypedef struct tr_probe:
        tr_slice key
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


cdef class Cell:
    """One backend's memory in a folder that is its own. Versions are (clock, client, sequence); expiry 0 means never.

    `capacity_bytes` bounds the memory of the data, which lies anywhere in `reserve_bytes` of addresses. `policy` says
    what goes first: "lrm", least recently modified, or "lru", least recently used as far as `touch` and `get` tell.
    """
    cdef tr_cell *cell
    cdef readonly object folder

    def __cinit__(self, folder, uint64_t reserve_bytes, uint64_t capacity_bytes, uint64_t buckets, str policy="lrm",
                  uint64_t config_id=0, *, bint chaining=True, uint32_t tombstones=4096):
        cdef tr_cell_config config
        cdef char[TR_WHY_BYTES] why
        if policy not in ("lrm", "lru"):
            raise ValueError(f"policy {policy!r}; use 'lrm' or 'lru'")
        if not SLAB_BYTES <= capacity_bytes <= reserve_bytes <= 1 << 46:
            raise ValueError(f"capacity_bytes={capacity_bytes}, reserve_bytes={reserve_bytes}; a capacity of a slab "
                             f"({SLAB_BYTES}) or more fits within the reserve, and that within 64 TiB")
        if not 1 <= buckets <= 1 << 32:
            raise ValueError(f"buckets={buckets}; use 1 to {1 << 32}")
        if config_id == TR_CELL_REVOKED:
            raise ValueError("config_id of all ones marks an index that is revoked; use any other")
        if tombstones > 1 << 24:
            raise ValueError(f"tombstones={tombstones}; use {1 << 24} or fewer")
        self.folder = folder
        config.reserve_bytes = (reserve_bytes + SLAB_BYTES - 1) // SLAB_BYTES * SLAB_BYTES
        config.capacity_bytes, config.buckets, config.config_id = capacity_bytes, buckets, config_id
        config.tombstones, config.by_use, config.chaining = tombstones, policy == "lru", chaining
        error = tr_cell_open(&self.cell, os.fsencode(folder), &config, why)
        if error:
            self.cell = NULL
            _refuse(error, why, folder)

    def __dealloc__(self):
        if self.cell != NULL:
            tr_cell_close(self.cell)

    def close(self):
        """Let go of the folder. Its files stay, and readers go on with them until the next backend starts there."""
        if self.cell != NULL:
            tr_cell_close(self.cell)
            self.cell = NULL

    cdef tr_cell *opened(self) except NULL:
        if self.cell == NULL:
            raise ValueError(f"the cell in {self.folder} is closed")
        return self.cell

    def set(self, key, value, version, uint32_t expiry_s=0, uint32_t now_s=0):
        cdef _Bytes key_held = _Bytes(key), value_held = _Bytes(value)
        return _OUTCOMES[<int> tr_cell_set(self.opened(), key_held.slice, value_held.slice, _version(version), expiry_s,
                                           now_s, NULL)]

    def cas(self, key, value, expected_version, version, uint32_t expiry_s=0, uint32_t now_s=0):
        """Set only if `expected_version` is stored; (0, 0, 0) expects nothing, or only what has expired."""
        cdef _Bytes key_held = _Bytes(key), value_held = _Bytes(value)
        cdef tr_version expected = _version(expected_version)
        return _OUTCOMES[<int> tr_cell_set(self.opened(), key_held.slice, value_held.slice, _version(version), expiry_s,
                                           now_s, &expected)]

    def erase(self, key, version):
        cdef _Bytes key_held = _Bytes(key)
        return _OUTCOMES[<int> tr_cell_erase(self.opened(), key_held.slice, _version(version))]

    def get(self, key, uint32_t now_s):
        """(value, version), also of keys that found no place in their bucket; or None."""
        cdef _Bytes key_held = _Bytes(key)
        cdef tr_item item
        if not tr_cell_get(self.opened(), key_held.slice, now_s, &item):
            return None
        return _copied(item.value), _as_tuple(item.version)

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
        """Readers used these keys, by `key_hash`. Those that are gone are ignored, and under "lrm" all are."""
        cdef tr_key_hash hash
        cdef tr_cell *cell = self.opened()
        for each in hashes:
            if len(<bytes?> each) != sizeof(tr_key_hash):
                raise ValueError(f"a hash of {len(each)} bytes; key_hash gives {sizeof(tr_key_hash)}")
            memcpy(&hash, PyBytes_AS_STRING(each), sizeof(tr_key_hash))
            tr_cell_touch(cell, hash)

    def collect(self, uint32_t now_s, uint64_t budget):
        """Look at up to `budget` keys and drop the expired; evict up to `budget` above the watermark. How many went."""
        return tr_cell_collect(self.opened(), now_s, budget)

    def configure(self, uint64_t config_id):
        """Give head and buckets another configuration id. Readers notice."""
        if config_id == TR_CELL_REVOKED:
            raise ValueError("config_id of all ones marks an index that is revoked; use any other")
        tr_cell_configure(self.opened(), config_id)

    def hashes(self):
        """[(hash, version)] of all that is stored, expired or not."""
        cdef tr_item item
        cdef uint32_t number
        cdef list result = []
        for number in range(tr_cell_records(self.opened())):
            if tr_cell_item_at(self.cell, number, &item):
                result.append((_hash_bytes(item.hash), _as_tuple(item.version)))
        return result

    def items(self):
        """Each (key, value, version, expiry_s). A key that stays stored comes once, as it is when it comes."""
        cdef tr_item item
        cdef uint32_t number = 0
        while number < tr_cell_records(self.opened()):
            if tr_cell_item_at(self.opened(), number, &item):
                yield _copied(item.key), _copied(item.value), _as_tuple(item.version), item.expiry_s
            number += 1

    @property
    def summary_version(self):
        """The largest version of a tombstone that was dropped: keys that are not stored need more than this."""
        return _as_tuple(tr_cell_look(self.opened()).summary)

    def stats(self):
        cdef tr_cell_stats stats = tr_cell_look(self.opened())
        return {
            "records": stats.records, "chained": stats.chained, "used_bytes": stats.used_bytes,
            "populated_bytes": stats.populated_bytes, "buckets": stats.buckets, "generation": stats.generation,
            "growths": stats.growths, "growths_failed": stats.growths_failed,
            "evicted_capacity": stats.evicted_capacity, "evicted_associativity": stats.evicted_associativity,
            "expired": stats.expired, "tombstones": stats.tombstones, "touched": stats.touched,
        }


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
        cdef list result = [None] * len(keys)
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
                result[i] = (asked.values[i], _as_tuple(asked.probes[i].entry.version))
            elif asked.probes[i].state == TR_PROBE_ASK:
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
