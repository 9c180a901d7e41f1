/* The keys that were evicted last, by 32 bits of their hash: enough to recognise most that come back, and to think of
 * one in millions that it does although it never was there. Two queues, of keys seen once and of keys seen more often.
 *
 * A queue is a ring of tags. Leaving from its middle makes a hole, which is squeezed out when the ring is full. One
 * table for both finds a tag's place. Both grow with what is asked of them and never past it.
 */
#ifndef TAILRACE_CELL_GHOSTS_H
#define TAILRACE_CELL_GHOSTS_H

#include "cell.h"

typedef struct {
    uint32_t *ring; /* tags; 0: a hole */
    uint32_t room, first, taken; /* places; the oldest one; how many from there on, holes included */
    uint32_t count;
} tr_ghost_queue;

typedef struct {
    tr_ghost_queue queues[2];
    uint32_t *table; /* 1 + place, with the queue in the top bit; 0: empty */
    uint32_t table_room;
} tr_ghosts;

void tr_ghosts_close(tr_ghosts *ghosts);

/* Without memory the ghost is simply not kept. */
void tr_ghosts_add(tr_ghosts *ghosts, int queue, tr_key_hash hash);
void tr_ghosts_drop_oldest(tr_ghosts *ghosts, int queue);

/* Take the ghost of this key out of its queue. Which one, or -1. */
int tr_ghosts_take(tr_ghosts *ghosts, tr_key_hash hash);

uint64_t tr_ghosts_heap_bytes(const tr_ghosts *ghosts);

#endif
