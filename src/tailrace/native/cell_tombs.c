#include "cell_tombs.h"

#include <errno.h>
#include <stdlib.h>

#define NONE UINT32_MAX

static uint32_t *chain_of(const tr_tombs *tombs, tr_key_hash hash) {
    return &tombs->table[(hash.low ^ hash.high) & tombs->table_mask];
}

int tr_tombs_open(tr_tombs *tombs, uint32_t capacity) {
    uint32_t places = 1;
    while (places < capacity) places *= 2;
    *tombs = (tr_tombs){.capacity = capacity, .table_mask = places - 1};
    tombs->ring = calloc(capacity ? capacity : 1, sizeof *tombs->ring);
    tombs->table = malloc(places * sizeof *tombs->table);
    if (!tombs->ring || !tombs->table) return ENOMEM;
    memset(tombs->table, 0xFF, places * sizeof *tombs->table);
    return 0;
}

void tr_tombs_close(tr_tombs *tombs) {
    free(tombs->ring);
    free(tombs->table);
    *tombs = (tr_tombs){0};
}

static tr_tomb *find(const tr_tombs *tombs, tr_key_hash hash) {
    for (uint32_t i = *chain_of(tombs, hash); i != NONE; i = tombs->ring[i].next)
        if (tr_hash_equal(tombs->ring[i].hash, hash)) return &tombs->ring[i];
    return NULL;
}

tr_version tr_tombs_floor(const tr_tombs *tombs, tr_key_hash hash) {
    const tr_tomb *tomb = find(tombs, hash);
    return tomb && tr_version_compare(tomb->version, tombs->summary) > 0 ? tomb->version : tombs->summary;
}

static void raise_summary(tr_tombs *tombs, tr_version version) {
    if (tr_version_compare(version, tombs->summary) > 0) tombs->summary = version;
}

static void drop_oldest(tr_tombs *tombs) {
    tr_tomb *tomb = &tombs->ring[tombs->oldest];
    uint32_t *link = chain_of(tombs, tomb->hash);
    while (*link != tombs->oldest) link = &tombs->ring[*link].next;
    *link = tomb->next;
    raise_summary(tombs, tomb->version);
    tombs->oldest = (tombs->oldest + 1) % tombs->capacity;
    tombs->count--;
}

void tr_tombs_add(tr_tombs *tombs, tr_key_hash hash, tr_version version) {
    tr_tomb *known = find(tombs, hash);
    if (known) {
        /* Two keys may share a hash, and then the later erase need not have the larger version. */
        if (tr_version_compare(version, known->version) > 0) known->version = version;
        return;
    }
    if (!tombs->capacity) {
        raise_summary(tombs, version);
        return;
    }
    if (tombs->count == tombs->capacity) drop_oldest(tombs);
    uint32_t place = (uint32_t)(((uint64_t)tombs->oldest + tombs->count++) % tombs->capacity);
    uint32_t *chain = chain_of(tombs, hash);
    tombs->ring[place] = (tr_tomb){hash, version, *chain};
    *chain = place;
}
