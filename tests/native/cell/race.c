/* One process in which threads change a cell while others read it, for a sanitizer that watches threads.
 *
 * A cell and its views map the same files at different addresses, where no sanitizer would see them meet. So this
 * program brings its own mmap, by which a file that is mapped already is given out at the same address again.
 *
 * Every value says which key and version it belongs to, in every one of its words; whoever reads one checks them all.
 * With CARELESS, one thread reads shared memory by plain loads: the sanitizer must complain, or it sees nothing.
 *
 *   race FOLDER ROUNDS
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "cell_store.h"
#include "cell_view.h"

#undef mmap
#undef munmap
void *mmap(void *, size_t, int, int, int, off_t);
int munmap(void *, size_t);

enum { KEYS = 300, BATCH = 16, MUTATING = 2, VIEWS = 2, ENGINES = 1, MAPPINGS = 64, VALUE_WORDS = 600 };

/* ---- one address for each file. The backend makes its files and maps them first, so they can be written there. */

typedef struct {
    void *at;
    size_t bytes;
    dev_t device;
    ino_t file;
    int users;
} mapping;

static mapping mappings[MAPPINGS];
static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

void *race_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    struct stat about;
    mapping *unused = NULL, *found = NULL;
    if (file < 0) return mmap(at, bytes, protection, flags, file, offset); /* addresses alone, which nobody shares */
    if (fstat(file, &about)) return (void *)-1;
    pthread_mutex_lock(&mapping_lock);
    for (mapping *it = mappings; it < mappings + MAPPINGS && !found; it++) {
        if (!it->users)
            unused = it;
        else if (it->device == about.st_dev && it->file == about.st_ino && it->bytes == bytes)
            found = it;
    }
    if (found) {
        found->users++;
    } else if (unused) {
        void *memory = mmap(at, bytes, protection, flags, file, offset);
        if (memory != (void *)-1) {
            *unused = (mapping){memory, bytes, about.st_dev, about.st_ino, 1};
            found = unused;
        }
    }
    pthread_mutex_unlock(&mapping_lock);
    return found ? found->at : (void *)-1;
}

int race_munmap(void *at, size_t bytes) {
    int result = 0;
    pthread_mutex_lock(&mapping_lock);
    for (mapping *it = mappings; it < mappings + MAPPINGS; it++)
        if (it->users && it->at == at && !--it->users) result = munmap(at, bytes);
    pthread_mutex_unlock(&mapping_lock);
    return result;
}

/* ---- values that say what they are */

static void fail(const char *what) {
    fprintf(stderr, "race: %s\n", what);
    exit(1);
}

static tr_slice name_of(uint32_t key, char name[32]) {
    return (tr_slice){(const uint8_t *)name, (uint64_t)snprintf(name, 32, "key number %u", key)};
}

static uint64_t word_for(uint32_t key, tr_version version) {
    return version.clock * 1000003 + (uint64_t)key * 7919 + version.client;
}

static void check(uint32_t key, tr_version version, const uint8_t *value, uint32_t bytes) {
    uint64_t expected = word_for(key, version), word;
    if (bytes % 8) fail("a value of another size than any");
    for (uint32_t at = 0; at < bytes; at += 8) {
        memcpy(&word, value + at, 8);
        if (word != expected) fail("a value that was never set");
    }
}

/* ---- threads */

static const char *folder;
static tr_cell *cell;
static _Atomic uint64_t clock_now = 1;
static _Atomic int mutating = MUTATING;
static _Atomic uint64_t hits, misses, torn, remaps;
static uint64_t rounds;

static uint64_t drawn(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void *mutate(void *number) {
    uint64_t state = (uint64_t)(uintptr_t)number, value[VALUE_WORDS];
    char name[32];
    for (uint64_t round = 0; round < rounds; round++) {
        uint32_t key = (uint32_t)drawn(&state) % KEYS, words = (uint32_t)drawn(&state) % 6 * 100;
        tr_version version = {atomic_fetch_add(&clock_now, 1), (uint32_t)(uintptr_t)number, 0};
        tr_slice named = name_of(key, name);
        for (uint32_t i = 0; i < words; i++) value[i] = word_for(key, version);
        if (!tr_cell_lock(cell)) fail("the cell was shut");
        if (round % 8 == 7)
            tr_cell_erase(cell, named, version);
        else
            tr_cell_set(cell, named, (tr_slice){(const uint8_t *)value, 8 * words}, version, 0, 0, NULL);
        if (round % 512 == 511) tr_cell_collect(cell, 0, 100);
        if (round % 4096 == 4095) tr_cell_configure(cell, round);
        tr_cell_unlock(cell);
    }
    atomic_fetch_sub(&mutating, 1);
    return NULL;
}

static void add_up(const tr_view *view) {
    atomic_fetch_add(&hits, view->stats.hits);
    atomic_fetch_add(&misses, view->stats.misses);
    atomic_fetch_add(&torn, view->stats.torn);
    atomic_fetch_add(&remaps, view->stats.remaps);
}

/* As a client on this host does it. */
static void *view(void *number) {
    uint64_t state = (uint64_t)(uintptr_t)number;
    tr_view view = {.folder = (char *)(uintptr_t)folder};
    char why[TR_WHY_BYTES], names[BATCH][32];
    static _Thread_local uint8_t room[BATCH][8 * VALUE_WORDS];
    uint8_t *places[BATCH];
    if (tr_view_map(&view, why)) fail(why);
    while (atomic_load(&mutating)) {
        tr_probe probes[BATCH];
        uint32_t keys[BATCH];
        memset(probes, 0, sizeof probes);
        for (int i = 0; i < BATCH; i++) {
            keys[i] = (uint32_t)drawn(&state) % KEYS;
            probes[i].key = name_of(keys[i], names[i]);
            places[i] = room[i];
        }
        for (int open = 1; open;) {
            int revoked = 0;
            tr_view_locate(&view, probes, BATCH, 0);
            for (int i = 0; i < BATCH; i++) {
                revoked |= probes[i].state == TR_PROBE_REVOKED;
                if (probes[i].state == TR_PROBE_FOUND && probes[i].value_bytes > sizeof room[i])
                    fail("an entry larger than any");
            }
            if (revoked) {
                if (tr_view_renew(&view, probes, BATCH, why)) fail(why);
                continue;
            }
            tr_view_fetch(&view, probes, places, BATCH);
            open = 0;
            for (int i = 0; i < BATCH; i++) open |= probes[i].state == TR_PROBE_NEW;
        }
        for (int i = 0; i < BATCH; i++)
            if (probes[i].state == TR_PROBE_HIT)
                check(keys[i], probes[i].entry.version, room[i], probes[i].value_bytes);
    }
    add_up(&view);
    tr_view_unmap(&view);
    return NULL;
}

/* As an engine does it for a client elsewhere, and as that client proves what it gets. */
static void *serve(void *number) {
    uint64_t state = (uint64_t)(uintptr_t)number;
    tr_view view = {.folder = (char *)(uintptr_t)folder};
    char why[TR_WHY_BYTES], name[32];
    static _Thread_local uint8_t raw[TR_SLAB_BYTES];
    if (tr_view_map(&view, why)) fail(why);
    while (atomic_load(&mutating)) {
        uint32_t key = (uint32_t)drawn(&state) % KEYS;
        tr_probe probe = {.key = name_of(key, name)};
        probe.hash = tr_key_hash_of(probe.key);
        tr_probe_state found;
        while ((found = tr_view_find(&view, probe.hash, 0, &probe.entry, &probe.sight)) == TR_PROBE_FOUND)
            if (tr_view_copy(&view, probe.hash, &probe.entry, &probe.sight, raw)) break;
        if (found == TR_PROBE_REVOKED && tr_view_renew(&view, NULL, 0, why)) fail(why);
        if (found != TR_PROBE_FOUND) continue;
        if (!tr_probe_accept(&probe) || !tr_entry_proves(&view.head, &probe, raw)) continue;
        check(key, probe.entry.version, raw + tr_probe_value_at(&probe), probe.value_bytes);
        view.stats.hits++;
#ifdef CARELESS
        memcpy(raw, (const void *)(view.data + probe.entry.offset / 8), probe.entry.size);
#endif
    }
    add_up(&view);
    tr_view_unmap(&view);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) fail("race FOLDER ROUNDS");
    folder = arguments[1];
    rounds = strtoull(arguments[2], NULL, 10);
    char why[TR_WHY_BYTES];
    tr_cell_config config = {.reserve_bytes = 64 * TR_SLAB_BYTES, .capacity_bytes = 8 * TR_SLAB_BYTES, .buckets = 1,
                             .config_id = 1, .tombstones = 64, .policy = TR_ARC, .chaining = 1};
    if (tr_cell_open(&cell, folder, &config, why)) fail(why);
    pthread_t threads[MUTATING + VIEWS + ENGINES];
    for (int i = 0; i < MUTATING + VIEWS + ENGINES; i++) {
        void *(*role)(void *) = i < MUTATING ? mutate : i < MUTATING + VIEWS ? view : serve;
        if (pthread_create(&threads[i], NULL, role, (void *)(uintptr_t)(i + 1))) fail("no thread");
    }
    for (int i = 0; i < MUTATING + VIEWS + ENGINES; i++) pthread_join(threads[i], NULL);
    tr_cell_stats stats = tr_cell_look(cell);
    printf("%llu mutations, %llu hits, %llu misses, %llu torn looks, %llu remaps, %llu growths, %llu moves\n",
           (unsigned long long)(MUTATING * rounds), (unsigned long long)hits, (unsigned long long)misses,
           (unsigned long long)torn, (unsigned long long)remaps, (unsigned long long)stats.growths,
           (unsigned long long)stats.moved);
    if (!hits || !remaps || !stats.growths || !stats.moved) fail("too little happened");
    tr_cell_free(cell);
    return 0;
}
