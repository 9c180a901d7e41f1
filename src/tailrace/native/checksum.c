#include "checksum.h"

#include <string.h>

#define POLYNOMIAL 0x82F63B78u /* 0x1EDC6F41 with its bits reversed */

static uint32_t slices[8][256]; /* slices[k][b]: the sum of byte b followed by k zero bytes */

static void fill_slices(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ ((sum & 1) ? POLYNOMIAL : 0);
        slices[0][byte] = sum;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            slices[k][byte] = (slices[k - 1][byte] >> 8) ^ slices[0][slices[k - 1][byte] & 0xFF];
}

static uint32_t by_tables(uint32_t state, const uint8_t *at, size_t count) {
    for (; count >= 8; at += 8, count -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= state;
        state = 0;
        for (int k = 0; k < 8; k++) state ^= slices[7 - k][(word >> (8 * k)) & 0xFF];
    }
    while (count--) state = (state >> 8) ^ slices[0][(state ^ *at++) & 0xFF];
    return state;
}

uint32_t tr_crc32c_tables(uint32_t sum, const void *bytes, size_t count) { return ~by_tables(~sum, bytes, count); }

#if defined(__x86_64__)
#include <nmmintrin.h>

/* One crc32 instruction waits three cycles for the one before, so long inputs run as three lanes side by side. A lane's
 * sum is then moved over the bytes behind it: "append LANE zero bytes" is linear in the sum, hence four table look-ups. */
#define LANE 1024

static uint32_t over_lane[4][256];
static int has_instruction;

__attribute__((constructor)) static void prepare(void) {
    static const uint8_t zeros[LANE];
    __builtin_cpu_init();
    has_instruction = __builtin_cpu_supports("sse4.2");
    fill_slices();
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++) over_lane[k][byte] = by_tables(byte << (8 * k), zeros, LANE);
}

static inline uint32_t append_lane_of_zeros(uint32_t state) {
    return over_lane[0][state & 0xFF] ^ over_lane[1][(state >> 8) & 0xFF] ^ over_lane[2][(state >> 16) & 0xFF] ^
           over_lane[3][state >> 24];
}

static inline uint64_t load(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t state, const uint8_t *at, size_t count) {
    while (count >= 3 * LANE) {
        uint64_t a = state, b = 0, c = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            a = _mm_crc32_u64(a, load(at + i));
            b = _mm_crc32_u64(b, load(at + LANE + i));
            c = _mm_crc32_u64(c, load(at + 2 * LANE + i));
        }
        state = append_lane_of_zeros((uint32_t)a) ^ (uint32_t)b;
        state = append_lane_of_zeros(state) ^ (uint32_t)c;
        at += 3 * LANE;
        count -= 3 * LANE;
    }
    uint64_t wide = state;
    for (; count >= 8; at += 8, count -= 8) wide = _mm_crc32_u64(wide, load(at));
    state = (uint32_t)wide;
    while (count--) state = _mm_crc32_u8(state, *at++);
    return state;
}

uint32_t tr_crc32c(uint32_t sum, const void *bytes, size_t count) {
    return ~(has_instruction ? by_instruction(~sum, bytes, count) : by_tables(~sum, bytes, count));
}

#else

__attribute__((constructor)) static void prepare(void) { fill_slices(); }

uint32_t tr_crc32c(uint32_t sum, const void *bytes, size_t count) { return tr_crc32c_tables(sum, bytes, count); }

#endif
