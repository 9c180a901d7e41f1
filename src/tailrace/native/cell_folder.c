#define _GNU_SOURCE
#include "cell_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODE = 0640 };

void tr_index_name(char *name, uint64_t generation) {
    snprintf(name, TR_INDEX_NAME_BYTES, "index.%" PRIu64, generation);
}

int tr_file_make(tr_word **mapped, int folder, const char *name, uint64_t bytes) {
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

/* ---- head */

/* Whoever finds the counter odd waits for us, and takes what it copied only if the sum is right. */
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
    int failed = tr_file_make(mapped, folder, "head.new", TR_HEAD_BYTES);
    if (!failed) tr_head_write(*mapped, head);
    return failed;
}

int tr_head_publish(int folder) { return renameat(folder, "head.new", folder, "head") ? errno : 0; }

/* ---- what an earlier backend left */

/* Poison the buckets that views of an earlier backend may still have mapped: they will look for the head again. */
static void poison(int folder, const char *name) {
    int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat about;
    if (file < 0) return;
    if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_size >= TR_BUCKET_BYTES) {
        uint64_t bytes = (uint64_t)about.st_size / TR_BUCKET_BYTES * TR_BUCKET_BYTES;
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) {
            for (tr_word *bucket = memory, *end = bucket + bytes / 8; bucket < end; bucket += TR_BUCKET_WORDS)
                atomic_store_explicit(bucket + 1, TR_CELL_REVOKED, memory_order_release);
            munmap(memory, bytes);
        }
    }
    close(file);
}

static int unlink_if_there(int folder, const char *name) {
    return unlinkat(folder, name, 0) && errno != ENOENT ? errno : 0;
}

/* 1: a head of ours, of this layout or an earlier one: all have named and poisoned their files alike. 0: none.
 * Negative: an errno, and EEXIST for someone else's file. */
static int read_head(int folder, const char *name, tr_cell_head *head) {
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return errno == ENOENT ? 0 : -errno;
    ssize_t got = read(file, head, sizeof *head);
    close(file);
    int ours = got == sizeof *head && head->magic == TR_CELL_MAGIC && head->layout && head->layout <= TR_CELL_LAYOUT;
    return ours ? 1 : -EEXIST;
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
