# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of one-sided reads between hosts: `Engine` serves a cell's memory, `Link` reads it.

The engine's thread is C alone and never waits for the interpreter. A Link lets go of the interpreter's lock while it
waits; it belongs to one thread at a time and says so when two come at once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import errno
import os
from enum import IntEnum
from time import monotonic


cdef extern from "cell.h":
    enum: TR_WHY_BYTES
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
        uint64_t instance, config_id, generation, buckets, reserved
    tr_key_hash tr_key_hash_of(tr_slice key) nogil
    void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask)

cdef extern from "cell_probe.h":
    ctypedef enum tr_probe_state:
        TR_PROBE_NEW, TR_PROBE_FOUND, TR_PROBE_HIT, TR_PROBE_MISS, TR_PROBE_ASK, TR_PROBE_UNSETTLED, TR_PROBE_REVOKED
    ctypedef struct tr_probe:
        tr_slice key
        tr_key_hash hash
        tr_index_entry entry
        uint32_t value_bytes
        tr_probe_state state
        const uint8_t *data

cdef extern from "cell_frame.h":
    enum: TR_TICKET_BYTES, TR_REQUEST_BYTES_LEAST, TR_REQUEST_BYTES_MOST

cdef extern from "cell_mutation.h":
    ctypedef struct tr_mutator:
        pass

cdef extern from "cell_engine.h":
    enum: TR_ENGINE_PENDING_LEAST
    ctypedef struct tr_engine_config:
        const char *folder
        const char *host
        uint16_t port
        uint32_t connections_max, hello_ms, idle_ms, stall_ms, request_bytes_max
        uint64_t pending_bytes_max
        tr_mutator mutator
    ctypedef struct tr_engine_stats:
        uint64_t connections, greeting, accepted, admitted, refused, closed_idle, closed_stalled
        uint64_t closed_short_of_memory, closed_malformed, accept_failures, requests, scanned, found, sent, read, mutated
        uint64_t received_bytes, sent_bytes, renewals, renewals_failed, pending_bytes, pending_bytes_peak, cpu_ns
        uint64_t reads_held, writes_held
    ctypedef struct tr_engine:
        pass
    int tr_engine_start(tr_engine **started, const tr_engine_config *config, char *why) nogil
    void tr_engine_stop(tr_engine *engine) nogil
    const char *tr_engine_host(const tr_engine *engine)
    uint16_t tr_engine_port(const tr_engine *engine)
    int tr_engine_admit(tr_engine *engine, const uint8_t *ticket, uint64_t valid_ms)
    void tr_engine_budget(tr_engine *engine, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s)
    int tr_engine_revoke(tr_engine *engine, const uint8_t *ticket)
    void tr_engine_look(tr_engine *engine, tr_engine_stats *stats)

cdef extern from "cell_link.h":
    ctypedef struct tr_link:
        pass
    ctypedef struct tr_link_stats:
        uint64_t requests, answers, probes, hits, misses, unproven, forgotten, changed_hands
        uint64_t sent_bytes, received_bytes, memory_bytes
    int tr_link_open(tr_link **opened, const char *host, uint16_t port, const uint8_t *ticket, uint64_t deadline_ms,
                     char *why) nogil
    void tr_link_close(tr_link *link) nogil
    int tr_link_fd(const tr_link *link)
    const tr_cell_head *tr_link_head(const tr_link *link)
    int tr_link_scan(tr_link *link, tr_probe **probes, size_t count, uint32_t now_s, uint32_t data_bytes_max,
                     uint32_t place_bytes) nogil
    int tr_link_read(tr_link *link, tr_probe **probes, size_t count) nogil
    int tr_link_ping(tr_link *link) nogil
    int tr_link_wait(tr_link *link, uint64_t wait_ms) nogil
    void tr_link_forget(tr_link *link)
    const char *tr_link_why(const tr_link *link)
    void tr_link_look(const tr_link *link, tr_link_stats *stats)


TICKET_BYTES = TR_TICKET_BYTES


class State(IntEnum):
    """What became of a question. Only HIT has a value; FOUND and HIT have a version."""
    FOUND = TR_PROBE_FOUND
    HIT = TR_PROBE_HIT
    MISS = TR_PROBE_MISS
    ASK = TR_PROBE_ASK
    UNSETTLED = TR_PROBE_UNSETTLED
    REVOKED = TR_PROBE_REVOKED


cdef dict _STATES = {int(state): state for state in State}
cdef object _HIT = State.HIT
cdef tuple _MISSED = (State.MISS, None, None)


def _weaken_hash(uint64_t low_mask=0xFFFFFFFFFFFFFFFF, uint64_t high_mask=0xFFFFFFFFFFFFFFFF):
    """Only for tests: keep these bits of every hash that links of this process ask for. Without arguments, all again."""
    tr_key_hash_weaken(low_mask, high_mask)


cdef _refuse(int error, str text, where=None):
    if error == errno.EINVAL:
        raise ValueError(text)
    if where is None:
        raise OSError(error, text)
    raise OSError(error, f"{text}: {os.strerror(error)}", where)


cdef const uint8_t *_ticket(bytes ticket) except NULL:
    if len(ticket) != TR_TICKET_BYTES:
        raise ValueError(f"a ticket of {len(ticket)} bytes; use {TR_TICKET_BYTES} random ones")
    return <const uint8_t *> PyBytes_AS_STRING(ticket)


cdef uint64_t _milliseconds(double seconds, str name) except 0:
    if not 0.001 <= seconds <= 1e6:
        raise ValueError(f"{name}={seconds:g}; use 0.001 to 1000000 seconds")
    return <uint64_t> (seconds * 1000)


cdef class Engine:
    """Serves the cell in a folder to links that come with a ticket. See docs/decisions/engine.md.

    Its thread runs until `close`. `hello_s` is the time for a ticket, `idle_s` the time without a request, `stall_s` the
    time to take one turn's answer. `pending_bytes_max` bounds what waits for all links together. `host` may be
    unix:PATH. With a cell's `mutator` it takes frames of mutations, too.
    """
    cdef tr_engine *engine
    cdef readonly object folder
    cdef object mutator

    def __cinit__(self, folder, str host not None="127.0.0.1", uint16_t port=0, *, uint32_t connections_max=1024,
                  double hello_s=5.0, double idle_s=300.0, double stall_s=30.0,
                  uint32_t request_bytes_max=64 << 10, uint64_t pending_bytes_max=64 << 20, mutator=None):
        cdef tr_engine_config config
        cdef tr_engine *started = NULL
        cdef char[TR_WHY_BYTES] why
        cdef bytes path = os.fsencode(folder), name = host.encode()
        cdef int error
        if not 1 <= connections_max <= 1 << 20:
            raise ValueError(f"connections_max={connections_max}; use 1 to {1 << 20}")
        if not TR_REQUEST_BYTES_LEAST <= request_bytes_max <= TR_REQUEST_BYTES_MOST:
            raise ValueError(f"request_bytes_max={request_bytes_max}; use {TR_REQUEST_BYTES_LEAST} to "
                             f"{TR_REQUEST_BYTES_MOST}")
        if pending_bytes_max < TR_ENGINE_PENDING_LEAST:
            raise ValueError(f"pending_bytes_max={pending_bytes_max}; use {TR_ENGINE_PENDING_LEAST} or more")
        self.folder = folder
        memset(&config, 0, sizeof(config))
        if mutator is not None:  # of the cell itself: it lives as long as the engine
            config.mutator = (<tr_mutator *> PyCapsule_GetPointer(mutator, "tailrace.mutator"))[0]
            self.mutator = mutator
        config.folder, config.host, config.port, config.connections_max = path, name, port, connections_max
        config.hello_ms = <uint32_t> _milliseconds(hello_s, "hello_s")
        config.idle_ms = <uint32_t> _milliseconds(idle_s, "idle_s")
        config.stall_ms = <uint32_t> _milliseconds(stall_s, "stall_s")
        config.request_bytes_max, config.pending_bytes_max = request_bytes_max, pending_bytes_max
        with nogil:
            error = tr_engine_start(&started, &config, why)
        if error:
            _refuse(error, why.decode("utf-8", "replace"), os.fspath(folder))
        self.engine = started

    def __dealloc__(self):
        cdef tr_engine *engine = self.engine
        if engine != NULL:
            with nogil:  # its thread may wait for a cell whose owner waits for the interpreter
                tr_engine_stop(engine)

    def __enter__(self):
        self.opened()
        return self

    def __exit__(self, *_):
        self.close()

    cdef tr_engine *opened(self) except NULL:
        if self.engine == NULL:
            raise ValueError(f"the engine for {self.folder} is closed")
        return self.engine

    def close(self):
        """Hang up on all links and end the thread."""
        cdef tr_engine *engine = self.engine
        self.engine = NULL
        if engine != NULL:
            with nogil:
                tr_engine_stop(engine)

    @property
    def address(self):
        """(host, port) where it listens."""
        return tr_engine_host(self.opened()).decode(), tr_engine_port(self.opened())

    def admit(self, bytes ticket not None, double valid_s):
        """Let one link in that comes with these 32 random bytes within the time."""
        error = tr_engine_admit(self.opened(), _ticket(ticket), _milliseconds(valid_s, "valid_s"))
        if error == errno.EEXIST:
            raise ValueError("this ticket is in use; make a new one for each link")
        if error:
            raise OSError(error, "as many tickets wait as the engine keeps; let some expire, or revoke them")

    def revoke(self, bytes ticket not None):
        """Let it in no more, and hang up if it is in. False: such a ticket is not known."""
        return bool(tr_engine_revoke(self.opened(), _ticket(ticket)))

    def budget(self, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s):
        """How much may be read and mutated here from now on; 0: as much as goes."""
        tr_engine_budget(self.opened(), read_bytes_per_s, write_bytes_per_s)

    def stats(self):
        """Counts since the start; `connections`, `greeting` and `pending_bytes` are of now."""
        cdef tr_engine_stats stats
        tr_engine_look(self.opened(), &stats)
        return {
            "connections": stats.connections, "greeting": stats.greeting, "accepted": stats.accepted,
            "admitted": stats.admitted, "refused": stats.refused, "closed_idle": stats.closed_idle,
            "closed_stalled": stats.closed_stalled, "closed_short_of_memory": stats.closed_short_of_memory,
            "closed_malformed": stats.closed_malformed, "accept_failures": stats.accept_failures,
            "requests": stats.requests, "scanned": stats.scanned, "found": stats.found, "sent": stats.sent,
            "read": stats.read, "mutated": stats.mutated, "received_bytes": stats.received_bytes, "sent_bytes": stats.sent_bytes,
            "renewals": stats.renewals, "renewals_failed": stats.renewals_failed,
            "pending_bytes": stats.pending_bytes, "pending_bytes_peak": stats.pending_bytes_peak,
            "reads_held": stats.reads_held, "writes_held": stats.writes_held,
            "cpu_ns": stats.cpu_ns,
        }


cdef class Link:
    """A connection to an engine. Each call waits for its answers, at most `deadline_s`."""
    cdef tr_link *link
    cdef tr_probe *probes
    cdef tr_probe **asked
    cdef size_t room
    cdef readonly str host
    cdef readonly int port
    cdef public double deadline_s
    cdef bint busy

    def __cinit__(self, str host not None, uint16_t port, bytes ticket not None, double deadline_s=5.0):
        cdef char[TR_WHY_BYTES] why
        cdef tr_link *link = NULL
        cdef bytes name = host.encode()
        cdef const char *name_at = name
        cdef const uint8_t *ticket_at = _ticket(ticket)
        cdef uint64_t deadline_ms = _milliseconds(deadline_s, "deadline_s")
        cdef int error
        self.host, self.port, self.deadline_s = host, port, deadline_s
        with nogil:
            error = tr_link_open(&link, name_at, port, ticket_at, deadline_ms, why)
        if error:
            _refuse(error, why.decode("utf-8", "replace"))
        self.link = link

    def __dealloc__(self):
        if self.link != NULL:
            tr_link_close(self.link)
        free(self.probes)
        free(self.asked)

    def __enter__(self):
        self.opened()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.busy:
            raise RuntimeError("this link is asking for another thread; open one for each")
        if self.link != NULL:
            tr_link_close(self.link)
            self.link = NULL

    cdef tr_link *opened(self) except NULL:
        if self.link == NULL:
            raise ValueError(f"the link to {self.host} port {self.port} is closed")
        return self.link

    cdef int begin(self) except -1:
        self.opened()
        if self.busy:
            raise RuntimeError("this link is asking for another thread; open one for each")
        self.busy = True
        return 0

    cdef int make_room(self, size_t count) except -1:
        if count <= self.room:
            return 0
        free(self.probes)
        free(self.asked)
        self.room = 0
        self.probes = <tr_probe *> calloc(count, sizeof(tr_probe))
        self.asked = <tr_probe **> calloc(count, sizeof(tr_probe *))
        if self.probes == NULL or self.asked == NULL:
            raise MemoryError(f"no memory for {count} keys")
        self.room = count
        return 0

    cdef int prepare(self, tuple keys) except -1:
        cdef size_t i, count = len(keys)
        cdef tr_probe *probe
        self.make_room(count)
        for i in range(count):
            key = <bytes?> keys[i]
            probe = &self.probes[i]
            probe.key.at = <const uint8_t *> PyBytes_AS_STRING(key)
            probe.key.count = PyBytes_GET_SIZE(key)
            probe.hash = tr_key_hash_of(probe.key)
            self.asked[i] = probe
        return 0

    cdef int wait(self) except -1:
        """Until all is answered. Whoever presses control-C is heard."""
        cdef uint64_t wait_ms = _milliseconds(self.deadline_s, "deadline_s")
        cdef int error
        end_s = monotonic() + self.deadline_s
        while True:
            with nogil:
                error = tr_link_wait(self.link, wait_ms)
            if error == 0:
                return 0
            if error == errno.ETIMEDOUT:
                raise TimeoutError(f"the engine at {self.host} port {self.port} did not answer in {self.deadline_s:g} s")
            if error != errno.EINTR:
                self.fail(error)
            PyErr_CheckSignals()
            wait_ms = <uint64_t> (max(end_s - monotonic(), 0.0) * 1000)

    cdef fail(self, int error):
        if error == errno.EAGAIN:
            raise BlockingIOError(error, "too many questions are under way; wait, or ask for fewer keys at once")
        why = tr_link_why(self.link).decode("utf-8", "replace")
        raise OSError(error, f"the link to {self.host} port {self.port} is broken: {why}")

    cdef int scan_all(self, size_t count, uint32_t now_s, uint32_t data_bytes_max) except -1:
        cdef int error
        with nogil:
            error = tr_link_scan(self.link, self.asked, count, now_s, data_bytes_max, 0)
        if error:
            self.fail(error)
        return self.wait()

    cdef int read_found(self, size_t count) except -1:
        cdef size_t i, found = 0
        cdef int error
        for i in range(count):
            if self.probes[i].state == TR_PROBE_FOUND:
                self.asked[found] = &self.probes[i]
                found += 1
        with nogil:
            error = tr_link_read(self.link, self.asked, found)
        if error:
            self.fail(error)
        return self.wait()

    cdef list results(self, size_t count):
        cdef list results = [_MISSED] * <Py_ssize_t> count
        cdef tr_probe *probe
        cdef tr_version version
        cdef size_t i
        for i in range(count):
            probe = &self.probes[i]
            version = probe.entry.version
            if probe.state == TR_PROBE_HIT:
                results[i] = (_HIT, PyBytes_FromStringAndSize(<const char *> probe.data, probe.value_bytes),
                              (version.clock, version.client, version.sequence))
            elif probe.state == TR_PROBE_FOUND:
                results[i] = (_STATES[<int> probe.state], None, (version.clock, version.client, version.sequence))
            elif probe.state != TR_PROBE_MISS:
                results[i] = (_STATES[<int> probe.state], None, None)
        return results

    def scan(self, keys, uint32_t now_s, uint32_t data_bytes_max=1 << 20):
        """(state, value, version) for each key. Entries larger than `data_bytes_max` are FOUND without their value."""
        cdef tuple held = tuple(keys)
        cdef size_t count = len(held)
        self.begin()
        try:
            self.prepare(held)
            self.scan_all(count, now_s, data_bytes_max)
            return self.results(count)
        finally:
            tr_link_forget(self.link)
            self.busy = False

    def read(self, keys, uint32_t now_s):
        """The same in two steps: first the index of all keys, then the entries that were found."""
        cdef tuple held = tuple(keys)
        cdef size_t count = len(held)
        self.begin()
        try:
            self.prepare(held)
            self.scan_all(count, now_s, 0)
            self.read_found(count)
            return self.results(count)
        finally:
            tr_link_forget(self.link)
            self.busy = False

    def ping(self):
        """Say that this link is still wanted. Does not wait for the answer."""
        cdef int error
        self.begin()
        try:
            with nogil:
                error = tr_link_ping(self.link)
            if error:
                self.fail(error)
        finally:
            self.busy = False

    def fileno(self):
        return tr_link_fd(self.opened())

    @property
    def instance_id(self):
        return tr_link_head(self.opened()).instance

    @property
    def config_id(self):
        return tr_link_head(self.opened()).config_id

    @property
    def generation(self):
        return tr_link_head(self.opened()).generation

    def stats(self):
        """`unproven`: what came and was no entry of its key. `changed_hands`: answers by another instance."""
        cdef tr_link_stats stats
        tr_link_look(self.opened(), &stats)
        return {"requests": stats.requests, "answers": stats.answers, "probes": stats.probes, "hits": stats.hits,
                "misses": stats.misses, "unproven": stats.unproven, "forgotten": stats.forgotten,
                "changed_hands": stats.changed_hands, "sent_bytes": stats.sent_bytes,
                "received_bytes": stats.received_bytes, "memory_bytes": stats.memory_bytes}

