/* XXH64. With seed 0 it decides which shard a key belongs to: docs/formats/ says so, since other languages must agree. */
#ifndef TAILRACE_HASH_H
#define TAILRACE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t tr_hash64(const void *bytes, size_t count, uint64_t seed);

/* The same by two seeds at once, which takes hardly longer: neither waits for the other. */
void tr_hash64_twice(const void *bytes, size_t count, const uint64_t seeds[2], uint64_t hashes[2]);

/* The shard of a key: the hash scaled to [0, shards), which needs no division and no power of two. */
static inline uint32_t tr_shard_of(uint64_t hash, uint32_t shards) {
    return (uint32_t)(((unsigned __int128)hash * shards) >> 64);
}

#endif
