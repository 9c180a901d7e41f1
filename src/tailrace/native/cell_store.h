/* What a backend does with its memory. One writer at a time: callers take turns.
 *
 * A record on the heap stands for each stored key. It is in the order of recency, in a slab's slot, and either in its
 * bucket or (chained) in the list of keys that found no place there, which only the backend itself can look up.
 *
 * A mutation applies only if its version is above the key's floor: the stored version, or for a key that is not stored
 * its tombstone and the summary. Evicted and expired keys leave no floor behind; erased ones do.
 */
#ifndef TAILRACE_CELL_STORE_H
#define TAILRACE_CELL_STORE_H

#include "cell.h"

typedef enum {
    TR_APPLIED = 0,
    TR_STALE = 1,     /* the version does not grow */
    TR_MISMATCH = 2,  /* compare-and-set: another version is stored */
    TR_TOO_LARGE = 3, /* the entry would not fit a slab */
    TR_NO_ROOM = 4,   /* no memory, with nothing left to evict */
} tr_outcome;

typedef struct {
    uint64_t reserve_bytes, capacity_bytes, buckets, config_id;
    uint32_t tombstones;
    int by_use;   /* evict the least recently used instead of the least recently modified */
    int chaining; /* keep keys that find no place in their bucket; else they take another's */
} tr_cell_config;

typedef struct {
    uint64_t records, chained, used_bytes, populated_bytes, buckets, generation, growths, growths_failed;
    uint64_t evicted_capacity, evicted_associativity, expired, tombstones, touched;
    tr_version summary;
} tr_cell_stats;

typedef struct {
    tr_slice key, value; /* in the cell's memory: copy before the next mutation */
    tr_key_hash hash;
    tr_version version;
    uint32_t expiry_s;
} tr_item;

typedef struct tr_cell tr_cell;

/* 0, or an errno with the step that failed in `why` (TR_WHY_BYTES). */
int tr_cell_open(tr_cell **opened, const char *folder, const tr_cell_config *config, char *why);
void tr_cell_close(tr_cell *cell);

/* With `expected`, only if that version is stored; a zero version there means: only if nothing is. */
tr_outcome tr_cell_set(tr_cell *cell, tr_slice key, tr_slice value, tr_version version, uint32_t expiry_s,
                       uint32_t now_s, const tr_version *expected);
tr_outcome tr_cell_erase(tr_cell *cell, tr_slice key, tr_version version);
int tr_cell_get(tr_cell *cell, tr_slice key, uint32_t now_s, tr_item *item);
void tr_cell_touch(tr_cell *cell, tr_key_hash hash);

/* Look at up to `budget` records for expired ones, then evict up to `budget` above the watermark. How many went. */
uint64_t tr_cell_collect(tr_cell *cell, uint32_t now_s, uint64_t budget);

/* Another configuration for the same memory: readers notice and look at the head again. */
void tr_cell_configure(tr_cell *cell, uint64_t config_id);

/* Records by number, from 0 to tr_cell_records: false where there is none. A stored key keeps its number. */
uint32_t tr_cell_records(const tr_cell *cell);
int tr_cell_item_at(tr_cell *cell, uint32_t number, tr_item *item);
tr_cell_stats tr_cell_look(const tr_cell *cell);

#endif
