#define _GNU_SOURCE
#include "cell_slab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

enum { KEPT_MAX = 4 };

#define TAKEN (1u << 31) /* marks an owner, apart from the number of a free slot */

/* Up to 128 units of 64 bytes each size has its class; from there on there are 64 for each doubling. */
uint32_t tr_class_of(uint64_t size) {
    uint32_t units = (uint32_t)((size + TR_DATA_ALIGNMENT - 1) / TR_DATA_ALIGNMENT), shift = 0;
    while ((units - 1) >> shift >= 128) shift++;
    return 64 * shift + ((units - 1) >> shift);
}

uint64_t tr_class_bytes(uint32_t class) {
    uint32_t shift = class < 128 ? 0 : class / 64 - 1;
    return (uint64_t)(class - 64 * shift + 1) << shift << 6;
}

void tr_slabs_open(tr_slabs *slabs, int file, void *memory, uint64_t reserved, uint64_t capacity) {
    *slabs = (tr_slabs){.file = file, .memory = memory, .punched = TR_NONE, .kept = TR_NONE};
    slabs->count = (uint32_t)(reserved / TR_SLAB_BYTES);
    slabs->limit = (uint32_t)(capacity / TR_SLAB_BYTES);
    memset(slabs->with_room, 0xFF, sizeof slabs->with_room);
}

void tr_slabs_close(tr_slabs *slabs) {
    for (uint32_t i = 0; slabs->slabs && i < slabs->fresh; i++) free(slabs->slabs[i].owners);
    free(slabs->slabs);
    slabs->slabs = NULL;
}

static void link_room(tr_slabs *slabs, uint32_t number) {
    tr_slab *slab = &slabs->slabs[number];
    uint32_t *first = &slabs->with_room[slab->class];
    slab->before = TR_NONE;
    slab->after = *first;
    if (*first != TR_NONE) slabs->slabs[*first].before = number;
    *first = number;
}

static void unlink_room(tr_slabs *slabs, uint32_t number) {
    tr_slab *slab = &slabs->slabs[number];
    if (slab->before == TR_NONE)
        slabs->with_room[slab->class] = slab->after;
    else
        slabs->slabs[slab->before].after = slab->after;
    if (slab->after != TR_NONE) slabs->slabs[slab->after].before = slab->before;
}

/* Room for one more slab in the array, an eighth more at a time: a large reserve costs nothing before it is used. */
static int reach_fresh(tr_slabs *slabs) {
    if (slabs->fresh < slabs->room) return 1;
    uint32_t room = slabs->room + slabs->room / 8 + 16;
    tr_slab *more = realloc(slabs->slabs, room * sizeof *more);
    if (!more) return 0;
    memset(more + slabs->room, 0, (room - slabs->room) * sizeof *more);
    slabs->slabs = more;
    slabs->room = room;
    return 1;
}

/* An empty slab that has memory, or TR_NONE. */
static uint32_t take_slab(tr_slabs *slabs) {
    uint32_t number = slabs->kept;
    if (number != TR_NONE) {
        slabs->kept = slabs->slabs[number].after;
        slabs->kept_count--;
        return number;
    }
    if (slabs->populated >= slabs->limit) return TR_NONE;
    number = slabs->punched != TR_NONE ? slabs->punched : slabs->fresh < slabs->count ? slabs->fresh : TR_NONE;
    if (number == TR_NONE || (number == slabs->fresh && !reach_fresh(slabs))) return TR_NONE;
    /* A file system that cannot promise memory is believed to have it; one that says no is believed too. */
    if (fallocate(slabs->file, 0, (off_t)number * TR_SLAB_BYTES, TR_SLAB_BYTES) && errno != EOPNOTSUPP) return TR_NONE;
    if (number == slabs->punched)
        slabs->punched = slabs->slabs[number].after;
    else
        slabs->fresh++;
    slabs->slabs[number].populated = 1;
    slabs->populated++;
    return number;
}

/* The kernel splits a huge page of which a part goes. */
static void part_group(tr_slabs *slabs, uint32_t number) {
    uint32_t first = number - number % TR_SLAB_GROUP;
    if (!slabs->slabs[number].joined) return;
    for (uint32_t i = first; i < first + TR_SLAB_GROUP; i++) slabs->slabs[i].joined = 0;
    slabs->joined -= TR_SLAB_GROUP;
}

/* Where holes cannot be punched the memory stays with the file, and the slab is still ours to use again. */
static void punch(const tr_slabs *slabs, uint32_t number) {
    (void)fallocate(slabs->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)number * TR_SLAB_BYTES,
                    TR_SLAB_BYTES);
}

static void give_slab(tr_slabs *slabs, uint32_t number) {
    if (slabs->kept_count < KEPT_MAX) {
        slabs->slabs[number].after = slabs->kept;
        slabs->kept = number;
        slabs->kept_count++;
        return;
    }
    punch(slabs, number);
    part_group(slabs, number);
    slabs->slabs[number].populated = 0;
    slabs->slabs[number].after = slabs->punched;
    slabs->punched = number;
    slabs->populated--;
}

static int prepare_slab(tr_slabs *slabs, uint32_t number, uint32_t class) {
    tr_slab *slab = &slabs->slabs[number];
    uint32_t slots = (uint32_t)(TR_SLAB_BYTES / tr_class_bytes(class));
    slab->owners = malloc(slots * sizeof *slab->owners);
    if (!slab->owners) return 0;
    for (uint32_t i = 0; i < slots; i++) slab->owners[i] = i + 1;
    slab->class = class;
    slab->slots = slots;
    slab->used = slab->first_free = 0;
    slabs->owners_bytes += slots * sizeof *slab->owners;
    link_room(slabs, number);
    return 1;
}

int tr_slot_take(tr_slabs *slabs, uint64_t size, uint64_t *offset) {
    uint32_t class = tr_class_of(size), number = slabs->with_room[class];
    if (number == TR_NONE) {
        number = take_slab(slabs);
        if (number == TR_NONE) return 0;
        if (!prepare_slab(slabs, number, class)) {
            give_slab(slabs, number);
            return 0;
        }
    }
    tr_slab *slab = &slabs->slabs[number];
    uint32_t slot = slab->first_free;
    slab->first_free = slab->owners[slot];
    if (++slab->used == slab->slots) unlink_room(slabs, number);
    slabs->used_bytes += tr_class_bytes(class);
    *offset = (uint64_t)number * TR_SLAB_BYTES + slot * tr_class_bytes(class);
    return 1;
}

static uint32_t slot_at(const tr_slab *slab, uint64_t offset) {
    return (uint32_t)(offset % TR_SLAB_BYTES / tr_class_bytes(slab->class));
}

void tr_slot_own(tr_slabs *slabs, uint64_t offset, uint32_t owner) {
    tr_slab *slab = tr_slab_at(slabs, offset);
    slab->owners[slot_at(slab, offset)] = owner | TAKEN;
}

uint32_t tr_slot_owner(const tr_slabs *slabs, uint64_t offset) {
    const tr_slab *slab = tr_slab_at(slabs, offset);
    return slab->owners[slot_at(slab, offset)] & ~TAKEN;
}

void tr_slot_give(tr_slabs *slabs, uint64_t offset) {
    uint32_t number = (uint32_t)(offset / TR_SLAB_BYTES);
    tr_slab *slab = &slabs->slabs[number];
    uint32_t slot = slot_at(slab, offset);
    slab->owners[slot] = slab->first_free;
    slab->first_free = slot;
    slabs->used_bytes -= tr_class_bytes(slab->class);
    if (slab->used-- == slab->slots) link_room(slabs, number);
    if (slab->used) return;
    unlink_room(slabs, number);
    free(slab->owners);
    slab->owners = NULL;
    slabs->owners_bytes -= slab->slots * sizeof *slab->owners;
    give_slab(slabs, number);
}

static int can_be_joined(const tr_slabs *slabs, uint32_t first) {
    for (uint32_t i = first; i < first + TR_SLAB_GROUP; i++)
        if (!slabs->slabs[i].populated || slabs->slabs[i].joined) return 0;
    return 1;
}

uint8_t *tr_slabs_to_join(tr_slabs *slabs) {
    for (; slabs->looked_at + TR_SLAB_GROUP <= slabs->fresh; slabs->looked_at += TR_SLAB_GROUP) {
        if (!can_be_joined(slabs, slabs->looked_at)) continue;
        slabs->looked_at += TR_SLAB_GROUP;
        return slabs->memory + (uint64_t)(slabs->looked_at - TR_SLAB_GROUP) * TR_SLAB_BYTES;
    }
    slabs->looked_at = 0;
    return NULL;
}

void tr_slabs_joined(tr_slabs *slabs, const uint8_t *page) {
    const uint32_t first = (uint32_t)((uint64_t)(page - slabs->memory) / TR_SLAB_BYTES);
    if (can_be_joined(slabs, first)) {
        for (uint32_t i = first; i < first + TR_SLAB_GROUP; i++) slabs->slabs[i].joined = 1;
        slabs->joined += TR_SLAB_GROUP;
        return;
    }
    for (uint32_t i = first; i < first + TR_SLAB_GROUP; i++)
        if (!slabs->slabs[i].populated) punch(slabs, i);
}

uint64_t tr_slabs_heap_bytes(const tr_slabs *slabs) { return slabs->owners_bytes + slabs->room * sizeof *slabs->slabs; }

uint32_t tr_slab_owner(const tr_slab *slab, uint32_t *slot) {
    for (; slab->owners && *slot < slab->slots; ++*slot)
        if (slab->owners[*slot] & TAKEN) return slab->owners[*slot] & ~TAKEN;
    return TR_NONE;
}
