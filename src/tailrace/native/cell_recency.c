#include "cell_recency.h"

enum { ONCE = 1, AGAIN = 2 }; /* arc's lists */
enum { OLDER = 0, NEWER = 1 };

#define LIST_SHIFT 30 /* a link's upper two bits: the list its record is in. Records are numbered below. */
#define NOBODY ((1u << LIST_SHIFT) - 1)

static uint32_t linked(const tr_recency *recency, uint32_t id, int side) {
    uint32_t other = tr_column_at(&recency->links, id)[side] & NOBODY;
    return other == NOBODY ? TR_NONE : other;
}

static void link_to(tr_recency *recency, uint32_t id, int side, uint32_t other) {
    uint32_t *link = tr_column_at(&recency->links, id) + side;
    *link = (*link & ~NOBODY) | (other & NOBODY);
}

static uint32_t list_of(const tr_recency *recency, uint32_t id) {
    return tr_column_at(&recency->links, id)[OLDER] >> LIST_SHIFT;
}

void tr_recency_open(tr_recency *recency, tr_policy policy, int aged) {
    *recency = (tr_recency){.policy = policy, .aged = aged, .links.width = 2, .ages.width = 1};
    for (int i = 0; i < 3; i++) recency->lists[i] = (tr_order){TR_NONE, TR_NONE, 0};
}

void tr_recency_close(tr_recency *recency) {
    tr_column_close(&recency->links);
    tr_column_close(&recency->ages);
    tr_ghosts_close(&recency->ghosts);
}

int tr_recency_reach(tr_recency *recency, uint32_t count) {
    int failed = tr_column_reach(&recency->links, count);
    return failed || !recency->aged ? failed : tr_column_reach(&recency->ages, count);
}

int tr_recency_has(const tr_recency *recency, uint32_t id) { return list_of(recency, id) != 0; }

static void take_out(tr_recency *recency, uint32_t id) {
    tr_order *list = &recency->lists[list_of(recency, id)];
    uint32_t older = linked(recency, id, OLDER), newer = linked(recency, id, NEWER);
    if (older == TR_NONE)
        list->oldest = newer;
    else
        link_to(recency, older, NEWER, newer);
    if (newer == TR_NONE)
        list->newest = older;
    else
        link_to(recency, newer, OLDER, older);
    list->count--;
    tr_column_at(&recency->links, id)[OLDER] = 0;
}

static void put_newest(tr_recency *recency, uint32_t id, uint32_t number) {
    tr_order *list = &recency->lists[number];
    uint32_t *links = tr_column_at(&recency->links, id);
    links[OLDER] = number << LIST_SHIFT | (list->newest & NOBODY);
    links[NEWER] = NOBODY;
    if (list->newest == TR_NONE)
        list->oldest = id;
    else
        link_to(recency, list->newest, NEWER, id);
    list->newest = id;
    list->count++;
    if (recency->aged) *tr_column_at(&recency->ages, id) = recency->now++;
}

static uint64_t at_least_one(uint64_t number) { return number ? number : 1; }

/* A key comes anew. Its ghost, if there is one, says that its list was too small: the more, the rarer such ghosts. */
static uint32_t list_for(tr_recency *recency, tr_key_hash hash) {
    if (recency->policy != TR_ARC) return ONCE;
    uint64_t once = recency->ghosts.queues[0].count, again = recency->ghosts.queues[1].count;
    uint64_t stored = (uint64_t)recency->lists[ONCE].count + recency->lists[AGAIN].count;
    switch (tr_ghosts_take(&recency->ghosts, hash)) {
    case 0:
        recency->share += at_least_one(again / once);
        if (recency->share > stored) recency->share = stored;
        return AGAIN;
    case 1:
        once = at_least_one(once / again);
        recency->share = recency->share > once ? recency->share - once : 0;
        return AGAIN;
    default:
        return ONCE;
    }
}

void tr_recency_added(tr_recency *recency, uint32_t id, tr_key_hash hash) {
    put_newest(recency, id, list_for(recency, hash));
}

void tr_recency_modified(tr_recency *recency, uint32_t id) {
    take_out(recency, id);
    put_newest(recency, id, recency->policy == TR_ARC ? AGAIN : ONCE);
}

void tr_recency_used(tr_recency *recency, uint32_t id) {
    if (recency->policy != TR_LRM) tr_recency_modified(recency, id);
}

void tr_recency_forgotten(tr_recency *recency, uint32_t id) { take_out(recency, id); }

/* Ghosts of the first list and it have as many members together as are stored, and all four lists twice as many. */
void tr_recency_evicted(tr_recency *recency, uint32_t id, tr_key_hash hash) {
    uint32_t number = list_of(recency, id);
    uint64_t stored = (uint64_t)recency->lists[ONCE].count + recency->lists[AGAIN].count;
    take_out(recency, id);
    if (recency->policy != TR_ARC) return;
    tr_ghost_queue *queues = recency->ghosts.queues;
    tr_ghosts_add(&recency->ghosts, number == ONCE ? 0 : 1, hash);
    if (recency->share > stored) recency->share = stored;
    while (queues[0].count && recency->lists[ONCE].count + (uint64_t)queues[0].count > stored)
        tr_ghosts_drop_oldest(&recency->ghosts, 0);
    while (queues[1].count && stored - 1 + queues[0].count + queues[1].count > 2 * stored)
        tr_ghosts_drop_oldest(&recency->ghosts, 1);
}

uint32_t tr_recency_next(const tr_recency *recency, uint32_t spared) {
    uint32_t number = recency->policy != TR_ARC || recency->lists[ONCE].count > recency->share ? ONCE : AGAIN;
    for (int tries = 0; tries < 2; tries++, number = ONCE + AGAIN - number) {
        uint32_t id = recency->lists[number].oldest;
        if (id != TR_NONE && id == spared) id = linked(recency, id, NEWER);
        if (id != TR_NONE) return id;
    }
    return TR_NONE;
}

uint32_t tr_recency_after(const tr_recency *recency, uint32_t id) { return linked(recency, id, NEWER); }

int tr_recency_older(const tr_recency *recency, uint32_t a, uint32_t b) {
    /* Ages are counted back from now, so that the counter may turn over. */
    return recency->now - *tr_column_at(&recency->ages, a) > recency->now - *tr_column_at(&recency->ages, b);
}

uint64_t tr_recency_heap_bytes(const tr_recency *recency) {
    return tr_column_bytes(&recency->links) + tr_column_bytes(&recency->ages) + tr_ghosts_heap_bytes(&recency->ghosts);
}
