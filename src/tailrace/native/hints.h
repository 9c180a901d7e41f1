/* Words in shared memory that say "look again", for those who would otherwise look over and over.
 *
 *   file: 1024 slots of one cache line each
 *   slot: | u32 sequence | u32 waiters | zero … |
 *
 * Whoever has news raises the sequence of their slot and wakes those who sleep on it. Whoever waits reads the sequences,
 * looks whether there is anything, and then sleeps until one of them has changed. A hint is never more than that: a slot
 * may be shared by several streams, and a waiter that was killed leaves a count behind, which costs a system call.
 */
#ifndef TAILRACE_HINTS_H
#define TAILRACE_HINTS_H

#include <stdatomic.h>
#include <stdint.h>

enum { TR_HINT_SLOTS = 1024, TR_HINT_SLOT_BYTES = 64, TR_HINT_WAIT_MAX = 127 };

typedef struct {
    _Atomic uint32_t sequence, waiters;
    uint8_t rest[TR_HINT_SLOT_BYTES - 8];
} tr_hint_slot;

_Static_assert(sizeof(tr_hint_slot) == TR_HINT_SLOT_BYTES, "a slot is a cache line: docs/formats/layers.md");

/* 0 or an errno. The file is made if it is not there and `writable`; it has the one size or is refused (EINVAL). */
int tr_hints_map(const char *path, int writable, tr_hint_slot **slots);
void tr_hints_unmap(tr_hint_slot *slots);

/* How many wait for it, or are about to. */
uint32_t tr_hint_waiters(const tr_hint_slot *slot);
/* How many it has woken. */
uint32_t tr_hint_raise(tr_hint_slot *slot);
static inline uint32_t tr_hint_read(const tr_hint_slot *slot) {
    return atomic_load_explicit(&slot->sequence, memory_order_acquire);
}

/* A slot that somebody waits for, and what its sequence was when they last looked. */
typedef struct {
    uint32_t number, seen;
} tr_watched;

/* Of one who waits: a thread of its own sleeps, any may stop it. `asleep`: how many sleep, or are about to. `bit`: by which
 * it is woken when it alone is meant. `began_ns`: when it last began to sleep, CLOCK_MONOTONIC. */
typedef struct {
    _Atomic uint32_t stopped, asleep;
    uint32_t bit;
    uint64_t began_ns;
} tr_sleeper;

/* Any number will do: sleepers whose numbers are equal modulo 32 are woken together. */
tr_sleeper tr_sleeper_of(uint32_t number);

/* Sleep until the sequence of one of these slots is not what was seen, or the sleeper is stopped, or the time is over.
 * 0, or an errno: ENOSYS where the kernel cannot wait for several words. */
int tr_hints_wait(tr_hint_slot *slots, const tr_watched *watched, uint32_t count, tr_sleeper *sleeper,
                  uint64_t timeout_ns);
/* It wakes up, and does not sleep any more. `first`: of those that it may be asleep on, the one that always is. */
void tr_hints_stop(tr_hint_slot *slots, const tr_watched *first, tr_sleeper *sleeper);

/* Whoever wakes others should not wait until somebody's long turn is over: from here on the calling thread has short turns,
 * which go before longer ones, and no larger share of the processor. 0 or an errno; where the kernel does not know of
 * turns (before Linux 6.12) nothing is changed, nor for a thread that somebody has given another place than the usual. */
int tr_take_short_turns(void);

#endif
