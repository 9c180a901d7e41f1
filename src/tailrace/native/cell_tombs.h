/* The versions of erased keys: a bounded, fully associative cache of tombstones, and one summary for all that fell out.
 *
 * A key that is not stored may be written only with a version above its tombstone's and above the summary.
 * The summary is the largest version that fell out, so it may refuse too much but never lets an erased value come back.
 * Tombstones fall out in the order in which their keys were first erased, which is nearly that of their versions.
 */
#ifndef TAILRACE_CELL_TOMBS_H
#define TAILRACE_CELL_TOMBS_H

#include "cell.h"

typedef struct {
    tr_key_hash hash;
    tr_version version;
    uint32_t next; /* in its chain of the table */
} tr_tomb;

typedef struct {
    tr_tomb *ring;
    uint32_t *table; /* heads of chains, by hash */
    uint32_t capacity, count, oldest, table_mask;
    tr_version summary;
} tr_tombs;

int tr_tombs_open(tr_tombs *tombs, uint32_t capacity);
void tr_tombs_close(tr_tombs *tombs);

/* The version that a key which is not stored has to exceed. */
tr_version tr_tombs_floor(const tr_tombs *tombs, tr_key_hash hash);
void tr_tombs_add(tr_tombs *tombs, tr_key_hash hash, tr_version version);

#endif
