/* Reading a backend's memory without asking it. Nothing is trusted: docs/formats/cells.md, "Order of reading".
 *
 * A read is a probe: `locate` finds the entry in the index and says how large the value is, the caller makes room,
 * `fetch` copies and checks. A torn read costs the probe one of its rounds. A view belongs to one thread at a time.
 */
#ifndef TAILRACE_CELL_VIEW_H
#define TAILRACE_CELL_VIEW_H

#include "cell.h"

typedef enum {
    TR_PROBE_NEW = 0,
    TR_PROBE_FOUND = 1,     /* in the index: make room for value_bytes, then fetch */
    TR_PROBE_HIT = 2,       /* fetched and checked */
    TR_PROBE_MISS = 3,
    TR_PROBE_ASK = 4,       /* missed, but the bucket has overflowed: the backend may have it */
    TR_PROBE_UNSETTLED = 5, /* changing whenever looked at, or damaged: not decided */
    TR_PROBE_REVOKED = 6,   /* the index is another one by now: map again */
} tr_probe_state;

typedef struct {
    tr_slice key;
    tr_key_hash hash;
    tr_index_entry entry;
    uint64_t counter; /* of the bucket, when the entry was found in it */
    uint32_t value_bytes, rounds;
    tr_probe_state state;
} tr_probe;

typedef struct {
    uint64_t hits, misses, torn, remaps, hints, unsettled;
} tr_view_stats;

typedef struct {
    char *folder;
    tr_cell_head head; /* as it was when we mapped */
    const tr_word *index, *data;
    tr_view_stats stats;
} tr_view;

/* Map what the folder's head names, in place of what was mapped before. 0; an errno; or EINVAL for something that is
 * not a cell of this layout. `why` says what was seen. After a failure the view has what it had. */
int tr_view_map(tr_view *view, char *why);
void tr_view_unmap(tr_view *view);

/* Some probes found their index revoked: map again; they and all that is not fetched yet are new. As tr_view_map. */
int tr_view_renew(tr_view *view, tr_probe *probes, size_t count, char *why);

/* All probes that are new or torn: hash (if new), find, prefetch. */
void tr_view_locate(tr_view *view, tr_probe *probes, size_t count, uint32_t now_s);

/* Copy the values of all probes that were found to where `places` says, and check them. A torn one is new again, or
 * unsettled after its last round. */
void tr_view_fetch(tr_view *view, tr_probe *probes, uint8_t *const *places, size_t count);

#endif
