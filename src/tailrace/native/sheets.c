#define _GNU_SOURCE
#include "sheets.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "records.h"

enum { TABLE_AT = 4096, PINS_BYTES = TR_PLACES * sizeof(tr_shared_word), MODE = 0600 };

_Static_assert(sizeof(tr_sheets_head) <= TABLE_AT, "the head is one page");
_Static_assert(sizeof(tr_sheet) == 512, "as the contract has it");
_Static_assert(TABLE_AT + TR_SHEETS_MAX * sizeof(tr_sheet) <= TR_SHEETS_HEAD_BYTES, "the table has its place");

#define READ(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define WRITE(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)

/* ---- both sides */

static int sizes_fit(uint32_t sheets, uint64_t sheet_bytes, uint64_t entries_at) {
    return sheets > 0 && sheets <= TR_SHEETS_MAX && sheet_bytes <= (uint64_t)1 << 40 && sheet_bytes % 4096 == 0 &&
           entries_at % 4096 == 0 && entries_at > 0 && entries_at < sheet_bytes;
}

static int map_both(tr_sheets *all, int writable) {
    void *memory = mmap(NULL, all->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, all->memory, 0);
    if (memory == MAP_FAILED) return errno;
    void *pins = mmap(NULL, PINS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, all->pins, 0);
    if (pins == MAP_FAILED) {
        int error = errno;
        munmap(memory, all->bytes);
        return error;
    }
    all->head = memory;
    all->table = (tr_sheet *)((uint8_t *)memory + TABLE_AT);
    all->sheets = (uint8_t *)memory + TR_SHEETS_HEAD_BYTES;
    all->places = pins;
    return 0;
}

void tr_sheets_close(tr_sheets *all) {
    if (all->head) munmap(all->head, all->bytes);
    if (all->places) munmap(all->places, PINS_BYTES);
    if (all->memory >= 0) close(all->memory);
    if (all->pins >= 0) close(all->pins);
    *all = (tr_sheets){.memory = -1, .pins = -1};
}

static int failed(tr_sheets *all, int error) {
    tr_sheets_close(all);
    return error;
}

/* ---- writing */

int tr_sheets_make(tr_sheets *all, const char *memory, const char *pins, uint32_t sheets, uint64_t sheet_bytes,
                   uint64_t entries_at) {
    *all = (tr_sheets){.memory = -1, .pins = -1};
    if (!sizes_fit(sheets, sheet_bytes, entries_at)) return EINVAL;
    all->count = sheets;
    all->sheet_bytes = sheet_bytes;
    all->entries_at = entries_at;
    all->bytes = TR_SHEETS_HEAD_BYTES + sheets * sheet_bytes;
    all->pins = open(pins, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (all->pins < 0) return failed(all, errno);
    all->memory = open(memory, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (all->memory < 0) {
        int error = errno;
        unlink(pins);
        return failed(all, error);
    }
    int error = flock(all->memory, LOCK_EX | LOCK_NB) || ftruncate(all->memory, (off_t)all->bytes) ? errno : 0;
    if (!error) error = posix_fallocate(all->memory, 0, TR_SHEETS_HEAD_BYTES);
    if (!error) error = posix_fallocate(all->pins, 0, PINS_BYTES);
    if (!error) error = map_both(all, 1);
    if (error) {
        unlink(memory);
        unlink(pins);
        return failed(all, error);
    }
    tr_sheets_head *head = all->head;
    head->version = TR_SHEETS_VERSION;
    head->sheets = sheets;
    head->sheet_bytes = sheet_bytes;
    head->entries_at = entries_at;
    WRITE(head->newest, TR_NO_SHEET);
    atomic_thread_fence(memory_order_release);
    *(volatile uint64_t *)&head->magic = TR_SHEETS_MAGIC;
    return 0;
}

int tr_sheet_back(tr_sheets *all, uint32_t number, uint64_t from, uint64_t to) {
    if (to <= from) return 0;
    uint64_t at = TR_SHEETS_HEAD_BYTES + number * all->sheet_bytes;
    return posix_fallocate(all->memory, (off_t)(at + from), (off_t)(to - from));
}

/* Whether the owner of a place lives. */
static int is_taken(const tr_sheets *all, int place) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
    return fcntl(all->pins, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

static int is_held(tr_sheets *all, uint32_t number) {
    uint64_t bit = (uint64_t)1 << number;
    int held = 0;
    for (int place = 0; place < TR_PLACES; place++) {
        uint64_t word = atomic_load_explicit(&all->places[place], memory_order_seq_cst);
        if (!(word & bit)) continue;
        if (is_taken(all, place))
            held = 1;
        else /* killed. If a new owner comes just now, it cannot have this sheet: its generation is 0. */
            atomic_fetch_and_explicit(&all->places[place], ~bit, memory_order_seq_cst);
    }
    return held;
}

int tr_sheet_begin(tr_sheets *all, uint32_t number, uint64_t generation) {
    tr_sheet *sheet = &all->table[number];
    uint64_t before = READ(sheet->generation);
    atomic_store_explicit(&sheet->generation, 0, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* nothing that is packed from here on is seen before it */
    if (before && is_held(all, number)) {
        atomic_store_explicit(&sheet->generation, before, memory_order_seq_cst);
        return 0;
    }
    WRITE(sheet->runs, 0);
    atomic_store_explicit(&sheet->generation, generation, memory_order_release);
    return 1;
}

int tr_sheet_tell(tr_sheets *all, uint32_t number, uint64_t created_us, uint64_t first, uint64_t start,
                  uint64_t data_at, uint64_t entry_at, uint64_t count) {
    tr_sheet *sheet = &all->table[number];
    uint64_t runs = READ(sheet->runs);
    tr_run *run = &sheet->run[runs ? runs - 1 : 0];
    if (runs && READ(run->created_us) == created_us && READ(run->first) + READ(run->count) == first &&
        READ(run->entry_at) + READ(run->count) == entry_at && READ(run->data_at) + (start - READ(run->start)) == data_at) {
        atomic_store_explicit(&run->count, READ(run->count) + count, memory_order_release);
    } else {
        if (runs == TR_SHEET_RUNS) return 0;
        run = &sheet->run[runs];
        WRITE(run->created_us, created_us);
        WRITE(run->first, first);
        WRITE(run->start, start);
        WRITE(run->data_at, data_at);
        WRITE(run->entry_at, entry_at);
        WRITE(run->count, count);
        atomic_store_explicit(&sheet->runs, runs + 1, memory_order_release);
    }
    atomic_store_explicit(&all->head->newest, number, memory_order_release);
    return 1;
}

void tr_telling_give(void *given) {
    tr_telling *telling = given;
    if (telling->given) return;
    telling->given = 1;
    telling->shown = !tr_sheets_has_ended(telling->all) &&
                     tr_sheet_tell(telling->all, telling->number, telling->created_us, telling->first, telling->start,
                                   telling->data_at, telling->entry_at, telling->count);
    if (telling->shown)
        telling->woken = tr_hint_raise(telling->slot);
    else
        tr_sheets_missed(telling->all);
}

void tr_sheets_missed(tr_sheets *all) {
    atomic_store_explicit(&all->head->newest, TR_NO_SHEET, memory_order_release);
}

static void unlink_own(int file, const char *path) {
    struct stat own, named;
    if (!fstat(file, &own) && !stat(path, &named) && own.st_ino == named.st_ino && own.st_dev == named.st_dev)
        unlink(path);
}

void tr_sheets_end(tr_sheets *all, const char *memory, const char *pins) {
    atomic_store_explicit(&all->head->closed, 1, memory_order_release);
    unlink_own(all->memory, memory);
    unlink_own(all->pins, pins);
}

int tr_sheets_has_ended(const tr_sheets *all) {
    return atomic_load_explicit(&all->head->closed, memory_order_acquire) != 0;
}

int tr_sheets_reap(const char *memory, const char *pins, int living) {
    int file = open(memory, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat about;
    if (file < 0) {
        int none = errno == ENOENT;
        if (none && living) unlink(pins); /* of one that was killed while it made them */
        return none;
    }
    int over = (living || !flock(file, LOCK_EX | LOCK_NB)) && !fstat(file, &about);
    if (over) {
        if (about.st_size >= TR_SHEETS_HEAD_BYTES) {
            void *found = mmap(NULL, TABLE_AT, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (found != MAP_FAILED) {
                tr_sheets_head *head = found;
                atomic_store_explicit(&head->closed, 1, memory_order_release);
                munmap(found, TABLE_AT);
            }
        }
        unlink(memory);
        unlink(pins);
    }
    close(file);
    return over;
}

/* ---- reading */

int tr_sheets_open(tr_sheets *all, const char *memory, const char *pins) {
    struct stat about, about_pins;
    tr_sheets_head head;
    *all = (tr_sheets){.memory = -1, .pins = -1};
    all->memory = open(memory, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (all->memory < 0) return failed(all, errno);
    all->pins = open(pins, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (all->pins < 0) return failed(all, errno);
    if (fstat(all->memory, &about) || fstat(all->pins, &about_pins)) return failed(all, errno);
    if (pread(all->memory, &head, sizeof head, 0) != (ssize_t)sizeof head) return failed(all, EINVAL);
    if (head.magic != TR_SHEETS_MAGIC || head.version != TR_SHEETS_VERSION) return failed(all, EINVAL);
    all->count = head.sheets;
    all->sheet_bytes = head.sheet_bytes;
    all->entries_at = head.entries_at;
    if (!sizes_fit(all->count, all->sheet_bytes, all->entries_at)) return failed(all, EINVAL);
    all->bytes = TR_SHEETS_HEAD_BYTES + all->count * all->sheet_bytes;
    if ((uint64_t)about.st_size != all->bytes || about_pins.st_size != PINS_BYTES) return failed(all, EINVAL);
    int error = map_both(all, 0);
    if (error) return failed(all, error);
    /* If another writer came between the two, its pins are not those of this memory, and this is over. */
    if (tr_sheets_has_ended(all)) return failed(all, ESTALE);
    close(all->memory); /* who follows many shards has no file to spare */
    all->memory = -1;
    return 0;
}

/* Which run of a sheet has the entry, or, at its end, would have it; -1: none. */
static int run_of(const tr_sheets *all, uint32_t number, uint64_t created_us, uint64_t entry, uint64_t position,
                  tr_found *found) {
    tr_sheet *sheet = &all->table[number];
    uint64_t generation = atomic_load_explicit(&sheet->generation, memory_order_acquire);
    if (!generation) return -1;
    uint64_t runs = atomic_load_explicit(&sheet->runs, memory_order_acquire);
    if (runs > TR_SHEET_RUNS) return -1;
    for (int i = (int)runs - 1; i >= 0; i--) {
        tr_run *run = &sheet->run[i];
        uint64_t first = READ(run->first), start = READ(run->start);
        uint64_t count = atomic_load_explicit(&run->count, memory_order_acquire);
        uint64_t data_at = READ(run->data_at), entry_at = READ(run->entry_at);
        if (READ(run->created_us) != created_us || entry < first || entry - first > count || position < start) continue;
        /* Whatever the other side wrote, what is read lies within the sheet. */
        uint64_t entries_max = (all->sheet_bytes - all->entries_at) / TR_ENTRY_BYTES;
        if (data_at > all->entries_at || position - start > all->entries_at - data_at) return -1;
        if (entry_at > entries_max || count > entries_max - entry_at) return -1;
        *found = (tr_found){
            .sheet = number,
            .generation = generation,
            .count = count - (entry - first),
            .data_at = data_at + (position - start),
            .entry_at = entry_at + (entry - first),
            .last = i == (int)runs - 1,
        };
        return i;
    }
    return -1;
}

int tr_sheets_find(const tr_sheets *all, uint32_t guess, uint64_t created_us, uint64_t entry, uint64_t position,
                   tr_found *found) {
    /* First, so that what is flushed meanwhile can only make us less certain. */
    uint32_t newest = atomic_load_explicit(&all->head->newest, memory_order_acquire);
    int closed = tr_sheets_has_ended(all);
    uint32_t likely[2] = {guess, newest};
    for (int i = 0; i < 2; i++)
        if (likely[i] < all->count && run_of(all, likely[i], created_us, entry, position, found) >= 0) {
            found->last = found->last && found->sheet == newest && !closed;
            if (found->count || found->last) return found->count > 0;
        }
    for (uint32_t number = 0; number < all->count; number++)
        if (run_of(all, number, created_us, entry, position, found) >= 0 && found->count) {
            found->last = found->last && number == newest && !closed;
            return 1;
        }
    *found = (tr_found){.sheet = TR_NO_SHEET};
    return 0;
}

uint64_t tr_sheets_next(const tr_sheets *all, uint64_t created_us, uint64_t position) {
    for (uint32_t number = 0; number < all->count; number++) {
        tr_sheet *sheet = &all->table[number];
        uint64_t generation = atomic_load_explicit(&sheet->generation, memory_order_acquire);
        uint64_t runs = atomic_load_explicit(&sheet->runs, memory_order_acquire);
        if (!generation || runs > TR_SHEET_RUNS) continue;
        for (uint64_t i = 0; i < runs; i++) {
            uint64_t other = READ(sheet->run[i].created_us);
            if (other > created_us && READ(sheet->run[i].first) == 0 && READ(sheet->run[i].start) == position &&
                tr_sheet_stands(all, number, generation))
                return other;
        }
    }
    return 0;
}

int tr_sheet_stands(const tr_sheets *all, uint32_t number, uint64_t generation) {
    atomic_thread_fence(memory_order_acquire);
    return READ(all->table[number].generation) == generation;
}

int tr_sheets_enter(tr_sheets *all) {
    /* From different places on, or each of a thousand would try all those before it. */
    uint32_t begin = (uint32_t)getpid() * 2654435761u ^ (uint32_t)(uintptr_t)all * 40503u;
    for (uint32_t i = 0; i < TR_PLACES; i++) {
        int place = (int)((begin + i) % TR_PLACES);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
        if (fcntl(all->pins, F_OFD_SETLK, &lock)) continue;
        atomic_store_explicit(&all->places[place], 0, memory_order_seq_cst); /* what one who was killed left */
        return place;
    }
    return -1;
}

int tr_sheet_pin(tr_sheets *all, int place, uint32_t number, uint64_t generation) {
    uint64_t bit = (uint64_t)1 << number;
    atomic_fetch_or_explicit(&all->places[place], bit, memory_order_seq_cst);
    if (atomic_load_explicit(&all->table[number].generation, memory_order_seq_cst) == generation) return 1;
    atomic_fetch_and_explicit(&all->places[place], ~bit, memory_order_seq_cst);
    return 0;
}

void tr_sheet_let_go(tr_sheets *all, int place, uint32_t number) {
    atomic_fetch_and_explicit(&all->places[place], ~((uint64_t)1 << number), memory_order_seq_cst);
}
