#include "hash.h"

#include <string.h>

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

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

/* By `seeds` seeds, a constant where this is inlined. */
static inline __attribute__((always_inline)) void hash64(const uint8_t *at, size_t count, const uint64_t *seed,
                                                         uint64_t *hash, int seeds) {
    size_t left = count;
    for (int s = 0; s < seeds; s++) hash[s] = seed[s] + P5;
    if (left >= 32) {
        for (int s = 0; s < seeds; s++) {
            const uint8_t *from = at;
            uint64_t lanes[4] = {seed[s] + P1 + P2, seed[s] + P2, seed[s], seed[s] - P1};
            for (size_t stripes = left / 32; stripes; stripes--)
                for (int i = 0; i < 4; i++, from += 8) lanes[i] = round_of(lanes[i], load64(from));
            hash[s] = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
            for (int i = 0; i < 4; i++) hash[s] = merge(hash[s], lanes[i]);
        }
        at += left / 32 * 32;
        left %= 32;
    }
    for (int s = 0; s < seeds; s++) hash[s] += count;
    for (; left >= 8; left -= 8, at += 8)
        for (int s = 0; s < seeds; s++) hash[s] = rotate(hash[s] ^ round_of(0, load64(at)), 27) * P1 + P4;
    if (left >= 4) {
        for (int s = 0; s < seeds; s++) hash[s] = rotate(hash[s] ^ (load32(at) * P1), 23) * P2 + P3;
        at += 4;
        left -= 4;
    }
    for (; left; left--, at++)
        for (int s = 0; s < seeds; s++) hash[s] = rotate(hash[s] ^ (*at * P5), 11) * P1;
    for (int s = 0; s < seeds; s++) {
        hash[s] = (hash[s] ^ (hash[s] >> 33)) * P2;
        hash[s] = (hash[s] ^ (hash[s] >> 29)) * P3;
        hash[s] ^= hash[s] >> 32;
    }
}

uint64_t tr_hash64(const void *bytes, size_t count, uint64_t seed) {
    uint64_t hash;
    hash64(bytes, count, &seed, &hash, 1);
    return hash;
}

void tr_hash64_twice(const void *bytes, size_t count, const uint64_t seeds[2], uint64_t hashes[2]) {
    hash64(bytes, count, seeds, hashes, 2);
}
