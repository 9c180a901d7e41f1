/* What a backend does with its memory. One caller at a time: whoever calls holds the cell's lock, see tr_cell_lock.
 *
 * A record on the heap stands for each stored key. It is in the order of recency, in a slab's slot, and either in one
 * of its two buckets or (chained) in the list of keys that found no place there, which only the backend can look up.
 *
 * A mutation applies only if its version is above the key's floor: the stored version, or for a key that is not stored
 * its tombstone and the summary. Whatever is dropped without a tombstone (evicted, expired) raises the summary.
 */
#ifndef TAILRACE_CELL_STORE_H
#define TAILRACE_CELL_STORE_H

#include "cell.h"
#include "cell_recency.h"
#include "cell_tombs.h"

typedef enum {
    TR_APPLIED = 0,
    TR_STALE = 1,     /* the version does not grow */
    TR_MISMATCH = 2,  /* compare-and-set: another version is stored */
    TR_TOO_LARGE = 3, /* the entry would not fit a slab */
    TR_NO_ROOM = 4,   /* no memory, with nothing left to evict */
    TR_AHEAD = 5,     /* the version's clock is too far ahead; for who checks clocks, which a cell does not */
} tr_outcome;

typedef struct {
    uint64_t reserve_bytes, capacity_bytes, buckets, config_id;
    uint32_t tombstones;
    tr_policy policy;
    int chaining; /* keep keys that find no place in their buckets; else they take another's */
} tr_cell_config;

typedef struct {
    uint64_t records, chained, used_bytes, populated_bytes, joined_bytes, index_bytes, heap_bytes;
    uint64_t buckets, generation, growths, growths_failed, moved;
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

/* Which instance of a backend this is: views see it in the head. */
uint64_t tr_cell_instance(const tr_cell *cell);

/* Let go of folder and memory, once nobody holds the lock. The cell itself stays, to tell latecomers that it is shut,
 * until it is freed. */
void tr_cell_close(tr_cell *cell);

/* The same, and its files go: views notice and find nothing. */
void tr_cell_remove(tr_cell *cell);
void tr_cell_free(tr_cell *cell);

/* Make one huge page of memory that has many small ones; nobody closes the cell meanwhile. False: nothing more to do for
 * now. */
int tr_cell_join(tr_cell *cell);

/* Every other call below is made between these two. False: the cell is shut, and the lock is not held. Nothing that
 * waits, and no interpreter, may be called while it is held. */
int tr_cell_lock(tr_cell *cell);
void tr_cell_unlock(tr_cell *cell);

/* Without waiting: 1 locked, 0 somebody else has it, -1 shut. */
int tr_cell_try_lock(tr_cell *cell);

/* With `expected`, only if that version is stored; a zero version there means: only if nothing is. */
tr_outcome tr_cell_set(tr_cell *cell, tr_slice key, tr_slice value, tr_version version, uint32_t expiry_s,
                       uint32_t now_s, const tr_version *expected);
tr_outcome tr_cell_erase(tr_cell *cell, tr_slice key, tr_version version);
int tr_cell_get(tr_cell *cell, tr_slice key, uint32_t now_s, tr_item *item);
void tr_cell_touch(tr_cell *cell, tr_key_hash hash);

/* The version that a mutation of this key has to exceed. */
tr_version tr_cell_floor(const tr_cell *cell, tr_slice key);

/* Look at up to `budget` keys, in as many buckets at most, and drop the expired; then evict up to `budget` above the
 * watermark. How many went. A chain is looked through as a whole. */
uint64_t tr_cell_collect(tr_cell *cell, uint32_t now_s, uint64_t budget);

/* Another configuration for the same memory: views notice and look at the head again. */
void tr_cell_configure(tr_cell *cell, uint64_t config_id);

/* Records by number, from 0 to tr_cell_records: false where there is none. A stored key keeps its number. */
uint32_t tr_cell_records(const tr_cell *cell);
int tr_cell_item_at(const tr_cell *cell, uint32_t number, tr_item *item);

/* What is stored under this hash, expired or not, chained or not. Of two keys that share it, one. */
int tr_cell_item_of(const tr_cell *cell, tr_key_hash hash, tr_item *item);

/* What was erased, from the oldest on: number < stats.tombstones. Keys that were set again since are among them. */
tr_gone tr_cell_gone_at(const tr_cell *cell, uint32_t number);
tr_cell_stats tr_cell_look(const tr_cell *cell);

/* Clients' mutations at or below this are stale from now on, whatever is stored; repairs are not. It only rises. */
void tr_cell_fence(tr_cell *cell, tr_version version);
tr_version tr_cell_fenced(const tr_cell *cell);

#endif
