/* Answering a link's requests out of a view, into memory: no socket, no clock.
 *
 * A request is answered in parts. Each call writes one answer with as many items as fit, and the next call goes on
 * where it ended. So what an engine holds for a link has a bound, whatever was asked.
 *
 * Large entries are not copied: an answer lends them out of the cell's memory to whoever sends it.
 */
#ifndef TAILRACE_CELL_ANSWER_H
#define TAILRACE_CELL_ANSWER_H

#include <sys/uio.h>

#include "cell_frame.h"
#include "cell_mutation.h"
#include "cell_view.h"

enum {
    TR_READ_BYTES_MAX = TR_SLAB_BYTES, /* of one item */
    /* Whatever the outbox holds already, one answer with one item of any size finds this much sufficient. */
    TR_ANSWER_ROOM = sizeof(tr_answer) + sizeof(tr_scanned) + TR_READ_BYTES_MAX,
    TR_LENT_MAX = 128,       /* entries in an outbox that are not copied to it */
    TR_LENT_LEAST = 8 << 10, /* bytes of such an entry: a smaller one is copied sooner than it is listed */
    TR_PIECES_MAX = 2 * TR_LENT_MAX + 1,
};

/* Bytes of an outbox that lie in the cell's memory still: `bytes` of it, from `begin` on, are those at `from`. Whoever
 * reads them may find them torn, as any copy may be; whoever asked for them proves them. */
typedef struct {
    size_t begin, bytes;
    const tr_word *from;
} tr_lent;

/* Answers that are to be sent. Everything has its place at `at`, but what is lent was not brought there. */
typedef struct {
    uint8_t *at;
    size_t used, room;
    uint32_t lents_count;
    tr_lent lents[TR_LENT_MAX]; /* in the order of their places */
} tr_outbox;

/* The cell behind the answers. When its index is revoked, it is mapped again and the answer goes on. */
typedef struct {
    tr_view view;
    uint64_t now_ms;    /* set by the caller, now and then */
    uint64_t renew_ms;  /* after a failure, not before this time */
    uint64_t epoch;     /* of the mapping: what was found before is found again */
    uint64_t scanned, found, sent, read, mutated, renewals, failures;
    tr_mutator mutator; /* apply is NULL: no mutations are taken here */
    tr_outbox *lent_to; /* what it has of this memory is brought there before the memory goes away */
} tr_source;

/* The size of the request that these bytes begin with. 0: more bytes are needed to tell, or to have it whole.
 * -1: it cannot be a request. */
int64_t tr_request_measure(const uint8_t *bytes, size_t count, uint32_t bytes_max);

/* For a whole request that waits: how long at most. 0: it does not wait. */
uint32_t tr_request_wait_ms(const uint8_t *request);

/* Whether what it waits for is there: a key has another version than the one that is known, or the cell changed hands. */
int tr_request_is_due(tr_source *source, const uint8_t *request);

/* Write one answer to a whole request, from item `*next` on, to an outbox with less than `enough` bytes and room for
 * TR_ANSWER_ROOM more than that. It ends with the item that makes it enough. True: the request is answered. */
int tr_request_answer(tr_source *source, const uint8_t *request, uint32_t *next, tr_outbox *out, size_t enough);

/* An answer to what was no request. */
void tr_request_refuse(const tr_source *source, tr_outbox *out);

/* Where the bytes of an outbox from one place to another lie, in their order: how many pieces. No entry that is lent
 * lies across one of both places. */
size_t tr_outbox_pieces(const tr_outbox *out, size_t from, size_t to, struct iovec pieces[TR_PIECES_MAX]);

/* A copy of all but the first `skipped` bytes of an outbox. */
void tr_outbox_copy(const tr_outbox *out, size_t skipped, uint8_t *to);

/* Nothing is in it any more. */
static inline void tr_outbox_clear(tr_outbox *out) {
    out->used = 0;
    out->lents_count = 0;
}

/* Map again if the index is revoked. */
void tr_source_refresh(tr_source *source);

#endif
