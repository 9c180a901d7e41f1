#define _GNU_SOURCE
#include "cell_index.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cell_folder.h"

enum { SEARCH_BUCKETS = 256 }; /* how many buckets a search for a path looks at; at 94 % load it needs a handful */

/* ---- buckets */

static tr_word *bucket_at(const tr_index *index, uint64_t bucket) { return index->words + bucket * TR_BUCKET_WORDS; }

static tr_word *high_at(const tr_index *index, tr_spot spot) {
    return bucket_at(index, spot.bucket) + TR_HIGH_WORD + spot.at;
}

static tr_word *place_at(const tr_index *index, tr_spot spot) {
    return bucket_at(index, spot.bucket) + TR_PLACE_WORD + spot.at * TR_PLACE_WORDS;
}

/* The counter and the flags share a word, so that they are seen to change together. */
static uint64_t counter_word(uint32_t sequence, uint32_t flags) { return (uint64_t)flags << 32 | sequence; }

static void open_bucket(tr_index *index, uint64_t bucket) {
    tr_word *words = bucket_at(index, bucket);
    uint64_t before = atomic_load_explicit(words, memory_order_relaxed);
    atomic_store_explicit(words, counter_word((uint32_t)before + 1, (uint32_t)(before >> 32)), memory_order_relaxed);
    /* Whoever sees a word that is written from here on sees the odd counter too, once past an acquire fence. */
    atomic_thread_fence(memory_order_release);
}

static void close_bucket(tr_index *index, uint64_t bucket) {
    tr_word *words = bucket_at(index, bucket);
    uint32_t sequence = (uint32_t)atomic_load_explicit(words, memory_order_relaxed) + 1;
    uint32_t flags = index->chains[bucket] == TR_NONE ? 0 : TR_CELL_OVERFLOW;
    atomic_store_explicit(words, counter_word(sequence, flags), memory_order_release);
}

void tr_index_configure(tr_index *index, uint64_t config_id) {
    for (uint64_t bucket = 0; bucket < index->buckets; bucket++) {
        open_bucket(index, bucket);
        atomic_store_explicit(bucket_at(index, bucket) + 1, config_id, memory_order_relaxed);
        close_bucket(index, bucket);
    }
    index->config_id = config_id;
}

/* ---- places */

tr_place tr_spot_read(const tr_index *index, tr_spot spot) {
    tr_place place;
    tr_words_read(&place, place_at(index, spot), sizeof place);
    return place;
}

static uint32_t size_at(const tr_index *index, tr_spot spot) {
    return (uint32_t)atomic_load_explicit(place_at(index, spot) + offsetof(tr_place, size) / 8, memory_order_relaxed);
}

uint64_t tr_spot_high(const tr_index *index, tr_spot spot) {
    return atomic_load_explicit(high_at(index, spot), memory_order_relaxed);
}

void tr_spot_write(tr_index *index, tr_spot spot, uint64_t high, const tr_place *place) {
    open_bucket(index, spot.bucket);
    atomic_store_explicit(high_at(index, spot), high, memory_order_relaxed);
    tr_words_write(place_at(index, spot), place, sizeof *place);
    close_bucket(index, spot.bucket);
}

void tr_spot_empty(tr_index *index, tr_spot spot) {
    static const tr_place nothing;
    tr_spot_write(index, spot, 0, &nothing);
}

static int find_in(const tr_index *index, uint64_t bucket, tr_key_hash hash, tr_spot *spot) {
    *spot = (tr_spot){bucket, 0};
    for (; spot->at < TR_BUCKET_ENTRIES; spot->at++) {
        if (tr_spot_high(index, *spot) != hash.high) continue;
        tr_place place = tr_spot_read(index, *spot);
        if (place.size && place.low == (uint32_t)hash.low) return 1;
    }
    return 0;
}

int tr_spot_of(const tr_index *index, tr_key_hash hash, tr_spot *spot) {
    return find_in(index, tr_bucket_first(hash.high, index->buckets), hash, spot) ||
           find_in(index, tr_bucket_second(hash.high, index->buckets), hash, spot);
}

int tr_spot_of_unit(const tr_index *index, uint64_t high, uint32_t unit, tr_spot *spot) {
    uint64_t buckets[2] = {tr_bucket_first(high, index->buckets), tr_bucket_second(high, index->buckets)};
    for (int i = 0; i < 2; i++) {
        *spot = (tr_spot){buckets[i], 0};
        for (; spot->at < TR_BUCKET_ENTRIES; spot->at++) {
            tr_place place = tr_spot_read(index, *spot);
            if (place.size && place.unit == unit) return 1;
        }
    }
    return 0;
}

/* ---- making a place */

typedef struct {
    uint64_t bucket;
    int parent; /* the step whose bucket has … */
    uint32_t at; /* … at this place a key that may move here */
} step;

static int empty_in(const tr_index *index, uint64_t bucket, tr_spot *spot) {
    *spot = (tr_spot){bucket, 0};
    for (; spot->at < TR_BUCKET_ENTRIES; spot->at++)
        if (!size_at(index, *spot)) return 1;
    return 0;
}

static int among(const step *steps, int count, uint64_t bucket) {
    for (int i = 0; i < count; i++)
        if (steps[i].bucket == bucket) return 1;
    return 0;
}

static uint64_t other_bucket(const tr_index *index, uint64_t high, uint64_t bucket) {
    uint64_t first = tr_bucket_first(high, index->buckets);
    return bucket == first ? tr_bucket_second(high, index->buckets) : first;
}

/* Breadth first, so that the fewest keys move: from our two buckets to those where their keys could be instead. The
 * step that has an empty place, or -1. No bucket comes twice, so a path never crosses itself. */
static int search(const tr_index *index, uint64_t high, step *steps, tr_spot *empty) {
    int count = 0;
    steps[count++] = (step){tr_bucket_first(high, index->buckets), -1, 0};
    if (index->buckets > 1) steps[count++] = (step){tr_bucket_second(high, index->buckets), -1, 0};
    for (int i = 0; i < count; i++) {
        if (empty_in(index, steps[i].bucket, empty)) return i;
        for (uint32_t at = 0; at < TR_BUCKET_ENTRIES && count < SEARCH_BUCKETS; at++) {
            uint64_t held = tr_spot_high(index, (tr_spot){steps[i].bucket, at});
            uint64_t other = other_bucket(index, held, steps[i].bucket);
            if (!among(steps, count, other)) steps[count++] = (step){other, i, at};
        }
    }
    return -1;
}

int tr_spot_make(tr_index *index, uint64_t high, tr_spot *spot) {
    step steps[SEARCH_BUCKETS];
    int last = search(index, high, steps, spot);
    if (last < 0) return 0;
    for (int i = last; steps[i].parent >= 0; i = steps[i].parent) {
        tr_spot from = {steps[steps[i].parent].bucket, steps[i].at};
        tr_place moved = tr_spot_read(index, from);
        tr_spot_write(index, *spot, tr_spot_high(index, from), &moved);
        tr_spot_empty(index, from);
        *spot = from;
        index->moved++;
    }
    return 1;
}

/* ---- chains */

int tr_chain_reserve(tr_index *index) {
    if (index->unused != TR_NONE || index->links_made < index->links_room) return 0;
    uint32_t room = index->links_room ? 2 * index->links_room : 64;
    tr_chained *more = realloc(index->links, room * sizeof *more);
    if (!more) return ENOMEM;
    index->links = more;
    index->links_room = room;
    return 0;
}

void tr_chain_add(tr_index *index, uint64_t bucket, uint32_t id) {
    uint32_t link = index->unused;
    if (link != TR_NONE)
        index->unused = index->links[link].next;
    else
        link = index->links_made++;
    index->links[link] = (tr_chained){id, index->chains[bucket]};
    index->chained++;
    open_bucket(index, bucket);
    index->chains[bucket] = link;
    close_bucket(index, bucket);
}

void tr_chain_remove(tr_index *index, uint64_t bucket, uint32_t id) {
    uint32_t *at = &index->chains[bucket];
    while (index->links[*at].id != id) at = &index->links[*at].next;
    uint32_t link = *at;
    open_bucket(index, bucket);
    *at = index->links[link].next;
    close_bucket(index, bucket);
    index->links[link].next = index->unused;
    index->unused = link;
    index->chained--;
}

/* ---- the whole */

int tr_index_make(tr_index *index, int folder, uint64_t generation, uint64_t buckets, uint64_t config_id) {
    char name[TR_INDEX_NAME_BYTES];
    tr_index_name(name, generation);
    *index = (tr_index){.generation = generation, .buckets = buckets, .config_id = config_id, .unused = TR_NONE};
    index->chains = malloc(buckets * sizeof *index->chains);
    int failed = index->chains ? tr_file_make(&index->words, folder, name, buckets * TR_BUCKET_BYTES) : ENOMEM;
    if (failed) {
        tr_index_drop(index);
        return failed;
    }
    memset(index->chains, 0xFF, buckets * sizeof *index->chains);
    tr_index_configure(index, config_id);
    return 0;
}

void tr_index_drop(tr_index *index) {
    if (index->words) munmap(index->words, index->buckets * TR_BUCKET_BYTES);
    free(index->chains);
    free(index->links);
    *index = (tr_index){0};
}

uint64_t tr_index_heap_bytes(const tr_index *index) {
    return index->buckets * sizeof *index->chains + index->links_room * sizeof *index->links;
}
