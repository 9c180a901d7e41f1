#include "cell_tombs.h"

#include <stdlib.h>

static uint32_t *chain_of(const tr_tombs *tombs, tr_key_hash hash) {
    return &tombs->table[tr_bucket_first(hash.low ^ hash.high, tombs->room)];
}

void tr_tombs_open(tr_tombs *tombs, uint32_t capacity) { *tombs = (tr_tombs){.capacity = capacity}; }

void tr_tombs_close(tr_tombs *tombs) {
    free(tombs->ring);
    free(tombs->table);
    *tombs = (tr_tombs){0};
}

static tr_tomb *find(const tr_tombs *tombs, tr_key_hash hash) {
    if (!tombs->room) return NULL;
    for (uint32_t i = *chain_of(tombs, hash); i != TR_NONE; i = tombs->ring[i].next)
        if (tr_hash_equal(tombs->ring[i].gone.hash, hash)) return &tombs->ring[i];
    return NULL;
}

tr_version tr_tombs_floor(const tr_tombs *tombs, tr_key_hash hash) {
    const tr_tomb *tomb = find(tombs, hash);
    int newer = tomb && tr_version_compare(tomb->gone.version, tombs->summary) > 0;
    return newer ? tomb->gone.version : tombs->summary;
}

void tr_tombs_raise(tr_tombs *tombs, tr_version version) {
    if (tr_version_compare(version, tombs->summary) > 0) tombs->summary = version;
}

static void drop_oldest(tr_tombs *tombs) {
    tr_tomb *tomb = &tombs->ring[tombs->oldest];
    uint32_t *link = chain_of(tombs, tomb->gone.hash);
    while (*link != tombs->oldest) link = &tombs->ring[*link].next;
    *link = tomb->next;
    tr_tombs_raise(tombs, tomb->gone.version);
    tombs->oldest = (tombs->oldest + 1) % tombs->room;
    tombs->count--;
}

static void link_in(tr_tombs *tombs, uint32_t place) {
    uint32_t *chain = chain_of(tombs, tombs->ring[place].gone.hash);
    tombs->ring[place].next = *chain;
    *chain = place;
}

/* A full ring that may be larger: nothing was dropped yet, so it begins at its beginning. False: no memory. */
static int grow(tr_tombs *tombs) {
    uint32_t room = tombs->room ? 2 * tombs->room : 64;
    if (room > tombs->capacity) room = tombs->capacity;
    uint32_t *table = malloc(room * sizeof *table);
    tr_tomb *ring = table ? realloc(tombs->ring, room * sizeof *ring) : NULL;
    if (!ring) {
        free(table);
        return 0;
    }
    free(tombs->table);
    tombs->ring = ring;
    tombs->table = table;
    tombs->room = room;
    memset(table, 0xFF, room * sizeof *table);
    for (uint32_t i = 0; i < tombs->count; i++) link_in(tombs, i);
    return 1;
}

void tr_tombs_add(tr_tombs *tombs, tr_key_hash hash, tr_version version) {
    tr_tomb *known = find(tombs, hash);
    if (known) {
        /* Two keys may share a hash, and then the later erase need not have the larger version. */
        if (tr_version_compare(version, known->gone.version) > 0) known->gone.version = version;
        return;
    }
    int full = tombs->count == tombs->room;
    if (full && tombs->room < tombs->capacity && !tombs->oldest) full = !grow(tombs);
    if (!tombs->room) { /* none are kept, or there is no memory for any */
        tr_tombs_raise(tombs, version);
        return;
    }
    if (full) drop_oldest(tombs);
    uint32_t place = (uint32_t)(((uint64_t)tombs->oldest + tombs->count++) % tombs->room);
    tombs->ring[place].gone = (tr_gone){hash, version};
    link_in(tombs, place);
}

uint64_t tr_tombs_heap_bytes(const tr_tombs *tombs) {
    return tombs->room * (sizeof *tombs->ring + sizeof *tombs->table);
}
