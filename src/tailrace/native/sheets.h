/* Sheets: the newest messages of one shard, in memory that its producer packs them into, its disk is written from, and
 * consumers of the host read in place. docs/formats/sheets.md is the contract.
 *
 *   memory   head (4 KiB) | table: 64 x 512 B | zeros up to 64 KiB | sheet | sheet | …
 *     sheet    data, from its begin on | entries, from `entries_at` on
 *   pins     4096 words, one for each consumer: a bit for each sheet that it holds
 *
 * One process writes `memory`, and only behind what it has told: messages that were told lie still until their sheet is
 * begun anew. It begins one anew only when no consumer holds it. Both sides say first what they are about to do and then
 * look at what the other says (seq_cst), so at least one of them sees the other: a consumer that pins a sheet and then
 * finds its generation unchanged may read it until it lets go.
 *
 * The place of a consumer that was killed is free for others: who has a place holds a lock on its byte of `pins`, and
 * such locks go with the process.
 */
#ifndef TAILRACE_SHEETS_H
#define TAILRACE_SHEETS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "hints.h"

#define TR_SHEETS_MAGIC 0x5445454853524154u /* "TARSHEET" */

enum {
    TR_SHEETS_VERSION = 1,
    TR_SHEETS_MAX = 64,
    TR_SHEET_RUNS = 7,
    TR_SHEETS_HEAD_BYTES = 64 << 10,
    TR_PLACES = 4096,
};

#define TR_NO_SHEET UINT32_MAX

typedef _Atomic uint64_t tr_shared_word;

/* Consecutive messages of one segment. All but `count` stay as they are once `runs` covers it. */
typedef struct {
    tr_shared_word created_us;  /* of the segment */
    tr_shared_word first;       /* number of the first entry in the segment */
    tr_shared_word start;       /* position of the first message */
    tr_shared_word data_at;     /* where its bytes lie, from the sheet's begin on */
    tr_shared_word entry_at;    /* which of the sheet's entries is the first */
    tr_shared_word count;       /* of entries that may be read; grows */
    uint64_t zero[2];
} tr_run;

typedef struct {
    tr_shared_word generation; /* another number for every content; 0: none that may be read */
    tr_shared_word runs;
    uint64_t zero[6];
    tr_run run[TR_SHEET_RUNS];
} tr_sheet;

typedef struct {
    uint64_t magic;
    uint32_t version, sheets;
    uint64_t sheet_bytes, entries_at;
    _Atomic uint32_t closed; /* its writer is gone, or another one has come */
    _Atomic uint32_t newest; /* the sheet with what was flushed last; TR_NO_SHEET: that is in none */
} tr_sheets_head;

typedef struct {
    tr_sheets_head *head;
    tr_sheet *table;
    uint8_t *sheets;
    tr_shared_word *places;
    size_t bytes;      /* of the mapping */
    int memory, pins;  /* files */
    uint32_t count;
    uint64_t sheet_bytes, entries_at; /* as they were when it was opened: the head is the other side's */
} tr_sheets;

/* ---- writing. 0, or an errno. */

/* Files of these names must not be there. The lock on `memory` is taken: it tells a living writer from a dead one. */
int tr_sheets_make(tr_sheets *all, const char *memory, const char *pins, uint32_t sheets, uint64_t sheet_bytes,
                   uint64_t entries_at);
/* Have memory for the first bytes of a sheet's data and entries: one that is short of it must not end the process. */
int tr_sheet_back(tr_sheets *all, uint32_t number, uint64_t from, uint64_t to);
/* Begin a sheet anew, if no consumer holds it: 1 if so. */
int tr_sheet_begin(tr_sheets *all, uint32_t number, uint64_t generation);
/* These entries, which lie in the sheet with all their data, may be read: 0 if the sheet has no place for another run. */
int tr_sheet_tell(tr_sheets *all, uint32_t number, uint64_t created_us, uint64_t first, uint64_t start,
                  uint64_t data_at, uint64_t entry_at, uint64_t count);
/* What is to be told of one flush, and who is to be woken: made ready before it, given when it is durable. */
typedef struct {
    tr_sheets *all;
    tr_hint_slot *slot;
    uint32_t number;
    uint64_t created_us, first, start, data_at, entry_at, count; /* as tr_sheet_tell's */
    int given, shown;                                            /* shown: it could be told */
    uint32_t woken;
} tr_telling;
/* Once, however often it is called; by whoever flushes, and of one flush after the other. */
void tr_telling_give(void *telling);
/* Something was flushed that is in no sheet. */
void tr_sheets_missed(tr_sheets *all);
/* Nothing more comes. The files go, unless others have their names by now. */
void tr_sheets_end(tr_sheets *all, const char *memory, const char *pins);
void tr_sheets_close(tr_sheets *all);
/* If their writer is dead, or `living` or not: tell those who read that it is over, and unlink both files. 1 if there
 * are none now. */
int tr_sheets_reap(const char *memory, const char *pins, int living);

/* ---- reading */

typedef struct {
    uint32_t sheet;
    uint64_t generation;
    uint64_t count;    /* of entries from the wanted one on */
    uint64_t data_at;  /* where the wanted message lies in the sheet */
    uint64_t entry_at; /* which of the sheet's entries is the wanted one */
    int last;          /* nothing behind these was flushed, as far as the sheets know */
} tr_found;

int tr_sheets_open(tr_sheets *all, const char *memory, const char *pins);
int tr_sheets_has_ended(const tr_sheets *all);
/* Where the entry of a segment lies, whose message begins at `position`: 1 if it was found. If not, `last` says whether
 * it is the next one that comes. `guess`: look at this sheet first. */
int tr_sheets_find(const tr_sheets *all, uint32_t guess, uint64_t created_us, uint64_t entry, uint64_t position,
                   tr_found *found);
/* The segment that follows this one, if its first message is in a sheet and begins at `position`, behind the last one of
 * this segment; 0: none that is known. */
uint64_t tr_sheets_next(const tr_sheets *all, uint64_t created_us, uint64_t position);
/* Whether a sheet still has the content that was found: what was copied before this is right if so. */
int tr_sheet_stands(const tr_sheets *all, uint32_t number, uint64_t generation);
/* A place among `pins`, or -1. */
int tr_sheets_enter(tr_sheets *all);
/* Hold a sheet: 1 if it still has the content that was found. */
int tr_sheet_pin(tr_sheets *all, int place, uint32_t number, uint64_t generation);
void tr_sheet_let_go(tr_sheets *all, int place, uint32_t number);

#endif
