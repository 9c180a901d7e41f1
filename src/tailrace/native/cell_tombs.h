/* The versions of keys that are gone: a bounded, fully associative cache of tombstones for erased ones, and one summary
 * for all that left no trace of their own.
 *
 * A key that is not stored may be written only with a version above its tombstone's and above the summary.
 * The summary is the largest version that was dropped, so it may refuse too much but never lets an older value come
 * back. Tombstones fall out in the order in which their keys were first erased, which is nearly that of their versions.
 */
#ifndef TAILRACE_CELL_TOMBS_H
#define TAILRACE_CELL_TOMBS_H

#include "cell.h"

typedef struct {
    tr_key_hash hash;
    tr_version version;
} tr_gone;

typedef struct {
    tr_gone gone;
    uint32_t next; /* in its chain of the table */
} tr_tomb;

typedef struct {
    tr_tomb *ring;
    uint32_t *table;                        /* heads of chains, by hash; as many as the ring has room */
    uint32_t capacity, room, count, oldest; /* the ring grows up to its capacity before it turns */
    tr_version summary;
} tr_tombs;

void tr_tombs_open(tr_tombs *tombs, uint32_t capacity);
void tr_tombs_close(tr_tombs *tombs);

/* The version that a key which is not stored has to exceed. */
tr_version tr_tombs_floor(const tr_tombs *tombs, tr_key_hash hash);
void tr_tombs_add(tr_tombs *tombs, tr_key_hash hash, tr_version version);

/* Something of this version was dropped. */
void tr_tombs_raise(tr_tombs *tombs, tr_version version);

/* The tombstones from the oldest on: number < count. */
static inline tr_gone tr_tombs_at(const tr_tombs *tombs, uint32_t number) {
    return tombs->ring[((uint64_t)tombs->oldest + number) % tombs->room].gone;
}

uint64_t tr_tombs_heap_bytes(const tr_tombs *tombs);

#endif
