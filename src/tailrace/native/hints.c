#define _GNU_SOURCE
#include "hints.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = TR_HINT_SLOTS * TR_HINT_SLOT_BYTES };

#ifndef __NR_futex_waitv
#define __NR_futex_waitv 449 /* Linux 5.16, the same on all architectures */
#endif

/* As the kernel has it; older headers do not. */
typedef struct {
    uint64_t value, address;
    uint32_t flags, reserved;
} waitv;

enum { WAIT_U32 = 2 };

/* The same. */
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} sched_attributes;

enum { TURN_NS = 100 * 1000 }; /* the shortest that Linux has */

int tr_hints_map(const char *path, int writable, tr_hint_slot **slots) {
    struct stat about;
    int file = open(path, O_RDWR | O_CLOEXEC | (writable ? O_CREAT : 0), 0600), error = 0;
    if (file < 0) return errno;
    if (fstat(file, &about))
        error = errno;
    else if (writable && about.st_size == 0 && (error = posix_fallocate(file, 0, FILE_BYTES))) {
        /* on a full disk a page that was not allocated would end the process when it is touched */
    } else if (fstat(file, &about))
        error = errno;
    else if (!S_ISREG(about.st_mode) || about.st_size != FILE_BYTES)
        error = EINVAL;
    if (!error) {
        void *memory = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED)
            error = errno;
        else
            *slots = memory;
    }
    close(file);
    return error;
}

void tr_hints_unmap(tr_hint_slot *slots) {
    if (slots) munmap(slots, FILE_BYTES);
}

uint32_t tr_hint_waiters(const tr_hint_slot *slot) {
    return atomic_load_explicit(&slot->waiters, memory_order_relaxed);
}

uint32_t tr_hint_raise(tr_hint_slot *slot) {
    atomic_fetch_add_explicit(&slot->sequence, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&slot->waiters, memory_order_seq_cst)) return 0;
    long woken = syscall(SYS_futex, &slot->sequence, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return woken > 0 ? (uint32_t)woken : 0;
}

tr_sleeper tr_sleeper_of(uint32_t number) {
    return (tr_sleeper){.bit = 1u << number % 32};
}

/* Whoever waits for one word, as most do, has a shorter way through the kernel. */
static long sleep_on(tr_hint_slot *slots, const tr_watched *watched, uint32_t count, const tr_sleeper *sleeper,
                     const struct timespec *until) {
    waitv words[TR_HINT_WAIT_MAX];
    if (count == 1)
        return syscall(SYS_futex, &slots[watched->number].sequence, FUTEX_WAIT_BITSET, watched->seen, until, NULL,
                       sleeper->bit);
    for (uint32_t i = 0; i < count; i++) {
        const uintptr_t address = (uintptr_t)&slots[watched[i].number].sequence;
        words[i] = (waitv){.value = watched[i].seen, .address = address, .flags = WAIT_U32};
    }
    return syscall(__NR_futex_waitv, words, count, 0, until, CLOCK_MONOTONIC);
}

int tr_hints_wait(tr_hint_slot *slots, const tr_watched *watched, uint32_t count, tr_sleeper *sleeper,
                  uint64_t timeout_ns) {
    struct timespec until;
    int error = 0;
    if (!count || count > TR_HINT_WAIT_MAX) return EINVAL;
    clock_gettime(CLOCK_MONOTONIC, &until);
    sleeper->began_ns = (uint64_t)until.tv_sec * 1000000000u + (uint64_t)until.tv_nsec;
    until.tv_sec = (time_t)((sleeper->began_ns + timeout_ns) / 1000000000u);
    until.tv_nsec = (long)((sleeper->began_ns + timeout_ns) % 1000000000u);
    for (uint32_t i = 0; i < count; i++)
        atomic_fetch_add_explicit(&slots[watched[i].number].waiters, 1, memory_order_seq_cst);
    /* Whoever stops it says so first and then looks whether it sleeps: so one of the two sees the other. */
    atomic_fetch_add_explicit(&sleeper->asleep, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&sleeper->stopped, memory_order_seq_cst) &&
        sleep_on(slots, watched, count, sleeper, &until) < 0)
        error = errno;
    atomic_fetch_sub_explicit(&sleeper->asleep, 1, memory_order_release);
    for (uint32_t i = 0; i < count; i++)
        atomic_fetch_sub_explicit(&slots[watched[i].number].waiters, 1, memory_order_seq_cst);
    /* Something had changed already, the time is over, or a signal came: all are reasons to look. */
    return error == EAGAIN || error == ETIMEDOUT || error == EINTR ? 0 : error;
}

/* By the slot itself, so that nobody needs a word of their own to wait for: one who is about to sleep finds that it has
 * changed; of those who sleep only they are woken who share the bit, or wait for several words. They look and sleep on. */
void tr_hints_stop(tr_hint_slot *slots, const tr_watched *first, tr_sleeper *sleeper) {
    _Atomic uint32_t *sequence = &slots[first->number].sequence;
    atomic_store_explicit(&sleeper->stopped, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&sleeper->asleep, memory_order_seq_cst)) return;
    atomic_fetch_add_explicit(sequence, 1, memory_order_seq_cst);
    syscall(SYS_futex, sequence, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, sleeper->bit);
}

int tr_take_short_turns(void) {
    if (sched_getscheduler(0) != SCHED_OTHER) return 0;
    sched_attributes wanted = {.size = sizeof wanted, .policy = SCHED_OTHER, .runtime_ns = TURN_NS};
    errno = 0;
    wanted.nice = getpriority(PRIO_PROCESS, 0); /* of the calling thread, on Linux */
    if (errno) return errno;
    return syscall(SYS_sched_setattr, 0, &wanted, 0) ? errno : 0;
}
