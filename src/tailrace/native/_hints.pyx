# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of hints: see hints.h."""
from libc.stdint cimport uint32_t, uint64_t
from posix.unistd cimport getpid

import errno
import os

cdef extern from "hints.h" nogil:
    enum:
        TR_HINT_WAIT_MAX
    int tr_hints_map(const char *path, int writable, tr_hint_slot **slots)
    void tr_hints_unmap(tr_hint_slot *slots)
    uint32_t tr_hint_waiters(const tr_hint_slot *slot)
    uint32_t tr_hint_raise(tr_hint_slot *slot)
    uint32_t tr_hint_read(const tr_hint_slot *slot)
    int tr_hints_wait(tr_hint_slot *slots, const tr_watched *watched, uint32_t count, tr_sleeper *sleeper,
                      uint64_t timeout_ns)
    void tr_hints_stop(tr_hint_slot *slots, const tr_watched *first, tr_sleeper *sleeper)
    tr_sleeper tr_sleeper_of(uint32_t number)
    int tr_take_short_turns()

SLOTS = TR_HINT_SLOTS
WAIT_MAX = TR_HINT_WAIT_MAX


def take_short_turns():
    """For a thread that wakes others as soon as it can, and then sleeps: it goes before those who work in long turns. Its
    share of the processor stays as it is. Whether it could be asked for."""
    return tr_take_short_turns() == 0


cdef class Hints:
    """The hints of one world on this host. `make`: make the file if it is not there."""

    def __cinit__(self, path, *, bint make=False):
        error = tr_hints_map(os.fsencode(path), make, &self.slots)
        if error:
            raise OSError(error, os.strerror(error), os.fspath(path))

    def __dealloc__(self):
        tr_hints_unmap(self.slots)

    def raise_(self, uint32_t slot):
        """There is something new: wake those who wait for this slot. How many were woken."""
        if slot >= TR_HINT_SLOTS:
            raise ValueError(f"slot {slot}; there are 0 to {TR_HINT_SLOTS - 1}")
        return tr_hint_raise(&self.slots[slot])

    def waiters(self, uint32_t slot):
        """How many wait for this slot now."""
        if slot >= TR_HINT_SLOTS:
            raise ValueError(f"slot {slot}; there are 0 to {TR_HINT_SLOTS - 1}")
        return tr_hint_waiters(&self.slots[slot])


cdef uint32_t _MADE = 0  # waiters, in this process


cdef class Waiter:
    """Sleeps until one of a few slots is raised, or one of some `further` ones if told so. Belongs to one thread; stop()
    may come from any, and from a signal."""

    def __cinit__(self, Hints hints not None, slots, further=()):
        global _MADE
        wanted = sorted(set(slots))
        self.near = len(wanted)
        wanted += sorted(set(further) - set(wanted))
        if not 1 <= self.near <= len(wanted) <= TR_HINT_WAIT_MAX or min(wanted) < 0 or max(wanted) >= TR_HINT_SLOTS:
            raise ValueError(f"slots {wanted[:5]}: 1 to {TR_HINT_WAIT_MAX} of 0 to {TR_HINT_SLOTS - 1}")
        self.hints, self.count = hints, len(wanted)
        self.sleeper = tr_sleeper_of(<uint32_t> getpid() + _MADE)
        _MADE += 1
        for i, slot in enumerate(wanted):
            self.watched[i].number = slot
        self.look()

    def look(self):
        """Whatever is raised from now on ends the next wait. Call it before looking for what may be new."""
        cdef uint32_t i
        for i in range(self.count):
            self.watched[i].seen = tr_hint_read(&self.hints.slots[self.watched[i].number])

    def wait_for(self, double timeout_s, *, bint further=True):
        """wait(), for `further` ones or not; whether something was raised. If so, look() is done, too, for these."""
        return self.raised(timeout_s, self.count if further else self.near)

    def wait_near(self, double timeout_s):
        """wait_for(), of those that are not further ones."""
        return self.raised(timeout_s, self.near)

    cdef bint raised(self, double timeout_s, uint32_t count) except -1:
        cdef uint32_t i, now
        cdef bint raised = False
        self.sleep(timeout_s, count)
        for i in range(count):
            now = tr_hint_read(&self.hints.slots[self.watched[i].number])
            if self.watched[i].seen != now:
                self.watched[i].seen, raised = now, True
        return raised

    def wait(self, double timeout_s):
        """Until something was raised since look(), or stop(), or the time is over."""
        self.sleep(timeout_s, self.count)

    cdef int sleep(self, double timeout_s, uint32_t count) except -1:
        cdef uint64_t timeout_ns = <uint64_t> (min(max(timeout_s, 0.0), 1e6) * 1e9)
        cdef int error
        with nogil:
            error = tr_hints_wait(self.hints.slots, self.watched, count, &self.sleeper, timeout_ns)
        if error:
            raise OSError(error, os.strerror(error))
        return 0

    def stop(self):
        """End the wait, now and for good."""
        tr_hints_stop(self.hints.slots, self.watched, &self.sleeper)
