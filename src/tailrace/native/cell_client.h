/* Reading a replicated cell: which backends have a key, whom to believe, and where its bytes come from.
 *
 * A batch goes through three steps, so that whoever holds a lock can make room in between:
 *   prepare   hash the keys, find their replicas, group the questions by backend
 *   look      ask indexes until every key is decided: TAKE and READY have a value, the others none
 *   take      bring the values to their places; a torn one is open again, and the batch is looked at once more
 *
 * What is decided: a value is believed when `need` replicas agree on its version and its bytes come from one of them
 * and prove themselves. Shared memory is asked directly, two replicas first and the third when they differ. Engines
 * are asked all at once, and only one of them, the quickest so far, is asked for the bytes along with the index.
 *
 * A client belongs to one thread at a time.
 */
#ifndef TAILRACE_CELL_CLIENT_H
#define TAILRACE_CELL_CLIENT_H

#include "cell.h"
#include "cell_link.h"
#include "cell_place.h"
#include "cell_probe.h"
#include "cell_view.h"

typedef enum {
    TR_KEY_OPEN = 0,
    TR_KEY_TAKE = 1,        /* its bytes lie in a view: make room, then take */
    TR_KEY_READY = 2,       /* its bytes were received and checked: make room, then take */
    TR_KEY_HIT = 3,
    TR_KEY_MISS = 4,
    TR_KEY_ASK = 5,         /* a bucket has overflowed, and the rest does not decide: ask the backends themselves */
    TR_KEY_INQUORATE = 6,   /* the replicas did not agree, however often they were asked */
    TR_KEY_UNREACHABLE = 7, /* too few replicas answered, or not in time */
} tr_key_state;

typedef struct {
    tr_key_hash hash;
    uint32_t home;
    uint32_t probes[TR_COPIES_MAX]; /* which of the client's probes asks each replica */
    uint8_t asked, sent, chosen, attempts;
    uint8_t reading; /* the chosen replica was asked for the bytes alone */
    tr_key_state state;
} tr_key;

enum {
    TR_TROUBLE_LINK = 1,   /* the connection broke */
    TR_TROUBLE_VIEW = 2,   /* its memory cannot be mapped any more */
    TR_TROUBLE_CONFIG = 4, /* it has another configuration than it was attached with */
};

typedef struct {
    tr_view *view; /* at most one of both */
    tr_link *link;
    uint64_t config_id;
    uint32_t trouble;
    int suspect;       /* said to be dead: its memory is asked last */
    double answer_ns;  /* of its link, smoothed */
} tr_backend;

typedef struct {
    uint64_t hits, misses, asks, inquorate, unreachable, retries, hedges, scan_reads, two_step_reads;
} tr_client_stats;

typedef struct {
    uint32_t backends, copies, quorum;
    uint32_t attempts_max;   /* of one key, when replicas differ or bytes are torn */
    uint32_t data_bytes_max; /* larger entries are not sent along with the index */
    uint64_t hedge_ns;
    tr_backend *backend;
    tr_client_stats stats;
    /* the batch */
    tr_key *keys;
    tr_probe *probes;      /* grouped by backend */
    uint32_t *owners;      /* by probe: its key */
    uint8_t **places;      /* by probe: where its value goes */
    tr_probe **asking;     /* room for one question */
    uint32_t *begin;       /* by backend: its first probe; one more at the end */
    size_t keys_count, keys_room;
    int all_hit;           /* every key has its value, which is at its place */
    uint8_t **offers;      /* by key: where its value may be received; NULL: nowhere but in its link's buffer */
    uint32_t offer_bytes;  /* the room at each; 0: nothing is offered */
    uint8_t **stashed;     /* by key: a value that had to leave its link's buffer, or NULL */
    size_t stashes;
} tr_client;

/* 0 or ENOMEM. `copies` of each key, at most one per backend; `quorum` of them must agree. */
int tr_client_open(tr_client *client, uint32_t backends, uint32_t copies, uint32_t quorum);
void tr_client_close(tr_client *client);

/* Take over a view or a link as the way to a backend, in place of what was there; both NULL: no way. */
void tr_client_attach(tr_client *client, uint32_t backend, tr_view *view, tr_link *link, uint64_t config_id);

/* 0 or ENOMEM. The keys' bytes stay where they are until the batch is over. */
int tr_client_prepare(tr_client *client, const tr_slice *keys, size_t count);

/* For keys of a batch that is just prepared: where their values may be received at once, if they are not larger than
 * `bytes`, which is alike for all that are offered any. Memory that no other key is offered, until the batch is over.
 * Unless the value is taken to this place, anything may be there then. */
static inline void tr_client_offer(tr_client *client, size_t key, uint8_t *place, uint32_t bytes) {
    client->offers[key] = place;
    client->offer_bytes = bytes;
}

/* One look at the memories here, when all of them are, at keys that are just prepared. It waits for nothing, so it is
 * not worth letting go of a lock for a few keys. How many keys are open still; look() goes on with them. */
size_t tr_client_glance(tr_client *client, uint32_t now_s, int relaxed);

/* Decide every open key. `relaxed`: believe the first replica that answers. Both are over at the deadline, in
 * nanoseconds of the monotonic clock. */
void tr_client_look(tr_client *client, uint32_t now_s, int relaxed, uint64_t deadline_ns);

/* The probe that has a decided key's entry: its version, its value's size. */
static inline tr_probe *tr_client_chosen(const tr_client *client, size_t key) {
    return &client->probes[client->keys[key].probes[client->keys[key].chosen]];
}

static inline void tr_client_place(tr_client *client, size_t key, uint8_t *place) {
    client->places[client->keys[key].probes[client->keys[key].chosen]] = place;
}

/* Do not take this one, for which there is no room: it counts as missed. */
void tr_client_leave(tr_client *client, size_t key);

/* Bring all values to their places. How many keys are open again. */
size_t tr_client_take(tr_client *client);

/* The batch is over: late answers are dropped. */
void tr_client_finish(tr_client *client);

#endif
