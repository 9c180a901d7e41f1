/* Hashes and sums that a backend and its readers compute alike. */
#include "cell.h"
#include "checksum.h"

#define SEED_HIGH 0x5441494C52414345u /* "TAILRACE"; the other half has seed 0 */

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t low_kept = UINT64_MAX, high_kept = UINT64_MAX;

static inline uint64_t rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
static inline uint64_t round_of(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }
static inline uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round_of(0, lane)) * P1 + P4; }

static inline uint64_t load64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline uint32_t load32(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

static uint64_t xxh64(tr_slice key, uint64_t seed) {
    const uint8_t *at = key.at;
    uint64_t left = key.count, hash = seed + P5;
    if (left >= 32) {
        uint64_t lanes[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
        for (; left >= 32; left -= 32)
            for (int i = 0; i < 4; i++, at += 8) lanes[i] = round_of(lanes[i], load64(at));
        hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
        for (int i = 0; i < 4; i++) hash = merge(hash, lanes[i]);
    }
    hash += key.count;
    for (; left >= 8; left -= 8, at += 8) hash = rotate(hash ^ round_of(0, load64(at)), 27) * P1 + P4;
    if (left >= 4) {
        hash = rotate(hash ^ (load32(at) * P1), 23) * P2 + P3;
        at += 4;
        left -= 4;
    }
    for (; left; left--) hash = rotate(hash ^ (*at++ * P5), 11) * P1;
    hash = (hash ^ (hash >> 33)) * P2;
    hash = (hash ^ (hash >> 29)) * P3;
    return hash ^ (hash >> 32);
}

tr_key_hash tr_key_hash_of(tr_slice key) {
    return (tr_key_hash){xxh64(key, 0) & low_kept, xxh64(key, SEED_HIGH) & high_kept};
}

void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask) {
    low_kept = low_mask;
    high_kept = high_mask;
}

uint32_t tr_head_sum(const tr_cell_head *head) {
    const uint8_t *bytes = (const uint8_t *)head;
    return tr_crc32c(tr_crc32c(0, bytes, 16), bytes + 24, 52);
}

uint32_t tr_data_sum(const tr_data_header *header, tr_slice key, const void *value) {
    uint32_t sum = tr_crc32c(0, (const uint8_t *)header + 4, TR_DATA_HEADER_BYTES - 4);
    return tr_crc32c(tr_crc32c(sum, key.at, key.count), value, header->value_bytes);
}
