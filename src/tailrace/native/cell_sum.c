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

static uint32_t sum_stored_plainly(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                                   tr_word *to, const uint8_t *value) {
    tr_words_write(to, value, header->value_bytes);
    return sum_plainly(instance, offset, header, key, value);
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

/* How far ahead of a large value's sum its bytes are sent for, and how large it is. A small one is over before that
 * would help: there it is the value that follows which is sent for. */
enum { AHEAD_BYTES = 2048, LARGE_STRIPES = 128 };

/* Which instructions: none that are wide, a half stripe at a time, or a whole one. */
enum { PLAIN, HALVES, WHOLE };
static int widest, wide;

__attribute__((constructor)) static void prepare(void) {
    __builtin_cpu_init();
    wide = widest = !__builtin_cpu_supports("avx2") ? PLAIN : __builtin_cpu_supports("avx512f") ? WHOLE : HALVES;
}

void tr_sum_narrow(int narrower) { wide = widest > narrower ? widest - narrower : PLAIN; }

typedef struct {
    uint8_t bytes[32];
} half; /* of a stripe */

typedef struct {
    uint8_t bytes[STRIPE];
} whole_stripe;

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

/* Without a `to`, nothing is stored. `next` is sent for stripe by stripe, while this is summed: memory is slower. */
WIDE_INLINE void add_halves(wide_run *run, uint8_t *to, const uint8_t *from, uint64_t stripes, const uint8_t *next) {
    for (uint64_t i = 0; i < stripes; i++, from += STRIPE) {
        if (next) __builtin_prefetch(next + i * STRIPE);
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

/* The same with instructions twice as wide. Only worth it for many stripes. */
__attribute__((target("avx512f"))) static void add_whole(wide_run *run, uint8_t *to, const uint8_t *from,
                                                         uint64_t stripes, const uint8_t *next) {
    __m512i totals = _mm512_loadu_si512(run->totals), keys = _mm512_loadu_si512(run->keys);
    const __m512i step = _mm512_set1_epi64((long long)(LANES * KEY_STEP));
    for (uint64_t i = 0; i < stripes; i++, from += STRIPE) {
        if (next) __builtin_prefetch(next + i * STRIPE);
        __m512i words;
        __asm__ volatile("vmovdqu64 %1, %0" : "=v"(words) : "m"(*(const whole_stripe *)from));
        if (to) {
            _mm512_storeu_si512(to, words);
            to += STRIPE;
        }
        __m512i keyed = _mm512_xor_si512(words, keys);
        __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
        __m512i neighbours = _mm512_shuffle_epi32(words, (_MM_PERM_ENUM)0x4E);
        totals = _mm512_add_epi64(totals, _mm512_add_epi64(product, neighbours));
        keys = _mm512_add_epi64(keys, step);
    }
    _mm512_storeu_si512(run->totals, totals);
    _mm512_storeu_si512(run->keys, keys);
}

WIDE_INLINE void add_widely(wide_run *run, uint8_t *to, const uint8_t *from, uint64_t stripes, const uint8_t *next) {
    if (stripes >= LARGE_STRIPES) next = from + AHEAD_BYTES; /* beyond its end lies, mostly, what is next */
    if (wide == WHOLE && stripes >= 8)
        add_whole(run, to, from, stripes, next);
    else
        add_halves(run, to, from, stripes, next);
}

/* A stripe that is not whole is put together in registers: written to memory in small pieces and read back in large
 * ones, it would be waited for. `words` whole ones from memory, then `last`, then zeros. */
typedef struct {
    __m256i halves[2];
} stripe;

WIDE_INLINE __m256i load_some(const void *from, __m256i wanted) {
    __m256i loaded;
    __asm__ volatile("vpmaskmovq %1, %2, %0" : "=x"(loaded) : "m"(*(const half *)from), "x"(wanted));
    return loaded;
}

WIDE_INLINE stripe load_rest(const uint8_t *from, uint64_t words, uint64_t last) {
    const __m256i count = _mm256_set1_epi64x((long long)words), tail = _mm256_set1_epi64x((long long)last);
    stripe rest;
    for (int i = 0; i < 2; i++) {
        __m256i places = _mm256_add_epi64(_mm256_setr_epi64x(0, 1, 2, 3), _mm256_set1_epi64x(4 * i));
        __m256i loaded = load_some(from + 32 * i, _mm256_cmpgt_epi64(count, places));
        rest.halves[i] = _mm256_or_si256(loaded, _mm256_and_si256(tail, _mm256_cmpeq_epi64(count, places)));
    }
    return rest;
}

/* The other way: `bytes` of a stripe, at most all but one. */
WIDE_INLINE void store_rest(uint8_t *to, const stripe *rest, uint64_t bytes) {
    __m256i four = rest->halves[0];
    if (bytes & 32) {
        _mm256_storeu_si256((__m256i *)to, four);
        four = rest->halves[1];
        to += 32;
    }
    __m128i two = _mm256_castsi256_si128(four);
    if (bytes & 16) {
        _mm_storeu_si128((__m128i *)to, two);
        two = _mm256_extracti128_si256(four, 1);
        to += 16;
    }
    uint64_t word = (uint64_t)_mm_cvtsi128_si64(two);
    if (bytes & 8) {
        memcpy(to, &word, 8);
        word = (uint64_t)_mm_extract_epi64(two, 1);
        to += 8;
    }
    for (uint64_t size = 4; size; size /= 2) {
        if (!(bytes & size)) continue;
        memcpy(to, &word, size);
        word >>= 8 * size;
        to += size;
    }
}

WIDE_INLINE void add_rest(wide_run *run, const stripe *rest) {
    add_half(run, 0, rest->halves[0]);
    add_half(run, 1, rest->halves[1]);
}

/* A part in ordinary memory. */
WIDE_INLINE void add_part(wide_run *run, const uint8_t *from, uint64_t bytes) {
    uint64_t whole = bytes / STRIPE, rest = bytes % STRIPE;
    add_widely(run, NULL, from, whole, NULL);
    if (!rest) return;
    from += whole * STRIPE;
    stripe last = load_rest(from, rest / 8, tr_last_word(from + rest / 8 * 8, rest % 8));
    add_rest(run, &last);
}

/* What fill_front() says, in registers. */
WIDE_INLINE void begin_widely(wide_run *run, uint64_t instance, uint64_t offset, const tr_data_header *header,
                              tr_slice key) {
    const uint64_t k = KEY_STEP, clock = header->version.clock;
    const uint64_t sizes = header->key_bytes | (uint64_t)header->value_bytes << 32;
    const uint64_t times = header->expiry_s | clock << 32, names = clock >> 32 | (uint64_t)header->version.client << 32;
    run->totals[0] = run->totals[1] = _mm256_setzero_si256();
    run->keys[0] = _mm256_setr_epi64x((long long)k, (long long)(2 * k), (long long)(3 * k), (long long)(4 * k));
    run->keys[1] = _mm256_setr_epi64x((long long)(5 * k), (long long)(6 * k), (long long)(7 * k), (long long)(8 * k));
    add_half(run, 0, _mm256_setr_epi64x((long long)instance, (long long)offset, (long long)sizes, (long long)times));
    add_half(run, 1, _mm256_setr_epi64x((long long)names, header->version.sequence, 0, 0));
    add_part(run, key.at, key.count);
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
    begin_widely(&run, instance, offset, header, key);
    add_part(&run, value, header->value_bytes);
    return end_widely(&run);
}

WIDE static uint32_t sum_copied_widely(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                                       uint8_t *to, const tr_word *value, const uint8_t *next) {
    wide_run run;
    uint64_t whole = header->value_bytes / STRIPE, rest = header->value_bytes % STRIPE;
    begin_widely(&run, instance, offset, header, key);
    add_widely(&run, to, (const uint8_t *)value, whole, next);
    if (rest) {
        const tr_word *from = value + whole * LANES;
        uint64_t last = 0;
        if (rest % 8) last = atomic_load_explicit(from + rest / 8, memory_order_relaxed) & ((1ull << rest % 8 * 8) - 1);
        stripe some = load_rest((const uint8_t *)from, rest / 8, last);
        store_rest(to + whole * STRIPE, &some, rest);
        add_rest(&run, &some);
    }
    return end_widely(&run);
}

WIDE static uint32_t sum_stored_widely(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                                       tr_word *to, const uint8_t *value) {
    wide_run run;
    uint64_t whole = header->value_bytes / STRIPE, rest = header->value_bytes % STRIPE;
    begin_widely(&run, instance, offset, header, key);
    add_widely(&run, (uint8_t *)to, value, whole, NULL);
    if (rest) {
        add_part(&run, value + whole * STRIPE, rest);
        tr_words_write(to + whole * LANES, value + whole * STRIPE, rest);
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

uint32_t tr_entry_sum_stored(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                             tr_word *to, const void *value) {
    return (wide ? sum_stored_widely : sum_stored_plainly)(instance, offset, header, key, to, value);
}

void tr_copy_out(void *to, const tr_word *from, uint64_t bytes) {
    uint64_t whole = wide ? bytes / STRIPE : 0;
    if (whole) copy_widely(to, (const uint8_t *)from, whole);
    tr_words_read((uint8_t *)to + whole * STRIPE, from + whole * LANES, bytes - whole * STRIPE);
}

#else

void tr_sum_narrow(int narrower) { (void)narrower; }

uint32_t tr_entry_sum(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                      const void *value) {
    return sum_plainly(instance, offset, header, key, value);
}

uint32_t tr_entry_sum_copied(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key, void *to,
                             const tr_word *value, const void *next) {
    return sum_copied_plainly(instance, offset, header, key, to, value, next);
}

uint32_t tr_entry_sum_stored(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                             tr_word *to, const void *value) {
    return sum_stored_plainly(instance, offset, header, key, to, value);
}

void tr_copy_out(void *to, const tr_word *from, uint64_t bytes) { tr_words_read(to, from, bytes); }

#endif
