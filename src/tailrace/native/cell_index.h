/* The index as its one writer sees it: shared buckets, and beside them on the heap who lies where.
 *
 * Between tr_bucket_open and tr_bucket_close the bucket's counter is odd. The overflow bit is never set by hand:
 * closing a bucket derives it from the chain, so the two cannot disagree.
 */
#ifndef TAILRACE_CELL_INDEX_H
#define TAILRACE_CELL_INDEX_H

#include "cell.h"

typedef struct {
    uint64_t generation, buckets, config_id;
    tr_word *words;   /* the mapped file */
    uint32_t *owners; /* by bucket and entry: whose it is, or TR_NONE */
    uint32_t *chains; /* by bucket: the first record that found no place in it, or TR_NONE */
} tr_index;

static inline tr_word *tr_bucket_at(const tr_index *index, uint64_t bucket) {
    return index->words + bucket * (TR_BUCKET_BYTES / 8);
}

static inline uint32_t *tr_owners_at(const tr_index *index, uint64_t bucket) {
    return index->owners + bucket * TR_BUCKET_ENTRIES;
}

/* Make the file index.GENERATION with empty buckets, in memory that is there before the first write. 0 or an errno. */
int tr_index_make(tr_index *index, int folder, uint64_t generation, uint64_t buckets, uint64_t config_id);

/* Forget the mapping and the heap; the file stays. */
void tr_index_drop(tr_index *index);

/* Give every bucket this configuration id: another one of the cell's, or TR_CELL_REVOKED. */
void tr_index_configure(tr_index *index, uint64_t config_id);

void tr_bucket_open(tr_index *index, uint64_t bucket);
void tr_bucket_put(tr_index *index, uint64_t bucket, uint32_t entry, const tr_index_entry *content); /* NULL: empty */
void tr_bucket_close(tr_index *index, uint64_t bucket);
tr_key_hash tr_bucket_hash(const tr_index *index, uint64_t bucket, uint32_t entry);

/* ---- the folder */

enum { TR_INDEX_NAME_BYTES = 32 };
void tr_index_name(char *name, uint64_t generation);

/* A head begins as head.new, which marks the folder as a cell's, and gets its name when the rest is complete. From then
 * on it changes in place. Sum and counter are filled in. 0 or an errno. */
int tr_head_make(tr_word **mapped, int folder, tr_cell_head *head);
int tr_head_publish(int folder);
void tr_head_write(tr_word *mapped, tr_cell_head *head);

/* Take from its readers what an earlier backend left in the folder, and unlink it. 0 or an errno. */
int tr_folder_clear(int folder);

#endif
