#include "cell_sum.h"

#define KEY_STEP 0x9E3779B97F4A7C15u /* word n of the run has n + 1 times this as its key */
#define MULTIPLIER 0xD6E8FEB86659FD93u

enum { LANES = 8, STRIPE = 64 };

typedef struct {
    uint64_t totals[LANES], keys[LANES];
} run;

static uint32_t mixed(const uint64_t totals[LANES]) {
    uint64_t mixed = 0;
    for (int i = 0; i < LANES; i++) {
        mixed = (mixed ^ totals[i]) * MULTIPLIER;
        mixed ^= mixed >> 29;
    }
    return (uint32_t)(mixed ^ mixed >> 32);
}

/* The first stripe: where the entry lies, in whose memory, and its header behind the sum. */
static inline void fill_front(uint8_t front[STRIPE], uint64_t instance, uint64_t offset, const tr_data_header *header) {
    memset(front, 0, STRIPE);
    memcpy(front, &instance, 8);
    memcpy(front + 8, &offset, 8);
    memcpy(front + 16, (const uint8_t *)header + sizeof header->sum, sizeof *header - sizeof header->sum);
}

/* What is left of a part behind its whole stripes, filled up with zeros. Lengths are in the header. */
static inline void fill_rest(uint8_t stripe[STRIPE], const uint8_t *from, uint64_t bytes) {
    memset(stripe, 0, STRIPE);
    memcpy(stripe, from, bytes);
}

/* ---- word by word */

static void add_plainly(run *run, const uint8_t *from, uint64_t stripes) {
    uint64_t words[LANES];
    for (; stripes; stripes--, from += STRIPE) {
        memcpy(words, from, STRIPE);
        for (int i = 0; i < LANES; i++) {
            uint64_t keyed = words[i] ^ run->keys[i];
            run->totals[i] += (uint64_t)(uint32_t)keyed * (keyed >> 32);
            run->totals[i ^ 1] += words[i];
            run->keys[i] += LANES * KEY_STEP;
        }
    }
}

static void add_part_plainly(run *run, const uint8_t *from, uint64_t bytes) {
    uint8_t rest[STRIPE];
    add_plainly(run, from, bytes / STRIPE);
    if (!(bytes % STRIPE)) return;
    fill_rest(rest, from + bytes / STRIPE * STRIPE, bytes % STRIPE);
    add_plainly(run, rest, 1);
}

static uint32_t sum_plainly(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                            const uint8_t *value) {
    uint8_t front[STRIPE];
    run run = {.totals = {0}};
    for (uint64_t i = 0; i < LANES; i++) run.keys[i] = (i + 1) * KEY_STEP;
    fill_front(front, instance, offset, header);
    add_plainly(&run, front, 1);
    add_part_plainly(&run, key.at, key.count);
    add_part_plainly(&run, value, header->value_bytes);
    return mixed(run.totals);
}

static uint32_t sum_copied_plainly(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                                   void *to, const tr_word *value, const uint8_t *next) {
    (void)next;
    tr_words_read(to, value, header->value_bytes);
    return sum_plainly(instance, offset, header, key, to);
}

/* ---- stripe by stripe */

/* Wide loads are no atomics of the language, so words may be torn apart in the middle. It does no harm: a run of words
 * may be torn anyway, and what notices it (the bucket's counter, the sum) does not care where. What must not happen is
 * that a compiler loads twice and sums another word than it stored: so each load is an instruction of its own. It stays
 * between the fences, since those are barriers for whatever reads memory. A sanitizer that watches threads knows none
 * of this, and gets to see words. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx2")))
#define WIDE_INLINE WIDE static inline __attribute__((always_inline))

static int has_wide, wide;

__attribute__((constructor)) static void prepare(void) {
    __builtin_cpu_init();
    wide = has_wide = __builtin_cpu_supports("avx2");
}

void tr_sum_plainly(int plainly) { wide = has_wide && !plainly; }

typedef struct {
    uint8_t bytes[32];
} half; /* of a stripe */

typedef struct {
    __m256i totals[2], keys[2];
} wide_run;

WIDE_INLINE __m256i load_half(const void *from) {
    __m256i loaded;
    __asm__ volatile("vmovdqu %1, %0" : "=x"(loaded) : "m"(*(const half *)from));
    return loaded;
}

WIDE_INLINE void add_half(wide_run *run, int number, __m256i words) {
    __m256i keyed = _mm256_xor_si256(words, run->keys[number]);
    __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    __m256i both = _mm256_add_epi64(product, _mm256_shuffle_epi32(words, 0x4E)); /* neighbours change places */
    run->totals[number] = _mm256_add_epi64(run->totals[number], both);
    run->keys[number] = _mm256_add_epi64(run->keys[number], _mm256_set1_epi64x((long long)(LANES * KEY_STEP)));
}

/* Without a `to`, nothing is stored. */
WIDE_INLINE void add_widely(wide_run *run, uint8_t *to, const uint8_t *from, uint64_t stripes) {
    for (; stripes; stripes--, from += STRIPE) {
        __m256i first = load_half(from), second = load_half(from + 32);
        if (to) {
            _mm256_storeu_si256((__m256i *)to, first);
            _mm256_storeu_si256((__m256i *)(to + 32), second);
            to += STRIPE;
        }
        add_half(run, 0, first);
        add_half(run, 1, second);
    }
}

WIDE_INLINE void begin_widely(wide_run *run, uint64_t instance, uint64_t offset, const tr_data_header *header,
                              tr_slice key) {
    uint8_t stripe[STRIPE];
    const uint64_t k = KEY_STEP;
    run->totals[0] = run->totals[1] = _mm256_setzero_si256();
    run->keys[0] = _mm256_setr_epi64x((long long)k, (long long)(2 * k), (long long)(3 * k), (long long)(4 * k));
    run->keys[1] = _mm256_setr_epi64x((long long)(5 * k), (long long)(6 * k), (long long)(7 * k), (long long)(8 * k));
    fill_front(stripe, instance, offset, header);
    add_widely(run, NULL, stripe, 1);
    add_widely(run, NULL, key.at, key.count / STRIPE);
    if (!(key.count % STRIPE)) return;
    fill_rest(stripe, key.at + key.count / STRIPE * STRIPE, key.count % STRIPE);
    add_widely(run, NULL, stripe, 1);
}

WIDE_INLINE uint32_t end_widely(const wide_run *run) {
    uint64_t totals[LANES];
    _mm256_storeu_si256((__m256i *)totals, run->totals[0]);
    _mm256_storeu_si256((__m256i *)(totals + 4), run->totals[1]);
    return mixed(totals);
}

WIDE static uint32_t sum_widely(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                                const uint8_t *value) {
    wide_run run;
    uint64_t whole = header->value_bytes / STRIPE, rest = header->value_bytes % STRIPE;
    begin_widely(&run, instance, offset, header, key);
    add_widely(&run, NULL, value, whole);
    if (rest) {
        uint8_t stripe[STRIPE];
        fill_rest(stripe, value + whole * STRIPE, rest);
        add_widely(&run, NULL, stripe, 1);
    }
    return end_widely(&run);
}

WIDE static uint32_t sum_copied_widely(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                                       uint8_t *to, const tr_word *value, const uint8_t *next) {
    wide_run run;
    uint64_t whole = header->value_bytes / STRIPE, rest = header->value_bytes % STRIPE;
    begin_widely(&run, instance, offset, header, key);
    /* Memory is slower than the sum: stripe by stripe, what comes next is sent for while this is summed. */
    for (uint64_t i = 0; i < whole; i++) {
        if (next) __builtin_prefetch(next + i * STRIPE);
        add_widely(&run, to + i * STRIPE, (const uint8_t *)value + i * STRIPE, 1);
    }
    if (rest) {
        uint8_t stripe[STRIPE] = {0};
        tr_words_read(stripe, value + whole * LANES, rest);
        memcpy(to + whole * STRIPE, stripe, rest);
        add_widely(&run, NULL, stripe, 1);
    }
    return end_widely(&run);
}

WIDE static void copy_widely(uint8_t *to, const uint8_t *from, uint64_t stripes) {
    for (; stripes; stripes--, from += STRIPE, to += STRIPE) {
        __m256i first = load_half(from), second = load_half(from + 32);
        _mm256_storeu_si256((__m256i *)to, first);
        _mm256_storeu_si256((__m256i *)(to + 32), second);
    }
}

uint32_t tr_entry_sum(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                      const void *value) {
    return (wide ? sum_widely : sum_plainly)(instance, offset, header, key, value);
}

uint32_t tr_entry_sum_copied(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key, void *to,
                             const tr_word *value, const void *next) {
    if (wide) return sum_copied_widely(instance, offset, header, key, to, value, next);
    return sum_copied_plainly(instance, offset, header, key, to, value, next);
}

void tr_copy_out(void *to, const tr_word *from, uint64_t bytes) {
    uint64_t whole = wide ? bytes / STRIPE : 0;
    if (whole) copy_widely(to, (const uint8_t *)from, whole);
    tr_words_read((uint8_t *)to + whole * STRIPE, from + whole * LANES, bytes - whole * STRIPE);
}

#else

void tr_sum_plainly(int plainly) { (void)plainly; }

uint32_t tr_entry_sum(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                      const void *value) {
    return sum_plainly(instance, offset, header, key, value);
}

uint32_t tr_entry_sum_copied(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key, void *to,
                             const tr_word *value, const void *next) {
    return sum_copied_plainly(instance, offset, header, key, to, value, next);
}

void tr_copy_out(void *to, const tr_word *from, uint64_t bytes) { tr_words_read(to, from, bytes); }

#endif
