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

enum {
    ROUNDS = 64,       /* of one probe. A change takes a writer well under a microsecond, unless it was stopped in it */
    HEAD_TRIES = 64,   /* of the head, and of finding the index it names */
    RENEWALS = 8,      /* of one probe, instead of so many of its rounds */
    AHEAD = 8,         /* how many buckets are prefetched before they are looked at */
    PREFETCHED = 8192, /* bytes of a value at most; the processor follows a longer run by itself */
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

/* Open a file of the folder, whose size must be known. The mapping outlives the descriptor. */
static int map_file(const char *folder, const char *name, uint64_t bytes, const tr_word **mapped, char *why) {
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
        void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (memory == MAP_FAILED)
            error = errno;
        else
            *mapped = memory;
    }
    close(file);
    return error;
}

/* One consistent copy of the head. Like an entry, a head with a true sum is believed in the end even if its counter is
 * odd for good, because its writer was killed there. */
static int copy_head(const char *folder, tr_cell_head *head, char *why) {
    const tr_word *page = NULL;
    int error = map_file(folder, "head", TR_HEAD_BYTES, &page, why);
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
    int error = copy_head(view->folder, &head, why);
    if (error) return error;
    snprintf(name, sizeof name, "index.%" PRIu64, head.generation);
    if ((error = map_file(view->folder, name, head.buckets * TR_BUCKET_BYTES, &index, why))) return error;
    /* A grown index leaves the data where it is: keep the mapping, and with it all pages that were touched already. */
    int keep = view->data && head.instance == view->head.instance && head.reserved == view->head.reserved;
    if (!keep && (error = map_file(view->folder, "data", head.reserved, &data, why))) {
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
    view->index = view->data = NULL;
}

/* ---- looking */

static const tr_word *bucket_of(const tr_view *view, const tr_probe *probe) {
    return view->index + tr_bucket_of(probe->hash, view->head.buckets) * (TR_BUCKET_BYTES / 8);
}

/* The last round believes what validates itself, without asking the counter. */
static int last_round(const tr_probe *probe) { return probe->rounds + 1 >= ROUNDS; }

/* Bounds before anything is touched. A size that does not fit our key belongs to another one. */
static int entry_plausible(const tr_view *view, const tr_index_entry *entry, uint64_t key_bytes) {
    return entry->size <= TR_SLAB_BYTES && entry->size >= tr_entry_size(key_bytes, 0) &&
           entry->offset % TR_DATA_ALIGNMENT == 0 && entry->offset < view->head.reserved &&
           entry->size <= view->head.reserved - entry->offset;
}

/* One look at the bucket. True: decided for now. */
static int look(const tr_view *view, tr_probe *probe, uint32_t now_s) {
    const tr_word *words = bucket_of(view, probe);
    tr_bucket bucket;
    probe->counter = atomic_load_explicit(words, memory_order_acquire);
    tr_words_read(&bucket, words, sizeof bucket);
    atomic_thread_fence(memory_order_acquire);
    int stable = !(probe->counter & 1) && probe->counter == atomic_load_explicit(words, memory_order_relaxed);
    if (!stable && !last_round(probe)) return 0;
    if (bucket.config_id != view->head.config_id) {
        probe->state = TR_PROBE_REVOKED;
        return 1;
    }
    for (int i = 0; i < TR_BUCKET_ENTRIES; i++) {
        const tr_index_entry *entry = &bucket.entries[i];
        if (!entry->size || !tr_hash_equal(entry->hash, probe->hash)) continue;
        if (!entry_plausible(view, entry, probe->key.count)) break;
        if (tr_expired(entry->expiry_s, now_s)) break;
        probe->entry = *entry;
        probe->value_bytes = entry->size - (uint32_t)tr_entry_size(probe->key.count, 0);
        probe->state = TR_PROBE_FOUND;
        return 1;
    }
    probe->state = !stable ? TR_PROBE_UNSETTLED : bucket.flags & TR_CELL_OVERFLOW ? TR_PROBE_ASK : TR_PROBE_MISS;
    return 1;
}

static void count(tr_view *view, const tr_probe *probe) {
    view->stats.hits += probe->state == TR_PROBE_HIT;
    view->stats.misses += probe->state == TR_PROBE_MISS || probe->state == TR_PROBE_ASK;
    view->stats.hints += probe->state == TR_PROBE_ASK;
    view->stats.unsettled += probe->state == TR_PROBE_UNSETTLED;
}

static void torn(tr_view *view, tr_probe *probe) {
    view->stats.torn++;
    probe->rounds++;
    probe->state = probe->rounds < ROUNDS ? TR_PROBE_NEW : TR_PROBE_UNSETTLED;
    relax();
}

static void prefetch(const tr_view *view, const tr_probe *probe, uint32_t bytes_max) {
    uint32_t bytes = probe->entry.size < bytes_max ? probe->entry.size : bytes_max;
    for (uint32_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const uint8_t *)view->data + probe->entry.offset + line);
}

static void locate_one(tr_view *view, tr_probe *probe, uint32_t now_s) {
    while (probe->state == TR_PROBE_NEW && !look(view, probe, now_s)) torn(view, probe);
    if (probe->state == TR_PROBE_FOUND) prefetch(view, probe, 128);
    count(view, probe);
}

void tr_view_locate(tr_view *view, tr_probe *probes, size_t count, uint32_t now_s) {
    for (size_t i = 0; i < count + AHEAD; i++) {
        if (i < count && probes[i].state == TR_PROBE_NEW) {
            if (!probes[i].rounds) probes[i].hash = tr_key_hash_of(probes[i].key);
            for (size_t line = 0; line < TR_BUCKET_BYTES / 64; line++)
                __builtin_prefetch((const uint8_t *)(bucket_of(view, &probes[i]) + 8 * line));
        }
        if (i >= AHEAD && probes[i - AHEAD].state == TR_PROBE_NEW) locate_one(view, &probes[i - AHEAD], now_s);
    }
}

/* Everything in the header that the index, the head and the question already told us. */
static int header_agrees(const tr_view *view, const tr_probe *probe, const tr_data_header *header) {
    const tr_index_entry *entry = &probe->entry;
    return header->value_bytes == probe->value_bytes && header->expiry_s == entry->expiry_s &&
           !tr_version_compare(header->version, entry->version) &&
           tr_hash_equal(header->hash, entry->hash) && header->instance == view->head.instance &&
           header->offset == entry->offset;
}

static void fetch_one(tr_view *view, tr_probe *probe, uint8_t *to) {
    const tr_word *words = view->data + probe->entry.offset / 8, *key = words + TR_DATA_HEADER_BYTES / 8;
    tr_data_header header;
    tr_words_read(&header, words, sizeof header);
    int same_key = header.key_bytes == probe->key.count && tr_words_equal(key, probe->key.at, probe->key.count);
    tr_words_read(to, key + tr_padded(probe->key.count) / 8, probe->value_bytes);
    /* The sum is taken over what we have: our key, our copies. Memory may change behind them as it likes. */
    int valid = same_key && header_agrees(view, probe, &header) && header.sum == tr_data_sum(&header, probe->key, to);
    atomic_thread_fence(memory_order_acquire);
    int stable = atomic_load_explicit(bucket_of(view, probe), memory_order_relaxed) == probe->counter;
    if (valid && (stable || last_round(probe))) {
        probe->state = TR_PROBE_HIT;
        count(view, probe);
        return;
    }
    /* Nothing moved, and yet it is not our key: another key with our hash lies there. Ours can only be chained. */
    if (stable && !same_key && !(probe->counter & 1)) {
        probe->state = probe->counter >> 32 & TR_CELL_OVERFLOW ? TR_PROBE_ASK : TR_PROBE_MISS;
        count(view, probe);
        return;
    }
    torn(view, probe);
    count(view, probe);
}

void tr_view_fetch(tr_view *view, tr_probe *probes, uint8_t *const *places, size_t count) {
    for (size_t i = 0; i < count; i++) {
        /* Memory is slower than the sum: the next value is on its way while this one is checked. */
        if (i + 1 < count && probes[i + 1].state == TR_PROBE_FOUND) prefetch(view, &probes[i + 1], PREFETCHED);
        if (probes[i].state == TR_PROBE_FOUND) fetch_one(view, &probes[i], places[i]);
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
        probe->rounds += ROUNDS / RENEWALS;
        probe->state = probe->rounds < ROUNDS ? TR_PROBE_NEW : TR_PROBE_UNSETTLED;
        count(view, probe);
    }
    return 0;
}
