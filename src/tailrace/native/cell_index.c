#define _GNU_SOURCE
#include "cell_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRY_WORDS = sizeof(tr_index_entry) / 8, MODE = 0640 };

/* ---- buckets */

/* The counter and the flags share a word, so a reader sees them change together. */
static uint64_t counter_word(uint32_t sequence, uint32_t flags) { return (uint64_t)flags << 32 | sequence; }

void tr_bucket_open(tr_index *index, uint64_t bucket) {
    tr_word *words = tr_bucket_at(index, bucket);
    uint64_t before = atomic_load_explicit(words, memory_order_relaxed);
    atomic_store_explicit(words, counter_word((uint32_t)before + 1, (uint32_t)(before >> 32)), memory_order_relaxed);
    /* Whoever sees a word that is written from here on sees the odd counter too, once past an acquire fence. */
    atomic_thread_fence(memory_order_release);
}

void tr_bucket_put(tr_index *index, uint64_t bucket, uint32_t entry, const tr_index_entry *content) {
    static const tr_index_entry nothing;
    tr_words_write(tr_bucket_at(index, bucket) + 2 + entry * ENTRY_WORDS, content ? content : &nothing,
                   sizeof *content);
}

void tr_bucket_close(tr_index *index, uint64_t bucket) {
    tr_word *words = tr_bucket_at(index, bucket);
    uint32_t sequence = (uint32_t)atomic_load_explicit(words, memory_order_relaxed) + 1;
    uint32_t flags = index->chains[bucket] == UINT32_MAX ? 0 : TR_CELL_OVERFLOW;
    atomic_store_explicit(words, counter_word(sequence, flags), memory_order_release);
}

tr_key_hash tr_bucket_hash(const tr_index *index, uint64_t bucket, uint32_t entry) {
    tr_key_hash hash;
    tr_words_read(&hash, tr_bucket_at(index, bucket) + 2 + entry * ENTRY_WORDS, sizeof hash);
    return hash;
}

void tr_index_configure(tr_index *index, uint64_t config_id) {
    for (uint64_t bucket = 0; bucket < index->buckets; bucket++) {
        tr_bucket_open(index, bucket);
        atomic_store_explicit(tr_bucket_at(index, bucket) + 1, config_id, memory_order_relaxed);
        tr_bucket_close(index, bucket);
    }
    index->config_id = config_id;
}

/* ---- files */

void tr_index_name(char *name, uint64_t generation) {
    snprintf(name, TR_INDEX_NAME_BYTES, "index.%" PRIu64, generation);
}

/* A new file of zeros, mapped for writing. Its memory is asked for at once: later it would be a SIGBUS. */
static int make_file(tr_word **mapped, int folder, const char *name, uint64_t bytes) {
    int file = openat(folder, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, MODE);
    if (file < 0) return errno;
    int failed = ftruncate(file, (off_t)bytes) ? errno : posix_fallocate(file, 0, (off_t)bytes);
    if (!failed) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        failed = memory == MAP_FAILED ? errno : 0;
        if (!failed) *mapped = memory;
    }
    close(file);
    if (failed) unlinkat(folder, name, 0);
    return failed;
}

int tr_index_make(tr_index *index, int folder, uint64_t generation, uint64_t buckets, uint64_t config_id) {
    char name[TR_INDEX_NAME_BYTES];
    tr_index_name(name, generation);
    *index = (tr_index){.generation = generation, .buckets = buckets, .config_id = config_id};
    index->owners = malloc(buckets * TR_BUCKET_ENTRIES * sizeof *index->owners);
    index->chains = malloc(buckets * sizeof *index->chains);
    int failed = index->owners && index->chains ? make_file(&index->words, folder, name, buckets * TR_BUCKET_BYTES)
                                                : ENOMEM;
    if (failed) {
        tr_index_drop(index);
        return failed;
    }
    memset(index->owners, 0xFF, buckets * TR_BUCKET_ENTRIES * sizeof *index->owners);
    memset(index->chains, 0xFF, buckets * sizeof *index->chains);
    tr_index_configure(index, config_id);
    return 0;
}

void tr_index_drop(tr_index *index) {
    if (index->words) munmap(index->words, index->buckets * TR_BUCKET_BYTES);
    free(index->owners);
    free(index->chains);
    *index = (tr_index){0};
}

/* A reader that finds the counter odd waits for us, and takes what it copied only if the sum is right. */
void tr_head_write(tr_word *mapped, tr_cell_head *head) {
    const size_t at = offsetof(tr_cell_head, instance) / 8;
    head->sum = tr_head_sum(head);
    atomic_store_explicit(mapped + 2, head->sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    tr_words_write(mapped, head, offsetof(tr_cell_head, sequence));
    tr_words_write(mapped + at, (const uint8_t *)head + 8 * at, sizeof *head - 8 * at);
    head->sequence += 2;
    atomic_store_explicit(mapped + 2, head->sequence, memory_order_release);
}

int tr_head_make(tr_word **mapped, int folder, tr_cell_head *head) {
    int failed = make_file(mapped, folder, "head.new", TR_HEAD_BYTES);
    if (!failed) tr_head_write(*mapped, head);
    return failed;
}

int tr_head_publish(int folder) { return renameat(folder, "head.new", folder, "head") ? errno : 0; }

/* Poison the buckets that readers of an earlier backend may still have mapped: they will look for the head again. */
static void poison(int folder, const char *name) {
    int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat about;
    if (file < 0) return;
    if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_size >= TR_BUCKET_BYTES) {
        uint64_t bytes = (uint64_t)about.st_size / TR_BUCKET_BYTES * TR_BUCKET_BYTES;
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) {
            for (tr_word *bucket = memory, *end = bucket + bytes / 8; bucket < end; bucket += TR_BUCKET_BYTES / 8)
                atomic_store_explicit(bucket + 1, TR_CELL_REVOKED, memory_order_release);
            munmap(memory, bytes);
        }
    }
    close(file);
}

static int unlink_if_there(int folder, const char *name) {
    return unlinkat(folder, name, 0) && errno != ENOENT ? errno : 0;
}

/* 1: a head of ours; 0: none; negative: an errno, and EEXIST for someone else's file. */
static int read_head(int folder, const char *name, tr_cell_head *head) {
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return errno == ENOENT ? 0 : -errno;
    ssize_t got = read(file, head, sizeof *head);
    close(file);
    return got == sizeof *head && head->magic == TR_CELL_MAGIC && head->layout == TR_CELL_LAYOUT ? 1 : -EEXIST;
}

/* Nothing is unlinked in a folder without a head of ours. The head goes last: an interrupted clearing is resumed. */
static int clear_one(int folder, const char *head_name) {
    char name[TR_INDEX_NAME_BYTES];
    tr_cell_head head;
    int found = read_head(folder, head_name, &head), failed = 0;
    if (found <= 0) return -found;
    /* Killed while it grew, the earlier backend may have left the generation before the head's or the one behind. */
    for (int step = -1; step <= 1 && !failed; step++) {
        tr_index_name(name, head.generation + (uint64_t)(int64_t)step);
        poison(folder, name);
        failed = unlink_if_there(folder, name);
    }
    if (!failed) failed = unlink_if_there(folder, "data");
    return failed ? failed : unlink_if_there(folder, head_name);
}

int tr_folder_clear(int folder) {
    int failed = clear_one(folder, "head");
    return failed ? failed : clear_one(folder, "head.new");
}
