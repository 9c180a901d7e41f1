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

/* One crc32 instruction waits three cycles for the one before, so longer inputs run as three lanes side by side. A lane's
 * sum is then moved over the bytes behind it: "append a lane of zero bytes" is linear in the sum, hence four look-ups.
 * Long lanes for files, short ones for messages. Three streams at once are more than the processor fetches ahead by
 * itself, so the loop asks for what comes AHEAD. */
enum { LONG = 1024, SHORT = 128, AHEAD = 6144 };

typedef uint32_t over_lane[4][256];

static over_lane over_long, over_short;
static int has_instruction;

static void fill_over(over_lane table, size_t lane) {
    static const uint8_t zeros[LONG];
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++) table[k][byte] = by_tables(byte << (8 * k), zeros, lane);
}

__attribute__((constructor)) static void prepare(void) {
    __builtin_cpu_init();
    has_instruction = __builtin_cpu_supports("sse4.2");
    fill_slices();
    fill_over(over_long, LONG);
    fill_over(over_short, SHORT);
}

static inline uint32_t append_zeros(over_lane table, uint32_t state) {
    return table[0][state & 0xFF] ^ table[1][(state >> 8) & 0xFF] ^ table[2][(state >> 16) & 0xFF] ^
           table[3][state >> 24];
}

static inline uint64_t load(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

#define WITH_INSTRUCTION __attribute__((target("sse4.2")))

WITH_INSTRUCTION static inline uint32_t three_lanes(uint32_t state, const uint8_t *at, size_t lane, over_lane table) {
    uint64_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < lane; i += 64) {
        for (size_t line = 0; line < 3; line++) __builtin_prefetch(at + AHEAD + 3 * i + 64 * line);
        for (size_t j = i; j < i + 64; j += 8) {
            a = _mm_crc32_u64(a, load(at + j));
            b = _mm_crc32_u64(b, load(at + lane + j));
            c = _mm_crc32_u64(c, load(at + 2 * lane + j));
        }
    }
    state = append_zeros(table, (uint32_t)a) ^ (uint32_t)b;
    return append_zeros(table, state) ^ (uint32_t)c;
}

/* Apart from the loops below: small messages must not pay for the registers that those need. */
WITH_INSTRUCTION static uint32_t one_lane(uint32_t state, const uint8_t *at, size_t count) {
    uint64_t wide = state;
    for (; count >= 8; at += 8, count -= 8) wide = _mm_crc32_u64(wide, load(at));
    state = (uint32_t)wide;
    if (count & 4) {
        uint32_t word;
        memcpy(&word, at, 4);
        state = _mm_crc32_u32(state, word);
        at += 4;
    }
    if (count & 2) {
        uint16_t half;
        memcpy(&half, at, 2);
        state = _mm_crc32_u16(state, half);
        at += 2;
    }
    return (count & 1) ? _mm_crc32_u8(state, *at) : state;
}

WITH_INSTRUCTION static __attribute__((noinline)) uint32_t many_lanes(uint32_t state, const uint8_t *at, size_t count) {
    for (; count >= 3 * LONG; at += 3 * LONG, count -= 3 * LONG) state = three_lanes(state, at, LONG, over_long);
    for (; count >= 3 * SHORT; at += 3 * SHORT, count -= 3 * SHORT) state = three_lanes(state, at, SHORT, over_short);
    return one_lane(state, at, count);
}

uint32_t tr_crc32c(uint32_t sum, const void *bytes, size_t count) {
    if (!has_instruction) return ~by_tables(~sum, bytes, count);
    return ~(count < 3 * SHORT ? one_lane(~sum, bytes, count) : many_lanes(~sum, bytes, count));
}

#else

__attribute__((constructor)) static void prepare(void) { fill_slices(); }

uint32_t tr_crc32c(uint32_t sum, const void *bytes, size_t count) { return tr_crc32c_tables(sum, bytes, count); }

#endif
