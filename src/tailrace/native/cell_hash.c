/* Hashes and sums that a backend and those who read it compute alike. */
#include "cell.h"
#include "checksum.h"
#include "hash.h"

#define SEED_HIGH 0x5441494C52414345u /* "TAILRACE"; the other half has seed 0 */

enum { FRONT_BYTES = 256 }; /* a header and a usual key, to be summed in one run */

static uint64_t low_kept = UINT64_MAX, high_kept = UINT64_MAX;

tr_key_hash tr_key_hash_of(tr_slice key) {
    return (tr_key_hash){tr_hash64(key.at, key.count, 0) & low_kept, tr_hash64(key.at, key.count, SEED_HIGH) & high_kept};
}

void tr_key_hash_weaken(uint64_t low_mask, uint64_t high_mask) {
    low_kept = low_mask;
    high_kept = high_mask;
}

uint32_t tr_head_sum(const tr_cell_head *head) {
    const uint8_t *bytes = (const uint8_t *)head;
    return tr_crc32c(tr_crc32c(0, bytes, 16), bytes + 24, 52);
}

uint32_t tr_front_sum(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key) {
    uint8_t front[FRONT_BYTES], *at = front;
    uint64_t padding = tr_padded(key.count) - key.count;
    memcpy(at, &instance, 8);
    memcpy(at + 8, &offset, 8);
    memcpy(at + 16, (const uint8_t *)header + sizeof header->sum, sizeof *header - sizeof header->sum);
    at += 16 + sizeof *header - sizeof header->sum;
    if (tr_padded(key.count) <= (uint64_t)(front + sizeof front - at)) {
        if (key.count) memcpy(at, key.at, key.count);
        memset(at + key.count, 0, padding);
        return tr_crc32c(0, front, (size_t)(at - front) + key.count + padding);
    }
    static const uint8_t zeros[8];
    uint32_t sum = tr_crc32c(0, front, (size_t)(at - front));
    return tr_crc32c(tr_crc32c(sum, key.at, key.count), zeros, padding);
}
