/* Hashes and sums that a backend and those who read it compute alike. */
#include "cell.h"
#include "checksum.h"
#include "hash.h"

#define SEED_HIGH 0x5441494C52414345u /* "TAILRACE"; the other half has seed 0 */

static uint64_t low_kept = UINT64_MAX, high_kept = UINT64_MAX;

tr_key_hash tr_key_hash_of(tr_slice key) {
    static const uint64_t seeds[2] = {0, SEED_HIGH};
    uint64_t halves[2];
    tr_hash64_twice(key.at, key.count, seeds, halves);
    return (tr_key_hash){halves[0] & low_kept, halves[1] & high_kept};
}

void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask) {
    low_kept = low_mask;
    high_kept = high_mask;
}

uint32_t tr_head_sum(const tr_cell_head *head) {
    const uint8_t *bytes = (const uint8_t *)head;
    return tr_crc32c(tr_crc32c(0, bytes, 16), bytes + 24, 52);
}
