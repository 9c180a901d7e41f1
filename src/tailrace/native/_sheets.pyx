# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The thin binding of sheets: see sheets.h. `Sheets` is the producer's end, `SheetReader` a consumer's, and `SheetVigil`
its shortest way to what comes next."""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.unistd cimport getpid
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from tailrace.native._core cimport Block, Records
from tailrace.native._hints cimport TR_HINT_SLOTS, Hints, Waiter, tr_hint_slot
from tailrace.native._vigil cimport Vigil
from tailrace.native.notice cimport TR_NOTICE_CAPSULE, tr_notice

import errno
import os

cdef extern from "records.h" nogil:
    enum:
        TR_ENTRY_BYTES
    ctypedef struct tr_entry:
        uint64_t end
    size_t tr_count_to_position(const tr_entry *entries, size_t count, uint64_t limit)

cdef extern from "sheets.h" nogil:
    enum:
        TR_SHEETS_MAX
        TR_PLACES
    uint32_t TR_NO_SHEET
    ctypedef struct tr_sheets_head:
        uint32_t closed
    ctypedef struct tr_sheets:
        tr_sheets_head *head
        uint8_t *sheets
        uint32_t count
        uint64_t sheet_bytes, entries_at
    ctypedef struct tr_found:
        uint32_t sheet
        uint64_t generation, count, data_at, entry_at
        int last
    int tr_sheets_make(tr_sheets *all, const char *memory, const char *pins, uint32_t sheets, uint64_t sheet_bytes,
                       uint64_t entries_at)
    int tr_sheet_back(tr_sheets *all, uint32_t number, uint64_t start, uint64_t end)
    int tr_sheet_begin(tr_sheets *all, uint32_t number, uint64_t generation)
    ctypedef struct tr_telling:
        tr_sheets *all
        tr_hint_slot *slot
        uint32_t number
        uint64_t created_us, first, start, data_at, entry_at, count
        int shown
        uint32_t woken
    void tr_telling_give(void *telling)
    void tr_sheets_missed(tr_sheets *all)
    void tr_sheets_end(tr_sheets *all, const char *memory, const char *pins)
    int tr_sheets_has_ended(const tr_sheets *all)
    void tr_sheets_close(tr_sheets *all)
    int tr_sheets_reap(const char *memory, const char *pins, int living)
    int tr_sheets_open(tr_sheets *all, const char *memory, const char *pins)
    int tr_sheets_find(const tr_sheets *all, uint32_t guess, uint64_t created_us, uint64_t entry, uint64_t position,
                       tr_found *found)
    uint64_t tr_sheets_next(const tr_sheets *all, uint64_t created_us, uint64_t position)
    int tr_sheet_stands(const tr_sheets *all, uint32_t number, uint64_t generation)
    int tr_sheets_enter(tr_sheets *all)
    int tr_sheet_pin(tr_sheets *all, int place, uint32_t number, uint64_t generation)
    void tr_sheet_let_go(tr_sheets *all, int place, uint32_t number)

SHEETS_MAX = TR_SHEETS_MAX
PLACES = TR_PLACES
cdef enum:
    _STEP_BYTES = 64 << 10        # memory is taken in such steps, then as much again as there is
    _OLD_NS = 1000000000          # what was told so long ago, consumers near the head have read
    _OLD_BYTES = 256 << 10        # a sheet of which so much is used is not gone on with when it is that old
    _HELD_MAX = 4                 # sheets that one reader keeps from being used again; beyond, it copies
    _IN_PLACE_BYTES = 64 << 10    # less is copied: that is cheaper than to hold a sheet, and keeps nothing from anybody
    _ENTRIES_MAX = 65536          # of one look


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec


def reap(memory, pins, *, bint living=False):
    """Take away what a writer left that is gone, or, if told so, also of one that lives. Whether there is none now."""
    return tr_sheets_reap(os.fsencode(memory), os.fsencode(pins), living) != 0


# ---- writing ------------------------------------------------------------------------------------------------------------

cdef class Sheets:
    """The sheets of one shard, for the one who writes it. Sheets are taken again in the order in which they were told of,
    and only those that nobody uses: neither a consumer nor a buffer of this process."""
    cdef tr_sheets all
    cdef uint64_t generation
    cdef uint32_t begun                         # how many have ever been used
    cdef uint32_t[64] uses                      # in this process
    cdef uint64_t[64] told_ns
    cdef uint64_t[64] backed_data, backed_entries  # memory that a sheet has
    cdef str memory, pins
    cdef bint ended

    def __cinit__(self, str memory not None, str pins not None, uint32_t sheets, uint64_t sheet_bytes, uint64_t entries_at):
        self.memory, self.pins, self.ended = memory, pins, True
        error = tr_sheets_make(&self.all, os.fsencode(memory), os.fsencode(pins), sheets, sheet_bytes, entries_at)
        if error:
            raise OSError(error, os.strerror(error), memory)
        self.ended = False

    def __dealloc__(self):
        if self.all.head != NULL:  # else it was never opened, and 0 is a file of somebody else's
            tr_sheets_close(&self.all)

    def begin(self, uint64_t skip, uint64_t length):
        """A sheet for new messages, of which the first has this length and lies `skip` bytes behind the sheet's begin;
        None: there is none for it."""
        cdef uint32_t chosen
        cdef Sheet sheet
        cdef uint64_t now = now_ns()
        if self.ended or skip + length > self.all.entries_at:
            return None
        chosen = self._again(now - <uint64_t> _OLD_NS if self.begun < self.all.count else now)
        if chosen == TR_NO_SHEET and self.begun < self.all.count:
            chosen = self.begun
            if not self._back(chosen, skip + length, TR_ENTRY_BYTES):
                chosen = self._again(now)
            else:
                self.begun += 1
                self.generation += 1
                tr_sheet_begin(&self.all, chosen, self.generation)
        if chosen == TR_NO_SHEET or not self._back(chosen, skip + length, TR_ENTRY_BYTES):
            return None
        sheet = Sheet.__new__(Sheet)
        sheet.sheets, sheet.number, sheet.skip, sheet.begun_ns = self, chosen, skip, now
        self.uses[chosen] += 1
        self.told_ns[chosen] = now
        return sheet

    cdef uint32_t _again(self, uint64_t told_before_ns):
        """The one that was told of longest ago, if that is long enough ago and nobody uses it."""
        cdef uint32_t number, chosen
        cdef uint64_t tried = 0  # a bit for each that a consumer holds
        while True:
            chosen = TR_NO_SHEET
            for number in range(self.begun):
                if not self.uses[number] and not tried >> number & 1 and self.told_ns[number] <= told_before_ns \
                        and (chosen == TR_NO_SHEET or self.told_ns[number] < self.told_ns[chosen]):
                    chosen = number
            if chosen == TR_NO_SHEET:
                return chosen
            self.generation += 1
            if tr_sheet_begin(&self.all, chosen, self.generation):
                return chosen
            tried |= <uint64_t> 1 << chosen

    cdef bint _back(self, uint32_t number, uint64_t data, uint64_t entries):
        """Whether the sheet has memory for so much of both, now."""
        return self._grow(number, &self.backed_data[number], data, 0, self.all.entries_at) and \
            self._grow(number, &self.backed_entries[number], entries, self.all.entries_at, self.all.sheet_bytes)

    cdef bint _grow(self, uint32_t number, uint64_t *backed, uint64_t needed, uint64_t begin, uint64_t end):
        cdef uint64_t wanted
        cdef int error
        if needed <= backed[0]:
            return True
        if needed > end - begin:
            return False
        wanted = min(max(needed, max(2 * backed[0], <uint64_t> _STEP_BYTES)), end - begin)
        error = tr_sheet_back(&self.all, number, begin + backed[0], begin + wanted)
        if error:
            return False
        backed[0] = wanted
        return True

    def notice(self, Sheet sheet not None, uint64_t created_us, uint64_t first, uint64_t start, uint64_t data_at,
               uint64_t entry_at, uint64_t count, Hints hints not None, uint32_t slot):
        """Of messages that lie in the sheet, data and entries: when they are durable, as entries `first` … of a segment,
        it is to be given, and consumers who wait for this slot of the hints are woken to read them."""
        if slot >= TR_HINT_SLOTS:
            raise ValueError(f"slot {slot}; there are 0 to {TR_HINT_SLOTS - 1}")
        cdef Notice notice = Notice.__new__(Notice)
        cdef tr_telling *telling
        notice.sheets, notice.sheet, notice.hints = self, sheet, hints
        telling = &notice.telling  # all zeros, as every new object
        telling.all, telling.slot, telling.number = &self.all, hints.slots + slot, sheet.number
        telling.created_us, telling.first, telling.start = created_us, first, start
        telling.data_at, telling.entry_at, telling.count = data_at, entry_at, count
        notice.notice.give, notice.notice.whose = tr_telling_give, &notice.telling
        return notice

    def missed(self):
        """Something became durable that is in no sheet."""
        tr_sheets_missed(&self.all)

    def close(self):
        """Nothing more comes. Consumers keep what they hold."""
        if not self.ended:
            self.ended = True
            tr_sheets_end(&self.all, os.fsencode(self.memory), os.fsencode(self.pins))


@cython.no_gc
cdef class Sheet:
    """A sheet while this process writes or reads it."""
    cdef Sheets sheets
    cdef uint32_t number
    cdef uint64_t skip, begun_ns
    cdef bint is_full

    def __dealloc__(self):
        if self.sheets is not None:
            self.sheets.uses[self.number] -= 1

    cdef uint8_t *_at(self) noexcept:
        return self.sheets.all.sheets + self.number * self.sheets.all.sheet_bytes

    def blocks(self):
        """Room for data and for entries."""
        cdef Block data = Block.__new__(Block, 0, owner=self), entries = Block.__new__(Block, 0, owner=self)
        data.memory, data.capacity = self._at() + self.skip, self.sheets.backed_data[self.number] - self.skip
        entries.memory = self._at() + self.sheets.all.entries_at
        entries.capacity = self.sheets.backed_entries[self.number]
        return data, entries

    def extend(self, Block data not None, Block entries not None, uint64_t length):
        """Room for another message behind what is in these blocks; whether there is."""
        cdef uint64_t data_at = data.memory - self._at()
        cdef uint64_t entries_at = entries.memory - self._at() - self.sheets.all.entries_at
        if self.is_full or not self.sheets._back(self.number, data_at + data.size + length,
                                                 entries_at + entries.size + TR_ENTRY_BYTES):
            return False
        data.capacity = self.sheets.backed_data[self.number] - data_at
        entries.capacity = self.sheets.backed_entries[self.number] - entries_at
        return True

    def rest(self, Block data not None, Block entries not None):
        """Room behind these blocks, as new ones; None: there is too little, or it is time for another sheet."""
        cdef uint64_t data_at = data.memory - self._at() + data.size
        cdef uint64_t entries_at = entries.memory - self._at() - self.sheets.all.entries_at + entries.size
        cdef Block more_data, more_entries
        if self.is_full or data_at + data.size > self.sheets.all.entries_at or \
                entries_at + entries.size > self.sheets.all.sheet_bytes - self.sheets.all.entries_at or \
                (data_at > _OLD_BYTES and now_ns() > self.begun_ns + <uint64_t> _OLD_NS):
            return None
        more_data, more_entries = Block.__new__(Block, 0, owner=self), Block.__new__(Block, 0, owner=self)
        more_data.memory, more_entries.memory = data.memory + data.size, entries.memory + entries.size
        more_data.capacity = self.sheets.backed_data[self.number] - data_at
        more_entries.capacity = self.sheets.backed_entries[self.number] - entries_at
        return more_data, more_entries


@cython.no_gc
cdef class Notice:
    """See `Sheets.notice`. It is given once, however often that is tried."""
    cdef Sheets sheets
    cdef Sheet sheet
    cdef Hints hints
    cdef tr_telling telling
    cdef tr_notice notice

    @property
    def capsule(self):
        """For whoever makes the messages durable, to be given there without the interpreter. Good while this lives."""
        return PyCapsule_New(&self.notice, TR_NOTICE_CAPSULE, NULL)

    def give(self):
        """Whether it could be said, now or before."""
        tr_telling_give(&self.telling)
        if self.telling.shown:
            self.sheets.told_ns[self.telling.number] = now_ns()
        else:
            self.sheet.is_full = True
        return self.telling.shown != 0

    @property
    def woken(self):
        """How many consumers were asleep."""
        return self.telling.woken


# ---- reading ------------------------------------------------------------------------------------------------------------

cdef class SheetReader:
    """What is new in one shard, where its producer has it in memory. `at_end`: the last look was certain that nothing was
    flushed but what it gave."""
    cdef tr_sheets all
    cdef uint32_t guess        # the sheet where the last look ended
    cdef int place             # among the pins; -1: none yet
    cdef int owner             # the process that has the place
    cdef readonly bint at_end
    cdef readonly uint64_t created_us
    cdef readonly uint64_t bytes_read
    cdef uint32_t held         # sheets that are in use
    cdef uint32_t[64] holds    # buffers that are, by sheet

    def __cinit__(self, memory, pins):
        self.place, self.guess = -1, TR_NO_SHEET
        error = tr_sheets_open(&self.all, os.fsencode(memory), os.fsencode(pins))
        if error:
            raise OSError(error, os.strerror(error), os.fspath(memory))

    def __dealloc__(self):
        if self.all.head != NULL:  # else it was never opened, and 0 is a file of somebody else's
            tr_sheets_close(&self.all)

    @property
    def has_ended(self):
        """Nothing more comes here: its writer is gone, or another one has come."""
        return tr_sheets_has_ended(&self.all) != 0

    def read(self, type kind not None, str stream not None, int32_t shard, uint64_t created_us, uint64_t entry,
             uint64_t position, uint64_t bytes_max):
        """Records of this kind from this entry of a segment on: about as many bytes as that, and at least one message.
        None: they are in no sheet, or not as they should be. `position`: where the message of the first entry begins.
        Much is left in the sheet, which is held for as long as it is in use; little is copied. `created_us`: the segment
        it belongs to, which is the one behind the wanted one if that has ended at `position`."""
        if not issubclass(kind, Records):
            raise TypeError(f"batches of {kind}; they are records")
        return self.take(kind, stream, shard, created_us, entry, position, bytes_max)

    cdef Records take(self, type kind, str stream, int32_t shard, uint64_t created_us, uint64_t entry, uint64_t position,
                      uint64_t bytes_max):
        cdef tr_found found
        cdef uint64_t count, length
        cdef const uint8_t *sheet
        cdef const tr_entry *first
        cdef Records records
        self.at_end = False
        self.created_us = created_us
        if not tr_sheets_find(&self.all, self.guess, created_us, entry, position, &found):
            self.at_end = found.last != 0
            if self.at_end:
                return None
            self.created_us = tr_sheets_next(&self.all, created_us, position)
            if not self.created_us or not tr_sheets_find(&self.all, self.guess, self.created_us, 0, position, &found):
                return None
        self.guess = found.sheet
        sheet = self.all.sheets + found.sheet * self.all.sheet_bytes
        first = <const tr_entry *> (sheet + self.all.entries_at) + found.entry_at
        count = min(found.count, <uint64_t> _ENTRIES_MAX)
        count = max(<uint64_t> tr_count_to_position(first, count, position + bytes_max), <uint64_t> 1)
        length = first[count - 1].end - position
        if length - 1 >= self.all.entries_at - found.data_at:  # nothing at all, or what cannot be
            return None
        # Without its `__init__`: hundreds may do this at the same moment.
        records = <Records> (<PyTypeObject *> kind).tp_new(kind, <PyObject *> _NO_ARGUMENTS, NULL)
        if length >= _IN_PLACE_BYTES and (self.holds[found.sheet] or self.held < _HELD_MAX) and self._enter():
            if not self.holds[found.sheet] and not tr_sheet_pin(&self.all, self.place, found.sheet, found.generation):
                return None
            records.lay(stream, shard, position, self._hold(found.sheet, <const uint8_t *> first, count * TR_ENTRY_BYTES),
                        self._hold(found.sheet, sheet + found.data_at, length), True, True)
        else:
            records.lay_block(stream, shard, position, _copied(sheet + found.data_at, length, first, count), count)
        if not tr_sheet_stands(&self.all, found.sheet, found.generation):
            return None  # it was begun anew before we held it, or while it was copied
        self.bytes_read += length + count * TR_ENTRY_BYTES
        self.at_end = found.last and <uint64_t> records.count == found.count
        return records if records.count else None

    cdef Held _hold(self, uint32_t number, const uint8_t *at, uint64_t count):
        cdef Held held = Held.__new__(Held)
        self.held += self.holds[number] == 0
        self.holds[number] += 1
        held.reader, held.number, held.at, held.count = self, number, at, count
        return held

    cdef bint _enter(self):
        if self.place < 0:
            self.place, self.owner = tr_sheets_enter(&self.all), getpid()
        return self.place >= 0 and self.owner == getpid()  # who was forked from it has no place of its own, and copies

    @property
    def held_sheets(self):
        """How many sheets it keeps from being used again."""
        return self.held


cdef Block _copied(const uint8_t *data, uint64_t length, const tr_entry *entries, uint64_t count):
    """See `Records.lay_block`."""
    cdef uint64_t behind = length + 7 & ~<uint64_t> 7
    # The smallest block there is has room for a message or two, and its size need not be made an object of.
    cdef Block copy = <Block> (<PyTypeObject *> Block).tp_new(Block, <PyObject *> _NO_BYTES, NULL)
    if copy.capacity < behind + count * TR_ENTRY_BYTES:
        copy = Block(behind + count * TR_ENTRY_BYTES)
    memcpy(copy.memory, data, length)
    memcpy(copy.memory + behind, entries, count * TR_ENTRY_BYTES)
    copy.size = length
    return copy


cdef tuple _NO_ARGUMENTS = (), _NO_BYTES = (0,)


cdef class SheetVigil(Vigil):
    """Of a shard whose producer has what comes next in memory of this host, and raises the waiter's hint itself. It goes on
    from the entry at `position` of the segment that was begun at `created_us`."""
    cdef SheetReader reader
    cdef Waiter waiter

    def __cinit__(self, SheetReader reader not None, Waiter waiter not None, type batch not None, str stream not None,
                  int32_t shard, uint64_t created_us, uint64_t entry, uint64_t position, uint64_t bytes_max,
                  double patience_s, *, bint drained, bint streams):
        self.begin(batch, stream, shard, created_us, entry, position, bytes_max, patience_s)
        self.reader, self.waiter, self.drained, self.streams = reader, waiter, drained, streams

    cdef bint wait(self, double timeout_s) except -1:
        cdef bint raised = self.waiter.raised(timeout_s, self.waiter.near)
        if not self.began_ns:
            self.began_ns = self.waiter.sleeper.began_ns
        return raised

    cdef Records look(self):
        cdef Records batch = self.reader.take(self.batch, self.stream, self.shard, self.created_us, self.entry,
                                              self.position, self.bytes_max)
        self.at_end = self.reader.at_end
        if self.over:
            return None
        if batch is not None:
            if self.reader.created_us != self.created_us:
                # On into the next segment, without a look at its files: hundreds would open them at the same moment.
                self.created_us, self.entry = self.reader.created_us, 0
            self.entry, self.position = self.entry + batch.count, batch._end
        return batch


@cython.no_gc  # a reader refers to nothing; and what holds a sheet must not be cleared before it lets go
cdef class Held:
    """A part of a sheet, as a buffer that nobody may write. The sheet stays as it is for as long as this lives."""
    cdef SheetReader reader
    cdef uint32_t number
    cdef const uint8_t *at
    cdef Py_ssize_t count

    def __dealloc__(self):
        cdef SheetReader reader = self.reader
        if reader is not None:
            reader.holds[self.number] -= 1
            if not reader.holds[self.number]:
                reader.held -= 1
                if reader.owner == getpid():
                    tr_sheet_let_go(&reader.all, reader.place, self.number)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *> self.at, self.count, 1, flags)

    def __len__(self):
        return self.count
