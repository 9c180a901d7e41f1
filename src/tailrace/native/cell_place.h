/* Which backends have a key: its home by consistent hashing, and the next ones in the ring. */
#ifndef TAILRACE_CELL_PLACE_H
#define TAILRACE_CELL_PLACE_H

#include "cell.h"

enum { TR_COPIES_MAX = 3 };

/* Adding a backend moves few keys. Jump consistent hashing: each step asks how far the number of backends could grow
 * before this key would move. */
static inline uint32_t tr_home_of(tr_key_hash hash, uint32_t backends) {
    uint64_t state = hash.low, home = 0, next = 0;
    if (backends == 1) return 0;
    while (next < backends) {
        home = next;
        state = state * 2862933555777941757u + 1;
        next = (uint64_t)((double)(home + 1) * (double)(1u << 31) / (double)((state >> 33) + 1));
    }
    return (uint32_t)home;
}

/* Whether `backend` is one of the `copies` backends that begin at `home`. */
static inline int tr_has_copy(uint32_t home, uint32_t backend, uint32_t backends, uint32_t copies) {
    return (backend + backends - home) % backends < copies;
}

#endif
