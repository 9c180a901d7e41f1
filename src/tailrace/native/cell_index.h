/* The index as its backend sees it: shared buckets, and beside them on the heap the keys that found no place.
 *
 * Each key has two buckets, its hash's first and second, and lies in one of them, or (chained) in the list of its first
 * one, which only the backend itself can look up. At most one key of a tag (the hash as far as the index has it) has a
 * place. When both buckets are full others are moved to their other bucket, along a path that is found before anything
 * moves; a move writes the new place first and empties the old one after, so a key in motion is never nowhere.
 *
 * A bucket's counter is odd while it changes. The overflow bit is never set by hand: it is derived from the chain.
 */
#ifndef TAILRACE_CELL_INDEX_H
#define TAILRACE_CELL_INDEX_H

#include "cell.h"

typedef struct {
    uint32_t id, next;
} tr_chained;

typedef struct {
    uint64_t generation, buckets, config_id;
    tr_word *words;      /* the mapped file */
    uint32_t *chains;    /* by bucket: the first link of its chain, or TR_NONE */
    tr_chained *links;   /* of all chains, and of the unused ones */
    uint32_t links_made, links_room, unused;
    uint64_t chained;
    uint64_t moved; /* keys that went to their other bucket to make room, so far */
} tr_index;

/* A place of the index. */
typedef struct {
    uint64_t bucket;
    uint32_t at;
} tr_spot;

/* Make the file index.GENERATION with empty buckets, in memory that is there before the first write. 0 or an errno. */
int tr_index_make(tr_index *index, int folder, uint64_t generation, uint64_t buckets, uint64_t config_id);

/* Forget the mapping and the heap; the file stays. */
void tr_index_drop(tr_index *index);

/* Give every bucket this configuration id: another one of the cell's, or TR_CELL_REVOKED. */
void tr_index_configure(tr_index *index, uint64_t config_id);

uint64_t tr_index_heap_bytes(const tr_index *index);

/* ---- places */

tr_place tr_spot_read(const tr_index *index, tr_spot spot);
uint64_t tr_spot_high(const tr_index *index, tr_spot spot);
void tr_spot_write(tr_index *index, tr_spot spot, uint64_t high, const tr_place *place);
void tr_spot_empty(tr_index *index, tr_spot spot);

/* Where the key of this tag lies. */
int tr_spot_of(const tr_index *index, tr_key_hash hash, tr_spot *spot);

/* Where the entry of this unit lies, if it is not chained. */
int tr_spot_of_unit(const tr_index *index, uint64_t high, uint32_t unit, tr_spot *spot);

/* An empty place in one of the two buckets, if need be by moving others out of the way. False: there is none near. */
int tr_spot_make(tr_index *index, uint64_t high, tr_spot *spot);

/* ---- chains */

/* Memory for one more. 0 or ENOMEM. */
int tr_chain_reserve(tr_index *index);
void tr_chain_add(tr_index *index, uint64_t bucket, uint32_t id);
void tr_chain_remove(tr_index *index, uint64_t bucket, uint32_t id);

/* for (link = tr_chain_begin(…); link; link = tr_chain_next(…)) link->id */
static inline const tr_chained *tr_chain_at(const tr_index *index, uint32_t link) {
    return link == TR_NONE ? NULL : &index->links[link];
}

static inline const tr_chained *tr_chain_begin(const tr_index *index, uint64_t bucket) {
    return tr_chain_at(index, index->chains[bucket]);
}

static inline const tr_chained *tr_chain_next(const tr_index *index, const tr_chained *link) {
    return tr_chain_at(index, link->next);
}

#endif
