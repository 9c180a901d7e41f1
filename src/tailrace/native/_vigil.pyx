# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Waiting for what comes next by the shortest way: `Vigil` is that way, and `Watchman` whoever goes it while there is one.

Hundreds wake together, each into an interpreter that has gone cold: what they do before they have their message, all
that wake after them wait for, too.
"""
from libc.stdint cimport int32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from tailrace.native._core cimport Records


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec


cdef class Vigil:
    """A consumer that waits for its one shard's next messages, and has no other shard to look at: wait, look and make a
    batch in one call. `batch` is the class of its batches. `drained`: there is nothing more before the next news.
    `streams`: whether it goes on while there is. How to wait and where to look is each kind's own."""

    cdef int begin(self, type batch, str stream, int32_t shard, uint64_t created_us, uint64_t entry, uint64_t position,
                   uint64_t bytes_max, double patience_s) except -1:
        if not issubclass(batch, Records):
            raise TypeError(f"batches of {batch}; they are records")
        self.batch, self.stream, self.shard, self.bytes_max, self.patience_s = batch, stream, shard, bytes_max, patience_s
        self.created_us, self.entry, self.position = created_us, entry, position
        return 0

    @classmethod
    def __class_getitem__(cls, batch):  # for annotations
        return cls

    def relieve(self):
        """(created_us, entry, position) where it has come to. From here on it gives nothing, also not to somebody who
        waits for it in another thread."""
        self.over = True
        return self.created_us, self.entry, self.position

    def next(self, double timeout_s):
        """The next batch; None: none came within the time or its patience, or other ways must tell. Then this one is
        over. OSError: this kernel has no such wait."""
        return self.take(timeout_s)

    cdef Records take(self, double timeout_s):
        cdef double left_s = min(timeout_s, self.patience_s)
        cdef Records batch
        self.waited_s, self.began_ns = 0.0, 0
        while not self.over and (self.streams or self.drained):
            if self.drained and (left_s <= 0 or not self.wait(left_s)):
                break
            if self.over:
                break
            batch = self.look()
            if batch is not None:
                self.drained = self.at_end
                return batch
            if self.over or not self.at_end:
                break
            # News that came before what it told of was read, or of another stream: there is no more than we have.
            self.drained = True
            if self.began_ns:
                left_s = min(timeout_s, self.patience_s) - (now_ns() - self.began_ns) / 1e9
        if self.began_ns:
            self.waited_s = (now_ns() - self.began_ns) / 1e9
        return None

    cdef bint wait(self, double timeout_s) except -1:
        """Whether there was news within the time; when that began is noted."""
        raise AssertionError("each kind of vigil has its own way")

    cdef Records look(self):
        """What is next, and whether that is all for certain. It has come so much further then. Making objects may let
        another thread in: what was found and not yet gone by when this one is over is left to others."""
        raise AssertionError("each kind of vigil has its own way")


cdef class Watchman:
    """Whoever is polled for batches: by a vigil while there is one, else by `_poll`, the long way. `_kept`: a batch that
    was read and not handed out; it comes first. `_stopped`: nothing more is handed out."""
    cdef public Vigil _vigil
    cdef public object _kept
    cdef public bint _stopped

    @classmethod
    def __class_getitem__(cls, batch):  # for annotations
        return cls

    def poll(self, double timeout_s=0.0):
        """The next batch; None if none came within the time."""
        cdef Vigil vigil = self._vigil
        cdef Records batch
        if vigil is not None:
            batch = self.keep(vigil, timeout_s)
            if batch is not None:
                return batch
            timeout_s -= vigil.waited_s
        return self._poll(timeout_s)

    def _watch(self, Vigil vigil not None, double timeout_s):
        """The next batch by the shortest way. None: the vigil is over."""
        return self.keep(vigil, timeout_s)

    cdef Records keep(self, Vigil vigil, double timeout_s):
        cdef Records batch = None
        if self._kept is None and not self._stopped:
            try:
                batch = vigil.take(timeout_s)
            except OSError:
                self._waiter = None  # this kernel has no such wait
            finally:
                if batch is None:
                    self._vigil = None
                if self._stopped:
                    self.close()  # it was called meanwhile, and if we were looking it left the files to us
            return batch
        self._vigil = None
        return None
