/* Who goes next? The order in which records may be evicted, and all that feeds it.
 *
 *   lrm   least recently modified: setting a key makes it the newest, reading it changes nothing
 *   lru   least recently used: reading does as well
 *   arc   two lists, of keys that came once and of keys that came again, and ghosts of what either lost. A ghost that
 *         comes back tells which list should have been larger, and the share of the first one moves that way. Keys
 *         that are read through once push out each other, and not those in use.
 *
 * It knows records by number and hash, and nothing of their place or content.
 */
#ifndef TAILRACE_CELL_RECENCY_H
#define TAILRACE_CELL_RECENCY_H

#include "cell_column.h"
#include "cell_ghosts.h"

typedef enum { TR_LRM = 0, TR_LRU = 1, TR_ARC = 2 } tr_policy;

typedef struct {
    uint32_t oldest, newest, count;
} tr_order;

typedef struct {
    tr_policy policy;
    int aged;        /* tr_recency_older is asked, for which each record has an age */
    tr_column links; /* by record: the older one and its list, the newer one */
    tr_column ages;
    tr_order lists[3]; /* [0] stays empty; lrm and lru have only [1] */
    uint64_t share;    /* arc: how many records the first list should have */
    tr_ghosts ghosts;
    uint32_t now; /* counts what happens, for ages */
} tr_recency;

void tr_recency_open(tr_recency *recency, tr_policy policy, int aged);
void tr_recency_close(tr_recency *recency);

/* See to it that records below `count` can be in order. 0 or ENOMEM. */
int tr_recency_reach(tr_recency *recency, uint32_t count);
int tr_recency_has(const tr_recency *recency, uint32_t id);

void tr_recency_added(tr_recency *recency, uint32_t id, tr_key_hash hash);
void tr_recency_modified(tr_recency *recency, uint32_t id);
void tr_recency_used(tr_recency *recency, uint32_t id);

/* Out of the order: evicted for want of room, or gone for a reason that says nothing about it. */
void tr_recency_evicted(tr_recency *recency, uint32_t id, tr_key_hash hash);
void tr_recency_forgotten(tr_recency *recency, uint32_t id);

/* The record to evict next, but not `spared`; then those that would follow it in its list. TR_NONE: no other. */
uint32_t tr_recency_next(const tr_recency *recency, uint32_t spared);
uint32_t tr_recency_after(const tr_recency *recency, uint32_t id);

/* Whether `a` has been left alone for longer than `b`. */
int tr_recency_older(const tr_recency *recency, uint32_t a, uint32_t b);

uint64_t tr_recency_heap_bytes(const tr_recency *recency);

#endif
