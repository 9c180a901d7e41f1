/* What backends tell each other to stay whole: sums, lists and entries of the keys they share.
 *
 * Keys with the same home have the same replicas. They are divided in partitions by their hash, and equal digests of a
 * partition mean equal keys at equal versions, so that a healthy cell exchanges a few hundred bytes.
 *
 * Records are looked at in runs, and mutations get their turn in between: a key that stays stored is told once, as it
 * is when its turn comes.
 */
#ifndef TAILRACE_CELL_COHORT_H
#define TAILRACE_CELL_COHORT_H

#include "cell_place.h"
#include "cell_store.h"

enum { TR_PARTITIONS = 64 };

typedef struct {
    tr_key_hash hash;
    tr_version version;
} tr_known;

_Static_assert(sizeof(tr_known) == 32, "docs/formats/mutations.md");

static inline uint32_t tr_partition_of(tr_key_hash hash) { return (uint32_t)(hash.high & (TR_PARTITIONS - 1)); }

/* Bytes that grow. */
typedef struct {
    uint8_t *at;
    uint64_t count, room;
} tr_buffer;

uint8_t *tr_buffer_more(tr_buffer *buffer, uint64_t bytes); /* NULL: no memory */
void tr_buffer_free(tr_buffer *buffer);

/* Add to each partition's digest what is stored of the keys at home in `home`. 0, or ESHUTDOWN as all of these when
 * the cell is closed meanwhile. */
int tr_cohort_digest(tr_cell *cell, uint32_t home, uint32_t backends, uint64_t digests[TR_PARTITIONS]);

/* tr_known of all stored keys at home there, and in those partitions (a bit each). 0 or ENOMEM. */
int tr_cohort_list(tr_cell *cell, uint32_t home, uint32_t backends, uint64_t partitions, tr_buffer *list);

/* A frame that sets what is stored under these hashes, as it is stored. Stops before the frame is larger than
 * bytes_max, but for a single entry; says how many hashes it got through. 0 or ENOMEM. */
int tr_cohort_fetch(tr_cell *cell, const tr_key_hash *hashes, uint64_t count, uint64_t bytes_max, tr_buffer *frame,
                    uint64_t *done);

#endif
