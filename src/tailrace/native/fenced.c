#define _GNU_SOURCE
#include "fenced.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MEMORY_ALIGNMENT = 512, PAUSE_NS = 2000000 };

/* 0: it is locked, and ours. */
static int enter(const tr_side *side) {
    uint8_t held[TR_FENCE_BYTES];
    struct stat about;
    if (flock(side->fence, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK || errno == EINTR ? TR_FENCED_OTHERWISE : errno;
    if (!fstat(side->fence, &about) && about.st_nlink > 0 &&
        pread(side->fence, held, sizeof held, 0) == (ssize_t)sizeof held && !memcmp(held, side->mine, sizeof held))
        return 0;
    flock(side->fence, LOCK_UN);
    return TR_FENCED_OTHERWISE;
}

static void leave(const tr_side *side) {
    flock(side->fence, LOCK_UN);
}

static int write_all(int file, const uint8_t *bytes, size_t count, uint64_t offset) {
    while (count) {
        ssize_t done = pwrite(file, bytes, count, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : EIO;
        bytes += done, count -= (size_t)done, offset += (uint64_t)done;
    }
    return 0;
}

/* How many bytes went past the page cache: whole pages, from the first on. If it fails, the file system wants something
 * else than we do, and always will; or the disk is full or bad, as the usual way will tell. */
static size_t write_direct(int *direct, const uint8_t *bytes, size_t count, uint64_t offset) {
    size_t done = 0;
    while (done < count) {
        ssize_t more = pwrite(*direct, bytes + done, count - done, (off_t)(offset + done));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0 && (errno == EINVAL || errno == EOPNOTSUPP || errno == EBADF)) *direct = -1;
        if (more <= 0) break;
        done += (size_t)more;
        if (done % PAGE) break;
    }
    return done;
}

/* The next `count` bytes of a side. */
static int write_turn(tr_side *side, size_t count, size_t direct_least) {
    const uint8_t *bytes = side->bytes + side->written;
    uint64_t offset = side->offset + side->written;
    size_t begin = (size_t)(-offset % PAGE), behind = (size_t)((offset + count) % PAGE), passed = 0;
    int error = enter(side);
    if (error) return error;
    if (side->direct >= 0 && count >= begin + behind + direct_least &&
        ((uintptr_t)bytes + begin) % MEMORY_ALIGNMENT == 0) {
        /* The two ways never touch one page in one turn, so neither waits for the other. */
        error = write_all(side->file, bytes, begin, offset);
        if (!error) passed = write_direct(&side->direct, bytes + begin, count - begin - behind, offset + begin);
        if (!error) error = write_all(side->file, bytes + begin + passed, count - begin - passed, offset + begin + passed);
    } else {
        error = write_all(side->file, bytes, count, offset);
    }
    leave(side);
    if (error) return error;
    side->written += count;
    side->passed += passed;
    return 0;
}

/* Whoever wants the fence tries for it every millisecond: between two turns it is free for longer than that. */
static int write_side(tr_side *side, size_t turn_bytes, size_t direct_least) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    while (side->written < side->count) {
        size_t rest = side->count - side->written;
        if (side->written) nanosleep(&pause, NULL);
        int error = write_turn(side, turn_bytes < rest ? turn_bytes : rest, direct_least);
        if (error) return error;
    }
    return 0;
}

static void sync_side(tr_side *side) {
    side->sync_error = fdatasync(side->file) ? errno : 0;
}

/* 0, or an errno that must not be lost: what fails here may count as told of, and then a sync does not tell again. Where
 * there is no such thing, the sync does all. */
static int begin_to_sync(const tr_side *side) {
    if (!sync_file_range(side->file, (off_t)side->offset, (off_t)side->count, SYNC_FILE_RANGE_WRITE)) return 0;
    return errno == ENOSYS || errno == EOPNOTSUPP || errno == ESPIPE || errno == EINVAL || errno == EINTR ? 0 : errno;
}

static int tell(tr_side *side) {
    int error = side->sync_error ? side->sync_error : enter(side);
    if (error) return error;
    error = write_all(side->fence, side->following, TR_FENCE_BYTES, 0);
    leave(side);
    side->told = !error;
    return error;
}

int tr_fenced_flush(tr_side *first, tr_side *second, size_t turn_bytes, size_t direct_least) {
    int error = write_side(second, SIZE_MAX, SIZE_MAX);
    if (error) return error;
    /* Both are on their way to the disk together: when the first is there, what is left to do for the second is little. */
    const int begun = begin_to_sync(second);
    error = write_side(first, turn_bytes, direct_least);
    if (error) return error;
    sync_side(first);
    error = tell(first);
    if (error) return error;
    sync_side(second);
    if (!second->sync_error) second->sync_error = begun;
    return tell(second);
}
