/* One question to a cell's memory: what was asked, what the index said, how far it got. And what an answer must prove.
 *
 * It does not matter who looked and who copied: a view in its own mapping, or an engine on another host. Neither is
 * trusted. Who asked holds the key, so who asked decides.
 */
#ifndef TAILRACE_CELL_PROBE_H
#define TAILRACE_CELL_PROBE_H

#include "cell.h"

typedef enum {
    TR_PROBE_NEW = 0,
    TR_PROBE_FOUND = 1,     /* in the index: make room for value_bytes, then fetch */
    TR_PROBE_HIT = 2,       /* fetched and checked */
    TR_PROBE_MISS = 3,
    TR_PROBE_ASK = 4,       /* missed, but the bucket has overflowed: the backend may have it */
    TR_PROBE_UNSETTLED = 5, /* changing whenever looked at, or damaged: not decided */
    TR_PROBE_REVOKED = 6,   /* the index is another one by now: map again */
    TR_PROBE_DOWN = 7,      /* whoever should have looked did not answer */
} tr_probe_state;

/* How the index looked when an entry was found in it, and how often it was looked at. Begins as zeros; only the view
 * knows what is inside. */
typedef struct {
    uint64_t counters[2]; /* of the first and the second bucket, with their flags */
    uint32_t rounds;
    uint32_t found; /* in which of them */
} tr_sight;

typedef struct {
    tr_slice key;
    tr_key_hash hash;
    tr_index_entry entry;
    tr_sight sight;
    uint32_t value_bytes;
    tr_probe_state state;
    const uint8_t *data; /* link only: the value's bytes, already checked, until the link's next question */
    /* link only: memory of who asked, where the value may be received; or NULL, which it may become at any time. Then
     * `data` is there, for as long as who asked likes. Unless it is a HIT, anything may be there. */
    uint8_t *place;
} tr_probe;

_Static_assert(sizeof(tr_probe) <= 128, "two lines of the processor's cache: batches are full of them");

/* What the index will say is left as it was: zeros there cost more than all the rest. */
static inline void tr_probe_begin(tr_probe *probe, tr_slice key, tr_key_hash hash, tr_probe_state state) {
    probe->key = key;
    probe->hash = hash;
    probe->sight = (tr_sight){0};
    probe->value_bytes = 0;
    probe->state = state;
    probe->data = NULL;
    probe->place = NULL;
}

/* Where the value begins in a raw data entry of this probe's key. */
static inline uint64_t tr_probe_value_at(const tr_probe *probe) { return tr_entry_size(probe->key.count, 0); }

/* The index has the probe's entry for our hash: how large is the value? False: no entry of our key can be so small or
 * so large, so another key has our hash, or this is damage. */
static inline int tr_probe_accept(tr_probe *probe) {
    const uint32_t size = probe->entry.size, value_at = (uint32_t)tr_probe_value_at(probe);
    if (size > TR_SLAB_BYTES || size < tr_probe_value_at(probe)) return 0;
    probe->value_bytes = size - value_at;
    return 1;
}

/* Everything that a raw copy of a data entry must prove, whoever copied it: that its header agrees with the index entry
 * that was accepted, that the whole key is ours, and that the sum is right, which covers the head's instance and the
 * entry's offset, too. `raw`: entry.size bytes, header | key, padded | value. */
int tr_entry_proves(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw);

/* The same in two steps, for a value that does not lie behind its header and key: first what those must prove, then the
 * sum over everything. */
int tr_entry_begins(const tr_probe *probe, const uint8_t *raw);
int tr_entry_ends(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw, const uint8_t *value);

/* The first part of it, for who has the key and the sum elsewhere: the header says what the index entry said. */
static inline int tr_header_agrees(const tr_probe *probe, const tr_data_header *header) {
    return header->key_bytes == probe->key.count && header->value_bytes == probe->value_bytes &&
           header->expiry_s == probe->entry.expiry_s && !tr_version_compare(header->version, probe->entry.version);
}

/* The entry is whole, but of another key with our hash. Ours can only be chained: ask the backend. */
int tr_entry_foreign(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw);

#endif
