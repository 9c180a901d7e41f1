/* Many mutations in one frame, as clients pack them and backends apply them. docs/formats/mutations.md is the contract.
 *
 *   frame     0       4        8       16
 *             | magic | layout | count | mutation, at multiples of 8 | mutation | …
 *
 *     mutation  0      4      8        12       16        32         48
 *               | kind | key# | value# | expiry | version | expected | key, zeros up to an 8th byte | value, the same
 *
 * A frame comes from outside: it is checked from end to end before anyone walks it.
 */
#ifndef TAILRACE_CELL_MUTATION_H
#define TAILRACE_CELL_MUTATION_H

#include "cell.h"

#define TR_FRAME_MAGIC 0x4D4C4954u /* "TILM" */

enum {
    TR_FRAME_LAYOUT = 1,
    TR_FRAME_HEADER_BYTES = 16,
    TR_MUTATION_HEADER_BYTES = 48,
    TR_FRAME_COUNT_MAX = 1 << 20,
};

typedef enum {
    TR_MUTATION_SET = 1,
    TR_MUTATION_CAS = 2,
    TR_MUTATION_ERASE = 3,
} tr_mutation_kind;

typedef struct {
    uint32_t magic, layout;
    uint64_t count;
} tr_frame_header;

typedef struct {
    uint32_t kind, key_bytes, value_bytes, expiry_s;
    tr_version version, expected;
} tr_mutation_header;

_Static_assert(sizeof(tr_frame_header) == TR_FRAME_HEADER_BYTES, "docs/formats/mutations.md");
_Static_assert(sizeof(tr_mutation_header) == TR_MUTATION_HEADER_BYTES, "docs/formats/mutations.md");

static inline uint64_t tr_mutation_bytes(uint64_t key_bytes, uint64_t value_bytes) {
    return TR_MUTATION_HEADER_BYTES + tr_padded(key_bytes) + tr_padded(value_bytes);
}

static inline tr_mutation_header tr_mutation_at(const uint8_t *at) {
    tr_mutation_header header;
    memcpy(&header, at, sizeof header);
    return header;
}

/* Write one mutation; the next one goes to what is returned. */
uint8_t *tr_mutation_write(uint8_t *to, const tr_mutation_header *header, const void *key, const void *value);

/* The number of mutations of a frame that is sound from end to end, or -1 with what is wrong in `why`. */
int64_t tr_frame_check(tr_slice frame, char *why);

/* Walk a frame that was checked: start with NULL. The mutation behind `at`, or NULL. */
const uint8_t *tr_frame_next(tr_slice frame, const uint8_t *at);

/* Rung when a frame was applied. It must return soon, and must not mutate. */
typedef struct {
    void (*ring)(void *whose);
    void *whose;
} tr_bell;

/* Whoever takes frames of mutations: a backend in the process of an engine. 0; EINVAL: the frame is wrong, and `why`
 * says where; ESHUTDOWN: no more are taken. Unless 0, nothing was changed. `outcomes` has room for `room` of them.
 * `hang`: a bell that is rung from now on; 0 or ENOSPC. `take_down`: it is not rung any more when that returns. */
typedef struct {
    int (*apply)(void *taker, tr_slice frame, uint8_t *outcomes, uint64_t room, uint64_t *count, tr_version *floor,
                 char *why);
    int (*hang)(void *taker, tr_bell bell);
    void (*take_down)(void *taker, const void *whose);
    void *taker;
} tr_mutator;

#endif
