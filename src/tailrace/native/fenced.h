/* A flush on this machine's own disk, from the first byte that is written to the last fence that tells of it, without the
 * interpreter in between.
 *
 * Every act is one under a fence: lock it, see that it is to the byte as we have left it, act, unlock. If somebody else
 * has the lock, or the fence is not as we know it, nothing more is done and TR_FENCED_OTHERWISE says so: what that means
 * is judged where there is time for it.
 */
#ifndef TAILRACE_FENCED_H
#define TAILRACE_FENCED_H

#include <stddef.h>
#include <stdint.h>

enum { TR_FENCE_BYTES = 128, TR_FENCED_OTHERWISE = -1 };

/* One file: what is appended, and its fence. */
typedef struct {
    int file, fence;
    int direct;                /* a handle that passes the page cache by; -1: there is none, or it turned out to be of no use */
    const uint8_t *mine;       /* TR_FENCE_BYTES: the fence as we have left it … */
    const uint8_t *following;  /* … and as it is to be when all of this is synced */
    const uint8_t *bytes;
    size_t count;
    uint64_t offset;
    size_t written, passed;    /* how far it came, and how many bytes of that passed the page cache by */
    int sync_error;            /* an errno: what the disk has of it is unknown */
    int told;                  /* the fence is the following one */
} tr_side;

/* Append to both and bring both to the disk, on which the second is begun first; then tell of the first, then of the
 * second. 0, an errno or TR_FENCED_OTHERWISE; both sides tell how far it came. The first is written in turns of
 * `turn_bytes`, with the fence free for a moment in between. Whole pages of it go past the page cache if there are `direct_least`
 * bytes of them and memory lies as the disk wants it. */
int tr_fenced_flush(tr_side *first, tr_side *second, size_t turn_bytes, size_t direct_least);

#endif
