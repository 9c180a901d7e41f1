/* Reading a backend's memory without asking it. Nothing is trusted: docs/formats/cells.md, "Order of reading".
 *
 * A read is a probe: `locate` finds the entry in the index and says how large the value is, the caller makes room,
 * `fetch` copies and checks. A torn read costs the probe one of its rounds. A view belongs to one thread at a time.
 */
#ifndef TAILRACE_CELL_VIEW_H
#define TAILRACE_CELL_VIEW_H

#include "cell_probe.h"

typedef struct {
    uint64_t hits, misses, torn, remaps, hints, unsettled;
} tr_view_stats;

typedef struct {
    char *folder;
    tr_cell_head head; /* as it was when we mapped */
    const tr_word *index, *data;
    int lends;     /* set before the first map: whoever has it sends the data by its file, too … */
    int data_file; /* … which is this one then, as long as the data is mapped */
    tr_view_stats stats;
} tr_view;

/* Map what the folder's head names, in place of what was mapped before. 0; an errno; or EINVAL for something that is
 * not a cell of this layout. `why` says what was seen. After a failure the view has what it had. */
int tr_view_map(tr_view *view, char *why);
void tr_view_unmap(tr_view *view);

/* Map a data file, so that what is a huge page in it can be one here. As mmap; munmap takes it back. */
void *tr_data_map(int file, uint64_t bytes, int protection);

/* Some probes found their index revoked: map again; they and all that is not fetched yet are new. As tr_view_map. */
int tr_view_renew(tr_view *view, tr_probe *probes, size_t count, char *why);

/* All probes that are new or torn: hash (if new), find, prefetch. */
void tr_view_locate(tr_view *view, tr_probe *probes, size_t count, uint32_t now_s);

/* Copy the values of all probes that were found to where `places` says, and check them. A torn one is new again, or
 * unsettled after its last round. */
void tr_view_fetch(tr_view *view, tr_probe *probes, uint8_t *const *places, size_t count);

/* ---- for an engine, which knows hashes only and proves nothing: whoever asked it does that */

/* FOUND, MISS, ASK, UNSETTLED or REVOKED. FOUND: an entry within bounds, to be copied. */
tr_probe_state tr_view_find(tr_view *view, tr_key_hash hash, uint32_t now_s, tr_index_entry *entry, tr_sight *sight);

/* Copy the raw data entry, entry.size bytes: header | key, padded | value. False: it changed meanwhile, so find it
 * again with the same sight, which ends after a bounded number of rounds. */
int tr_view_copy(tr_view *view, tr_key_hash hash, const tr_index_entry *entry, tr_sight *sight, uint8_t *to);

#endif
