#define _GNU_SOURCE
#include "cell_view.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cell_sum.h"

enum {
    ROUNDS = 64,       /* of one probe. A change takes well under a microsecond, unless the backend was stopped in it */
    HEAD_TRIES = 64,   /* of the head, and of finding the index it names */
    RENEWALS = 8,      /* of one probe, instead of so many of its rounds */
    AHEAD = 8,         /* how many buckets are prefetched before they are looked at */
    SOON = 192,        /* bytes of an entry that are prefetched when it was found: others wait for their turn */
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ---- mapping */

static int refuse(char *why, const char *folder, const char *what, uint64_t seen, uint64_t expected) {
    snprintf(why, TR_WHY_BYTES, "%.300s is no cell this can read: %s is %" PRIu64 ", not %" PRIu64, folder, what, seen,
             expected);
    return EINVAL;
}

void *tr_data_map(int file, uint64_t bytes, int protection) {
    /* Somewhere within more addresses than are needed; what is left of them goes back. */
    const uint64_t room = bytes + TR_HUGE_BYTES;
    uint8_t *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return MAP_FAILED;
    const uint64_t skip = -(uintptr_t)at % TR_HUGE_BYTES;
    void *memory = mmap(at + skip, bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;
        munmap(at, room);
        errno = error;
        return MAP_FAILED;
    }
    if (skip) munmap(at, skip);
    const uint64_t mapped = (bytes + TR_PAGE_BYTES - 1) / TR_PAGE_BYTES * TR_PAGE_BYTES;
    if (room - skip > mapped) munmap(at + skip + mapped, room - skip - mapped);
    return memory;
}

/* Open a file of the folder, whose size must be known. The mapping outlives the descriptor, unless somebody keeps it. */
static int map_file(const char *folder, const char *name, uint64_t bytes, const tr_word **mapped, int *kept, char *why) {
    char path[4096], what[64];
    struct stat about;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return ENAMETOOLONG;
    snprintf(why, TR_WHY_BYTES, "%.400s", path);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = 0;
    if (file < 0) return errno;
    snprintf(what, sizeof what, "the size of %.40s", name);
    if (fstat(file, &about))
        error = errno;
    else if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size != bytes || !bytes)
        error = refuse(why, folder, what, (uint64_t)about.st_size, bytes);
    if (!error) {
        void *memory = tr_data_map(file, bytes, PROT_READ);
        if (memory == MAP_FAILED)
            error = errno;
        else
            *mapped = memory;
    }
    if (kept && !error)
        *kept = file;
    else
        close(file);
    return error;
}

/* One consistent copy of the head. Like an entry, a head with a true sum is believed in the end even if its counter is
 * odd for good, because the backend was killed there. */
static int copy_head(const char *folder, tr_cell_head *head, char *why) {
    const tr_word *page = NULL;
    int error = map_file(folder, "head", TR_HEAD_BYTES, &page, NULL, why);
    if (error) return error;
    for (int tries = 0; tries < HEAD_TRIES; tries++, relax()) {
        uint64_t before = atomic_load_explicit(page + 2, memory_order_acquire);
        tr_words_read(head, page, sizeof *head);
        atomic_thread_fence(memory_order_acquire);
        uint64_t after = atomic_load_explicit(page + 2, memory_order_relaxed);
        if (before == after && !(before & 1)) break;
    }
    munmap((void *)page, TR_HEAD_BYTES);
    if (head->magic != TR_CELL_MAGIC) return refuse(why, folder, "the magic of head", head->magic, TR_CELL_MAGIC);
    if (head->layout != TR_CELL_LAYOUT) return refuse(why, folder, "the layout version", head->layout, TR_CELL_LAYOUT);
    if (head->sum != tr_head_sum(head)) return refuse(why, folder, "the sum of head", head->sum, tr_head_sum(head));
    if (head->buckets == 0 || head->buckets > UINT64_MAX / TR_BUCKET_BYTES / 2)
        return refuse(why, folder, "the bucket count", head->buckets, 1);
    if (head->reserved % TR_SLAB_BYTES)
        return refuse(why, folder, "the reserved size beyond whole slabs", head->reserved % TR_SLAB_BYTES, 0);
    return 0;
}

static int map_once(tr_view *view, char *why) {
    tr_cell_head head;
    const tr_word *index = NULL, *data = NULL;
    char name[32];
    int data_file = view->data_file;
    int error = copy_head(view->folder, &head, why);
    if (error) return error;
    snprintf(name, sizeof name, "index.%" PRIu64, head.generation);
    if ((error = map_file(view->folder, name, head.buckets * TR_BUCKET_BYTES, &index, NULL, why))) return error;
    /* A grown index leaves the data where it is: keep the mapping, and with it all pages that were touched already. */
    int keep = view->data && head.instance == view->head.instance && head.reserved == view->head.reserved;
    if (!keep && (error = map_file(view->folder, "data", head.reserved, &data, view->lends ? &data_file : NULL, why))) {
        munmap((void *)index, head.buckets * TR_BUCKET_BYTES);
        return error;
    }
    if (keep) {
        data = view->data;
        view->data = NULL;
    }
    tr_view_unmap(view);
    view->head = head;
    view->index = index;
    view->data = data;
    view->data_file = data_file;
    return 0;
}

int tr_view_map(tr_view *view, char *why) {
    int error = ENOENT;
    /* Between our look at the head and at the index it names, the backend may have grown past it. */
    for (int tries = 0; tries < HEAD_TRIES && error == ENOENT; tries++) error = map_once(view, why);
    return error;
}

void tr_view_unmap(tr_view *view) {
    if (view->index) munmap((void *)view->index, view->head.buckets * TR_BUCKET_BYTES);
    if (view->data) munmap((void *)view->data, view->head.reserved);
    if (view->data && view->lends) close(view->data_file);
    view->index = view->data = NULL;
}

/* ---- looking */

static const tr_word *bucket_at(const tr_view *view, uint64_t bucket) { return view->index + bucket * TR_BUCKET_WORDS; }

static const tr_word *first_bucket(const tr_view *view, tr_key_hash hash) {
    return bucket_at(view, tr_bucket_of(hash, view->head.buckets));
}

static const tr_word *second_bucket(const tr_view *view, tr_key_hash hash) {
    return bucket_at(view, tr_bucket_second(hash.high, view->head.buckets));
}

/* The last round believes what validates itself, without asking the counter. */
static int last_round(const tr_sight *sight) { return sight->rounds + 1 >= ROUNDS; }

typedef struct {
    uint64_t config_id;
    int stable; /* nothing changed between our first and our last word */
    int has;    /* the place below has our tag */
    tr_place place;
} glance;

/* One look at a bucket: its first line, and of the places that whose half of the hash is right. */
static inline __attribute__((always_inline)) glance look_at(const tr_word *words, tr_key_hash hash, uint64_t *counter) {
    glance seen = {.has = 0};
    *counter = atomic_load_explicit(words, memory_order_acquire);
    seen.config_id = atomic_load_explicit(words + 1, memory_order_relaxed);
    uint32_t alike = 0; /* all six without a branch: which one it is cannot be foretold */
    for (int i = 0; i < TR_BUCKET_ENTRIES; i++)
        alike |= (uint32_t)(atomic_load_explicit(words + TR_HIGH_WORD + i, memory_order_relaxed) == hash.high) << i;
    for (; alike && !seen.has; alike &= alike - 1) {
        const tr_word *place = words + TR_PLACE_WORD + __builtin_ctz(alike) * TR_PLACE_WORDS;
        tr_words_read(&seen.place, place, sizeof seen.place);
        seen.has = seen.place.size && seen.place.low == (uint32_t)hash.low;
    }
    atomic_thread_fence(memory_order_acquire);
    seen.stable = !(*counter & 1) && *counter == atomic_load_explicit(words, memory_order_relaxed);
    return seen;
}

/* Bounds before anything is touched. */
static int entry_plausible(const tr_view *view, const tr_index_entry *entry) {
    return entry->size <= TR_SLAB_BYTES && entry->size >= TR_DATA_HEADER_BYTES && entry->offset < view->head.reserved &&
           entry->size <= view->head.reserved - entry->offset;
}

/* Nothing of our key is in either bucket. That of the first says whether it may be chained. */
static tr_probe_state missed(const tr_sight *sight) {
    return sight->counters[0] >> 32 & TR_CELL_OVERFLOW ? TR_PROBE_ASK : TR_PROBE_MISS;
}

static inline tr_probe_state take(const tr_view *view, tr_key_hash hash, uint32_t now_s, const glance *seen, uint32_t number,
                           tr_index_entry *entry, tr_sight *sight) {
    *entry = (tr_index_entry){hash, seen->place.version, (uint64_t)seen->place.unit * TR_DATA_ALIGNMENT,
                              seen->place.size, seen->place.expiry_s};
    sight->found = number;
    if (!entry_plausible(view, entry)) return TR_PROBE_UNSETTLED; /* damaged: nobody writes such an entry */
    if (!tr_expired(entry->expiry_s, now_s)) return TR_PROBE_FOUND;
    return seen->stable ? missed(sight) : TR_PROBE_UNSETTLED;
}

/* One look at the index. NEW: it changed meanwhile.
 *
 * A key that moves is written to its new bucket before it leaves the old one. So whoever misses it in the first, then
 * in the second, and then finds that the first has not changed, has seen a moment in which it was in neither. */
static tr_probe_state look(const tr_view *view, tr_key_hash hash, uint32_t now_s, tr_index_entry *entry,
                           tr_sight *sight) {
    const tr_word *words = first_bucket(view, hash);
    glance first = look_at(words, hash, &sight->counters[0]), second;
    if (!first.stable && !last_round(sight)) return TR_PROBE_NEW;
    if (first.config_id != view->head.config_id) return TR_PROBE_REVOKED;
    if (first.has && first.stable) return take(view, hash, now_s, &first, 0, entry, sight);

    second = look_at(second_bucket(view, hash), hash, &sight->counters[1]);
    if (!second.stable && !last_round(sight)) return TR_PROBE_NEW;
    if (second.config_id != view->head.config_id) return TR_PROBE_REVOKED;
    /* In the last round whoever wrote may have stopped in the middle of one of both: the other is whole. */
    if (second.has && (second.stable || !first.has)) return take(view, hash, now_s, &second, 1, entry, sight);
    if (first.has) return take(view, hash, now_s, &first, 0, entry, sight);

    atomic_thread_fence(memory_order_acquire);
    int same = atomic_load_explicit(words, memory_order_relaxed) == sight->counters[0];
    if (same && first.stable && second.stable) return missed(sight);
    return last_round(sight) ? TR_PROBE_UNSETTLED : TR_PROBE_NEW;
}

static void count(tr_view *view, tr_probe_state state) {
    view->stats.hits += state == TR_PROBE_HIT;
    view->stats.misses += state == TR_PROBE_MISS || state == TR_PROBE_ASK;
    view->stats.hints += state == TR_PROBE_ASK;
    view->stats.unsettled += state == TR_PROBE_UNSETTLED;
}

/* One more round is lost. The state to go on with. */
static tr_probe_state torn(tr_view *view, tr_sight *sight) {
    view->stats.torn++;
    relax();
    return ++sight->rounds < ROUNDS ? TR_PROBE_NEW : TR_PROBE_UNSETTLED;
}

tr_probe_state tr_view_find(tr_view *view, tr_key_hash hash, uint32_t now_s, tr_index_entry *entry, tr_sight *sight) {
    tr_probe_state state = sight->rounds < ROUNDS ? TR_PROBE_NEW : TR_PROBE_UNSETTLED;
    while (state == TR_PROBE_NEW && (state = look(view, hash, now_s, entry, sight)) == TR_PROBE_NEW)
        state = torn(view, sight);
    count(view, state);
    return state;
}

/* What was found is still where it was found, so what it names was not written meanwhile. */
static int unchanged(const tr_view *view, tr_key_hash hash, const tr_sight *sight) {
    const tr_word *words = sight->found ? second_bucket(view, hash) : first_bucket(view, hash);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(words, memory_order_relaxed) == sight->counters[sight->found];
}

/* Another key with our tag lies where ours would be, so ours can only be chained: if nothing moved since we looked. */
static tr_probe_state twin_found(tr_view *view, tr_key_hash hash, tr_sight *sight) {
    int settled = unchanged(view, hash, sight) && !(sight->counters[sight->found] & 1) && !(sight->counters[0] & 1) &&
                  atomic_load_explicit(first_bucket(view, hash), memory_order_relaxed) == sight->counters[0];
    return settled ? missed(sight) : torn(view, sight);
}

static void locate_one(tr_view *view, tr_probe *probe, uint32_t now_s) {
    const tr_index_entry *entry = &probe->entry;
    while (probe->state == TR_PROBE_NEW) {
        probe->state = tr_view_find(view, probe->hash, now_s, &probe->entry, &probe->sight);
        if (probe->state != TR_PROBE_FOUND) return;
        if (tr_probe_accept(probe)) {
            const uint32_t soon = entry->size < SOON ? entry->size : SOON;
            for (uint32_t at = 0; at < soon; at += 64)
                __builtin_prefetch((const uint8_t *)view->data + entry->offset + at);
            return;
        }
        probe->state = twin_found(view, probe->hash, &probe->sight); /* no entry of our key has this size */
        count(view, probe->state);
    }
}

void tr_view_locate(tr_view *view, tr_probe *probes, size_t count, uint32_t now_s) {
    for (size_t i = 0; i < count + AHEAD; i++) {
        if (i < count && probes[i].state == TR_PROBE_NEW) {
            for (size_t line = 0; line < TR_BUCKET_BYTES / 64; line++)
                __builtin_prefetch((const uint8_t *)(first_bucket(view, probes[i].hash) + 8 * line));
        }
        if (i >= AHEAD && probes[i - AHEAD].state == TR_PROBE_NEW) locate_one(view, &probes[i - AHEAD], now_s);
    }
}

/* ---- copying */

int tr_view_copy(tr_view *view, tr_key_hash hash, const tr_index_entry *entry, tr_sight *sight, uint8_t *to) {
    tr_copy_out(to, view->data + entry->offset / 8, entry->size);
    if (unchanged(view, hash, sight) || last_round(sight)) return 1;
    torn(view, sight);
    return 0;
}

static void fetch_one(tr_view *view, tr_probe *probe, uint8_t *to, const void *next) {
    const tr_word *words = view->data + probe->entry.offset / 8, *key = words + TR_DATA_HEADER_BYTES / 8;
    tr_data_header header;
    tr_words_read(&header, words, sizeof header);
    int same_key = header.key_bytes == probe->key.count && tr_words_equal(key, probe->key.at, probe->key.count);
    int valid = same_key && tr_header_agrees(probe, &header);
    if (valid) {
        /* The sum is taken over what we have: our key, our copies. Memory may change behind them as it likes. */
        valid = header.sum == tr_entry_sum_copied(view->head.instance, probe->entry.offset, &header, probe->key, to,
                                                  words + tr_probe_value_at(probe) / 8, next);
    }
    if (valid && (unchanged(view, probe->hash, &probe->sight) || last_round(&probe->sight)))
        probe->state = TR_PROBE_HIT;
    else
        probe->state = same_key ? torn(view, &probe->sight) : twin_found(view, probe->hash, &probe->sight);
    count(view, probe->state);
}

void tr_view_fetch(tr_view *view, tr_probe *probes, uint8_t *const *places, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int more = i + 1 < count && probes[i + 1].state == TR_PROBE_FOUND;
        const void *next = more ? (const uint8_t *)view->data + probes[i + 1].entry.offset : NULL;
        if (probes[i].state == TR_PROBE_FOUND) fetch_one(view, &probes[i], places[i], next);
    }
}

int tr_view_renew(tr_view *view, tr_probe *probes, size_t count_of, char *why) {
    tr_cell_head before = view->head;
    int error = tr_view_map(view, why);
    if (error) return error;
    view->stats.remaps += before.instance != view->head.instance || before.generation != view->head.generation ||
                          before.config_id != view->head.config_id;
    for (size_t i = 0; i < count_of; i++) {
        tr_probe *probe = &probes[i];
        if (probe->state == TR_PROBE_FOUND) probe->state = TR_PROBE_NEW; /* its bounds were those of the old mapping */
        if (probe->state != TR_PROBE_REVOKED) continue;
        probe->sight.rounds += ROUNDS / RENEWALS;
        probe->state = probe->sight.rounds < ROUNDS ? TR_PROBE_NEW : TR_PROBE_UNSETTLED;
        count(view, probe->state);
    }
    return 0;
}
