#include "cell_ghosts.h"

#include <stdlib.h>

#define SECOND (1u << 31)

static uint32_t tag_of(tr_key_hash hash) {
    uint64_t mixed = (hash.low ^ hash.high << 1) * 0x9E3779B97F4A7C15u;
    uint32_t tag = (uint32_t)(mixed >> 32);
    return tag ? tag : 1;
}

void tr_ghosts_close(tr_ghosts *ghosts) {
    free(ghosts->queues[0].ring);
    free(ghosts->queues[1].ring);
    free(ghosts->table);
    *ghosts = (tr_ghosts){0};
}

/* ---- the table: linear probing, and what leaves draws those behind it nearer */

static uint32_t home_of(const tr_ghosts *ghosts, uint32_t tag) {
    return (uint32_t)((uint64_t)tag * ghosts->table_room >> 32);
}

static uint32_t tag_at(const tr_ghosts *ghosts, uint32_t reference) {
    return ghosts->queues[reference & SECOND ? 1 : 0].ring[(reference & ~SECOND) - 1];
}

static void refer(tr_ghosts *ghosts, uint32_t tag, uint32_t reference) {
    uint32_t at = home_of(ghosts, tag);
    while (ghosts->table[at]) at = at + 1 < ghosts->table_room ? at + 1 : 0;
    ghosts->table[at] = reference;
}

static void forget_at(tr_ghosts *ghosts, uint32_t hole) {
    uint32_t room = ghosts->table_room;
    for (uint32_t at = hole;;) {
        at = at + 1 < room ? at + 1 : 0;
        uint32_t reference = ghosts->table[at];
        if (!reference) break;
        uint32_t home = home_of(ghosts, tag_at(ghosts, reference));
        /* It may fill the hole unless its home lies behind the hole, on the way from there to where it is. */
        if ((at + room - home) % room < (at + room - hole) % room) continue;
        ghosts->table[hole] = reference;
        hole = at;
    }
    ghosts->table[hole] = 0;
}

static void forget(tr_ghosts *ghosts, uint32_t tag, uint32_t reference) {
    uint32_t at = home_of(ghosts, tag);
    while (ghosts->table[at] != reference) at = at + 1 < ghosts->table_room ? at + 1 : 0;
    forget_at(ghosts, at);
}

static void refer_to_all(tr_ghosts *ghosts) {
    memset(ghosts->table, 0, ghosts->table_room * sizeof *ghosts->table);
    for (int number = 0; number < 2; number++) {
        const tr_ghost_queue *queue = &ghosts->queues[number];
        for (uint32_t i = 0; i < queue->taken; i++) {
            uint32_t place = (uint32_t)(((uint64_t)queue->first + i) % queue->room);
            if (queue->ring[place]) refer(ghosts, queue->ring[place], (place + 1) | (number ? SECOND : 0));
        }
    }
}

/* At most four fifths of the table are taken. */
static int make_table(tr_ghosts *ghosts) {
    uint32_t needed = ghosts->queues[0].count + ghosts->queues[1].count + 1;
    if ((uint64_t)needed * 5 <= (uint64_t)ghosts->table_room * 4) return 1;
    uint32_t room = needed + needed / 2 + 64;
    uint32_t *table = malloc(room * sizeof *table);
    if (!table) return 0;
    free(ghosts->table);
    ghosts->table = table;
    ghosts->table_room = room;
    refer_to_all(ghosts);
    return 1;
}

/* ---- the queues */

/* A place at the end: holes are squeezed out, and if they were few the ring becomes an eighth larger. */
static int make_place(tr_ghosts *ghosts, tr_ghost_queue *queue) {
    if (queue->taken < queue->room) return 1;
    uint32_t room = queue->count + queue->count / 8 + 64, kept = 0;
    uint32_t *ring = malloc(room * sizeof *ring);
    if (!ring) return 0;
    for (uint32_t i = 0; i < queue->taken; i++) {
        uint32_t tag = queue->ring[((uint64_t)queue->first + i) % queue->room];
        if (tag) ring[kept++] = tag;
    }
    free(queue->ring);
    *queue = (tr_ghost_queue){ring, room, 0, kept, kept};
    if (ghosts->table_room) refer_to_all(ghosts);
    return 1;
}

static void skip_holes(tr_ghost_queue *queue) {
    while (queue->taken && !queue->ring[queue->first]) {
        queue->first = queue->first + 1 < queue->room ? queue->first + 1 : 0;
        queue->taken--;
    }
}

void tr_ghosts_add(tr_ghosts *ghosts, int number, tr_key_hash hash) {
    tr_ghost_queue *queue = &ghosts->queues[number];
    if (!make_place(ghosts, queue) || !make_table(ghosts)) return;
    uint32_t place = (uint32_t)(((uint64_t)queue->first + queue->taken++) % queue->room), tag = tag_of(hash);
    queue->ring[place] = tag;
    queue->count++;
    refer(ghosts, tag, (place + 1) | (number ? SECOND : 0));
}

void tr_ghosts_drop_oldest(tr_ghosts *ghosts, int number) {
    tr_ghost_queue *queue = &ghosts->queues[number];
    skip_holes(queue);
    if (!queue->taken) return;
    forget(ghosts, queue->ring[queue->first], (queue->first + 1) | (number ? SECOND : 0));
    queue->ring[queue->first] = 0;
    queue->count--;
    skip_holes(queue);
}

int tr_ghosts_take(tr_ghosts *ghosts, tr_key_hash hash) {
    uint32_t tag = tag_of(hash);
    if (!ghosts->table_room) return -1;
    for (uint32_t at = home_of(ghosts, tag); ghosts->table[at]; at = at + 1 < ghosts->table_room ? at + 1 : 0) {
        uint32_t reference = ghosts->table[at];
        if (tag_at(ghosts, reference) != tag) continue;
        int number = reference & SECOND ? 1 : 0;
        forget_at(ghosts, at);
        ghosts->queues[number].ring[(reference & ~SECOND) - 1] = 0;
        ghosts->queues[number].count--;
        return number;
    }
    return -1;
}

uint64_t tr_ghosts_heap_bytes(const tr_ghosts *ghosts) {
    return sizeof(uint32_t) * ((uint64_t)ghosts->queues[0].room + ghosts->queues[1].room + ghosts->table_room);
}
