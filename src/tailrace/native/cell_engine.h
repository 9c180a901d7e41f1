/* Serves a cell's memory to links on other hosts: one thread, one loop, no part of the backend's own program.
 *
 * It reads the folder through a view like anyone on the host. So it has what is published and nothing else, and it goes
 * on when the backend is busy, stopped or dead. A restarted backend is found by looking at the folder again.
 *
 * What always holds:
 *   before a good ticket  a connection holds a hello's bytes for hello_ms, and the oldest of too many goes
 *   behind it             requests and answers that wait for the peer take pending_bytes_max in all; when they would
 *                         take more, whoever has kept them waiting longest goes
 *   a turn                writes up to about TR_ENGINE_QUANTUM bytes, then the next connection has its turn
 *   whoever waits         for another version of a key holds its request, and is asked about when something was mutated
 *   between two looks     at those who mutate, at most about TR_ENGINE_READS bytes go to those who read, however many
 *                         they are; and each of the two kinds may have a budget of bytes per second of its own
 */
#ifndef TAILRACE_CELL_ENGINE_H
#define TAILRACE_CELL_ENGINE_H

#include "cell_frame.h"
#include "cell_mutation.h"

enum {
    TR_ENGINE_QUANTUM = 512 << 10,      /* bytes of answers in one turn, about */
    TR_ENGINE_QUANTUM_FIRST = 64 << 10, /* the same for a peer that has not shown yet how much it takes */
    TR_ENGINE_READS = 2 << 20,          /* bytes of answers between two looks at mutations, about */
    TR_ENGINE_PART = 64 << 10,          /* bytes of one answer, about: a link works on it while the next one comes */
    TR_ENGINE_BY_REFERENCE = 32 << 10,  /* bytes of an entry: a smaller one is copied sooner than its pages are listed */
    TR_ENGINE_GREETING_MAX = 256, /* connections without a ticket yet */
    TR_ENGINE_TICKETS_MAX = 4096, /* tickets that nobody took yet */
    TR_ENGINE_PENDING_LEAST = 1 << 20,
};

typedef struct {
    const char *folder;
    const char *host; /* a name or number, or unix:PATH, where nobody else listens */
    uint16_t port;    /* 0: any that is free */
    uint32_t connections_max;
    uint32_t hello_ms; /* for a ticket */
    uint32_t idle_ms;  /* without a request */
    uint32_t stall_ms; /* for the rest of a request, or to take one turn's answer */
    uint32_t request_bytes_max;
    uint64_t pending_bytes_max;
    tr_mutator mutator; /* lives longer than the engine; apply is NULL: it only reads */
} tr_engine_config;

/* Counts since the start, except where a line says now. */
typedef struct {
    uint64_t connections, greeting; /* now */
    uint64_t accepted, admitted, refused, closed_idle, closed_stalled, closed_short_of_memory, closed_malformed;
    uint64_t accept_failures;
    uint64_t requests, scanned, found, sent, read, mutated, received_bytes, sent_bytes;
    uint64_t renewals, renewals_failed;
    uint64_t pending_bytes; /* now */
    uint64_t pending_bytes_peak, cpu_ns;
    uint64_t reads_held, writes_held; /* times that those who were ready had to wait for their budget */
} tr_engine_stats;

typedef struct tr_engine tr_engine;

/* 0; an errno; or EINVAL for a folder that is no cell. `why` (TR_WHY_BYTES) says what was tried and seen. */
int tr_engine_start(tr_engine **started, const tr_engine_config *config, char *why);
void tr_engine_stop(tr_engine *engine);

/* Where it listens, as numbers. */
const char *tr_engine_host(const tr_engine *engine);
uint16_t tr_engine_port(const tr_engine *engine);

/* Let one link in that comes with this ticket within the time. 0; EEXIST: it is in; ENOSPC: too many wait. */
int tr_engine_admit(tr_engine *engine, const uint8_t *ticket, uint64_t valid_ms);

/* Let it in no more, and end its link soon if it is in. False: such a ticket is not known. */
int tr_engine_revoke(tr_engine *engine, const uint8_t *ticket);

/* How many bytes may be moved from now on for those who read, and for those who mutate; 0: as many as go. */
void tr_engine_budget(tr_engine *engine, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s);

void tr_engine_look(tr_engine *engine, tr_engine_stats *stats);

#endif
