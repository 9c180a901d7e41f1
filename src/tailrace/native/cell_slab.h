/* Slots for data entries, out of slabs of one sparse file.
 *
 * A slab has slots of one size class and changes class only when it is empty. Memory is asked for slab by slab, before
 * the first write (so a full file system is an answer and not a SIGBUS), and given back when a slab is empty. A few
 * empty slabs are kept, so that keys which come and go, or grow, do not move memory each time.
 *
 * Where eight slabs side by side have memory, it can be one huge page: whoever sends, copies or maps entries then deals
 * with one page instead of hundreds. No more memory is taken for it than the slabs have anyway.
 */
#ifndef TAILRACE_CELL_SLAB_H
#define TAILRACE_CELL_SLAB_H

#include "cell.h"

enum {
    TR_SLAB_CLASSES = 448,
    TR_SLAB_GROUP = TR_HUGE_BYTES / TR_SLAB_BYTES, /* slabs of one huge page */
};

typedef struct {
    uint32_t *owners; /* by slot: who has it, or which slot is free next. NULL: the slab has no class */
    uint32_t class, slots, used, first_free;
    uint32_t before, after; /* in its class's list of slabs with room; `after` also links slabs without memory */
    uint8_t populated;      /* it has memory … */
    uint8_t joined;         /* … which is a part of a huge page */
} tr_slab;

typedef struct {
    int file;
    uint8_t *memory; /* where the file is mapped, as tr_data_map does it */
    tr_slab *slabs;
    uint32_t room;               /* slabs that the array above has room for: it grows as they are used */
    uint32_t count, limit;       /* slabs in the file; how many of them may have memory */
    uint32_t fresh, punched;     /* slabs never used begin here; list of those given back */
    uint32_t kept, kept_count;   /* list of the empty slabs with memory */
    uint32_t populated;          /* slabs with memory */
    uint32_t joined;             /* of those, in huge pages */
    uint32_t looked_at;          /* the group that is to be joined next, if it can be */
    uint64_t used_bytes;         /* of slots that are taken */
    uint64_t owners_bytes;       /* of all slabs' owners */
    uint32_t with_room[TR_SLAB_CLASSES];
} tr_slabs;

uint32_t tr_class_of(uint64_t size);
uint64_t tr_class_bytes(uint32_t class);

void tr_slabs_open(tr_slabs *slabs, int file, void *memory, uint64_t reserved, uint64_t capacity);
void tr_slabs_close(tr_slabs *slabs);

/* A slot for `size` bytes, nobody's until it is owned. False: every slab that may have memory is taken. */
int tr_slot_take(tr_slabs *slabs, uint64_t size, uint64_t *offset);
void tr_slot_own(tr_slabs *slabs, uint64_t offset, uint32_t owner);
uint32_t tr_slot_owner(const tr_slabs *slabs, uint64_t offset);
void tr_slot_give(tr_slabs *slabs, uint64_t offset);

static inline tr_slab *tr_slab_at(const tr_slabs *slabs, uint64_t offset) {
    return &slabs->slabs[offset / TR_SLAB_BYTES];
}

/* The first owner in the slab from a slot on, which moves along; or TR_NONE. */
uint32_t tr_slab_owner(const tr_slab *slab, uint32_t *slot);

/* The next group of slabs whose memory could be one huge page, TR_HUGE_BYTES from here on; NULL: none for now. */
uint8_t *tr_slabs_to_join(tr_slabs *slabs);

/* It is one now. Slabs that were given back meanwhile have got memory by it, and give it back once more. */
void tr_slabs_joined(tr_slabs *slabs, const uint8_t *page);

uint64_t tr_slabs_heap_bytes(const tr_slabs *slabs);

#endif
