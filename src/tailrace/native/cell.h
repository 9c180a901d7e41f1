/* The memory of one cell backend: its own process writes it, others read it. docs/formats/cells.md is the contract.
 *
 *   head      magic 8 | layout 4 | 0 4 | sequence 8 | instance 8 | config 8 | generation 8 | buckets 8 |
 *             reserved 8 | populated 8 | 0 4 | sum 4 | zeros up to 4096
 *
 *   index.G   bucket (256 B) | bucket | …
 *
 *     bucket  0          4       8           16                64      96            256
 *             | sequence | flags | config id | six hash halves | place | … six of it |
 *
 *     place   0         16        20     24     28       32
 *             | version | low 4 B | unit | size | expiry |
 *
 *   data      slab (256 KiB) of equal slots, each one entry, at multiples of 64 (a unit):
 *
 *     entry   0     4      8        12       16        32
 *             | sum | key# | value# | expiry | version | key, zeros up to an 8th byte, value
 *
 * A look-up touches the first line of a bucket, and of the places only the one whose hash half is right. A key has two
 * buckets, and lies in either.
 *
 * Shared memory is touched in whole 8-byte words by relaxed atomics: a word is never torn, and no compiler may assume
 * that it stays the same. What may be torn is a run of words, and each run has something that notices:
 *   bucket      its sequence counter, read before and after the copy;
 *   data entry  the same counter read once more behind the copy, since a slot is written anew only after its index
 *               entry is gone; and, whatever the counter says, the sum and the fields that equal the index entry's.
 */
#ifndef TAILRACE_CELL_H
#define TAILRACE_CELL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "cells are little-endian and read in place; this machine is not"
#endif

#define TR_CELL_MAGIC 0x4C4C45434C494154u /* "TAILCELL" */
#define TR_CELL_REVOKED UINT64_MAX        /* a configuration id that no head has */

enum {
    TR_CELL_LAYOUT = 2,
    TR_HEAD_BYTES = 4096,
    TR_BUCKET_BYTES = 256,
    TR_BUCKET_ENTRIES = 6,
    TR_DATA_HEADER_BYTES = 32,
    TR_DATA_ALIGNMENT = 64, /* also the unit in which the index counts offsets */
    TR_SLAB_BYTES = 256 << 10,
    TR_PAGE_BYTES = 4096,    /* in which the file system has memory */
    TR_HUGE_BYTES = 2 << 20, /* of a huge page, where there are such */
    TR_CELL_OVERFLOW = 1,
    TR_WHY_BYTES = 512, /* room for an error's text */
};

#define TR_NONE UINT32_MAX /* no record, no slot, no link */

/* The last unit is nobody's, so that its number can mean "none". */
#define TR_RESERVE_BYTES_MAX (((uint64_t)TR_DATA_ALIGNMENT << 32) - TR_SLAB_BYTES)

typedef _Atomic uint64_t tr_word;
_Static_assert(sizeof(tr_word) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "words are shared between processes");

typedef struct {
    uint64_t low, high;
} tr_key_hash;

typedef struct {
    uint64_t clock;
    uint32_t client, sequence;
} tr_version;

typedef struct {
    uint64_t magic;
    uint32_t layout, zero;
    uint64_t sequence;
    uint64_t instance, config_id, generation, buckets, reserved, populated;
    uint32_t zero_too, sum;
} tr_cell_head;

/* What the index says of a key, for whoever asks. In a bucket it lies as a hash half and a place. */
typedef struct {
    tr_key_hash hash;
    tr_version version;
    uint64_t offset;
    uint32_t size, expiry_s;
} tr_index_entry;

typedef struct {
    tr_version version;
    uint32_t low;  /* of the hash's lower half, the lower 32 bits; the whole other half is in the first line */
    uint32_t unit; /* offset / TR_DATA_ALIGNMENT */
    uint32_t size; /* 0: nothing here */
    uint32_t expiry_s;
} tr_place;

typedef struct {
    uint32_t sequence, flags;
    uint64_t config_id;
    uint64_t high[TR_BUCKET_ENTRIES];
    tr_place places[TR_BUCKET_ENTRIES];
} tr_bucket;

typedef struct {
    uint32_t sum, key_bytes, value_bytes, expiry_s;
    tr_version version;
} tr_data_header;

_Static_assert(sizeof(tr_cell_head) == 80 && offsetof(tr_cell_head, sum) == 76, "docs/formats/cells.md");
_Static_assert(sizeof(tr_place) == 32 && offsetof(tr_place, unit) == 20, "docs/formats/cells.md");
_Static_assert(sizeof(tr_bucket) == TR_BUCKET_BYTES && offsetof(tr_bucket, places) == 64, "docs/formats/cells.md");
_Static_assert(sizeof(tr_data_header) == TR_DATA_HEADER_BYTES, "docs/formats/cells.md");

enum {
    TR_BUCKET_WORDS = TR_BUCKET_BYTES / 8,
    TR_HIGH_WORD = offsetof(tr_bucket, high) / 8,
    TR_PLACE_WORD = offsetof(tr_bucket, places) / 8,
    TR_PLACE_WORDS = sizeof(tr_place) / 8,
};

/* Bytes of someone else, for the length of a call. */
typedef struct {
    const uint8_t *at;
    uint64_t count;
} tr_slice;

static inline int tr_version_compare(tr_version a, tr_version b) {
    if (a.clock != b.clock) return a.clock < b.clock ? -1 : 1;
    if (a.client != b.client) return a.client < b.client ? -1 : 1;
    return a.sequence == b.sequence ? 0 : a.sequence < b.sequence ? -1 : 1;
}

static inline int tr_hash_equal(tr_key_hash a, tr_key_hash b) { return a.low == b.low && a.high == b.high; }

/* Both buckets of a key follow from the half of its hash that the index has in full. They differ if there are two. */
static inline uint64_t tr_bucket_first(uint64_t high, uint64_t buckets) {
    return (uint64_t)(((unsigned __int128)high * buckets) >> 64);
}

static inline uint64_t tr_bucket_second(uint64_t high, uint64_t buckets) {
    uint64_t turned = high << 32 | high >> 32, first = tr_bucket_first(high, buckets);
    if (buckets == 1) return first;
    uint64_t second = first + 1 + (uint64_t)(((unsigned __int128)turned * (buckets - 1)) >> 64);
    return second < buckets ? second : second - buckets;
}

/* Where to look first. */
static inline uint64_t tr_bucket_of(tr_key_hash hash, uint64_t buckets) {
    return tr_bucket_first(hash.high, buckets);
}

static inline uint64_t tr_padded(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

/* What an entry takes before it is rounded up to its slot. */
static inline uint64_t tr_entry_size(uint64_t key_bytes, uint64_t value_bytes) {
    return TR_DATA_HEADER_BYTES + tr_padded(key_bytes) + value_bytes;
}

static inline int tr_expired(uint32_t expiry_s, uint32_t now_s) { return expiry_s && now_s >= expiry_s; }

/* ---- words: the ways to touch shared memory. The other side of each is ordinary memory of any alignment. */

static inline void tr_words_read(void *to, const tr_word *from, uint64_t bytes) {
    uint8_t *at = to;
    for (; bytes >= 8; bytes -= 8, at += 8, from++) {
        uint64_t word = atomic_load_explicit(from, memory_order_relaxed);
        memcpy(at, &word, 8);
    }
    if (bytes) { /* entries end within a slot of whole words, so the word is there */
        uint64_t word = atomic_load_explicit(from, memory_order_relaxed);
        memcpy(at, &word, bytes);
    }
}

static inline void tr_words_write(tr_word *to, const void *from, uint64_t bytes) {
    const uint8_t *at = from;
    for (; bytes >= 8; bytes -= 8, at += 8, to++) {
        uint64_t word;
        memcpy(&word, at, 8);
        atomic_store_explicit(to, word, memory_order_relaxed);
    }
    if (bytes) {
        uint64_t word = 0;
        memcpy(&word, at, bytes);
        atomic_store_explicit(to, word, memory_order_relaxed);
    }
}

/* Up to seven bytes of ordinary memory, and nothing behind them. */
static inline uint64_t tr_last_word(const uint8_t *from, uint64_t bytes) {
    uint64_t word = 0;
    if (bytes & 4) {
        uint32_t four;
        memcpy(&four, from + (bytes & 3), 4);
        word = four;
    }
    if (bytes & 2) word = word << 16 | (uint64_t)from[(bytes & 1) + 1] << 8 | from[bytes & 1];
    return bytes & 1 ? word << 8 | from[0] : word;
}

static inline int tr_words_equal(const tr_word *words, const void *to, uint64_t bytes) {
    const uint8_t *at = to;
    uint64_t differs = 0;
    for (; bytes >= 8; bytes -= 8, at += 8, words++) {
        uint64_t word;
        memcpy(&word, at, 8);
        differs |= word ^ atomic_load_explicit(words, memory_order_relaxed);
    }
    if (bytes) {
        uint64_t word = atomic_load_explicit(words, memory_order_relaxed) ^ tr_last_word(at, bytes);
        differs |= word << (64 - 8 * bytes); /* what lies behind is not ours */
    }
    return !differs;
}

/* ---- what both sides compute alike */

tr_key_hash tr_key_hash_of(tr_slice key);
uint32_t tr_head_sum(const tr_cell_head *head);

/* Only for tests: keep just these bits of every hash of this process, so that keys collide. All ones to end it. */
void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask);

#endif
