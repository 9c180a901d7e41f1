#define _GNU_SOURCE
#include "cell_engine.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cell_answer.h"
#include "cell_tickets.h"

enum {
    EVENTS = 64,              /* taken from the kernel at once */
    ACCEPTS = 32,             /* connections taken at once */
    LEAVING_MAX = 128,        /* connections that were told why and have not hung up yet */
    LEAVE_MS = 1000,          /* how long they have for it */
    ACCEPT_PAUSE_MS = 100,    /* after the system had no descriptor or memory for a connection */
    BACKLOG = 512,
    UNSENT_BYTES = 128 << 10, /* that the kernel holds for a connection which takes no more */
    STACK_BYTES = 512 << 10,
    HOST_BYTES = NI_MAXHOST,
    BURST_MS = 50, /* of a budget, that may be saved up */
};

/* What a connection is for: shown by what it last asked for. */
typedef enum { READS, WRITES, KINDS } kind;

/* Which of the queues a connection is in: each is ordered by time, so only its oldest has to be looked at. */
typedef enum {
    GREETING, /* no ticket yet */
    QUIET,    /* nothing is held for it */
    WAITING,  /* its request is answered when there is news; not ordered by time */
    HOLDING,  /* requests or answers wait for it */
    LEAVING,  /* it was told why, and may read that before we hang up */
    QUEUES,
} standing;

typedef struct connection connection;
struct connection {
    int socket;
    standing standing;
    uint64_t since_ms;           /* in its queue */
    connection *older, *younger; /* in its queue */
    connection *next_ready;
    kind kind;
    int is_ready, is_readable, is_writable, is_hung_up, is_gone;
    uint32_t ticket; /* its place in the table */
    /* Requests that came and are not answered yet. The first is answered up to `next_item`. */
    uint8_t *asked;
    size_t asked_at, asked_count;
    uint32_t next_item;
    uint64_t until_ms; /* while it waits: for how long. 0: it does not */
    size_t quantum; /* of its next turn */
    /* An answer that the kernel did not take yet. */
    uint8_t *owed;
    size_t owed_at, owed_count;
    size_t hello_count;
    uint8_t hello[sizeof(tr_hello)];
};

typedef struct {
    connection *oldest, *youngest;
    uint32_t count;
} queue;

/* Connections that wait for their turn, and how many bytes they may move. */
typedef struct {
    connection *first, *last;
    uint32_t count;
    _Atomic uint64_t bytes_per_s; /* 0: no limit */
    int64_t left;                 /* may be overdrawn by a turn */
    uint64_t filled_ms;
    _Atomic uint64_t held;
} line;

typedef struct {
    _Atomic uint64_t greeting, connections, accepted, admitted, refused, idle, stalled, short_of_memory, malformed;
    _Atomic uint64_t accept_failures, requests, scanned, found, sent, read, mutated, received_bytes, sent_bytes;
    _Atomic uint64_t renewals, renewals_failed, pending, pending_peak;
} counters;

struct tr_engine {
    tr_engine_config config;
    tr_source source;
    tr_tickets tickets;
    int listener, events, alarm; /* descriptors */
    pid_t process;
    pthread_t thread;
    atomic_int stopping, revoking, mutated;
    atomic_uint waiters;
    char host[HOST_BYTES];
    uint16_t port;
    /* of the thread alone */
    uint64_t now_ms, accept_ms;
    int is_accepting;
    int copies; /* what is lent is sent as any other bytes are */
    queue queues[QUEUES];
    line lines[KINDS];
    uint64_t waited_ms; /* when the first of those who wait has waited enough */
    connection *gone;
    uint8_t *inbox; /* request_bytes_max */
    tr_outbox out;
    counters counts;
};

/* ---- time, counts, queues */

static uint64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Only the engine's thread writes them, so no addition has to be atomic as a whole. */
static void put(_Atomic uint64_t *counter, uint64_t number) { atomic_store_explicit(counter, number, memory_order_relaxed); }
static uint64_t get(const _Atomic uint64_t *counter) { return atomic_load_explicit(counter, memory_order_relaxed); }
static void add(_Atomic uint64_t *counter, uint64_t number) { put(counter, get(counter) + number); }

static void leave_queue(tr_engine *engine, connection *connection) {
    queue *queue = &engine->queues[connection->standing];
    *(connection->older ? &connection->older->younger : &queue->oldest) = connection->younger;
    *(connection->younger ? &connection->younger->older : &queue->youngest) = connection->older;
    queue->count--;
}

static void enter_queue(tr_engine *engine, connection *connection, standing standing) {
    queue *queue = &engine->queues[standing];
    connection->standing = standing;
    connection->since_ms = engine->now_ms;
    connection->older = queue->youngest;
    connection->younger = NULL;
    *(queue->youngest ? &queue->youngest->younger : &queue->oldest) = connection;
    queue->youngest = connection;
    queue->count++;
}

static void move(tr_engine *engine, connection *connection, standing standing) {
    leave_queue(engine, connection);
    enter_queue(engine, connection, standing);
}

static uint32_t serving(const tr_engine *engine) {
    return engine->queues[QUIET].count + engine->queues[WAITING].count + engine->queues[HOLDING].count;
}

static void make_ready(tr_engine *engine, connection *connection) {
    if (connection->is_ready || connection->is_gone) return;
    line *line = &engine->lines[connection->kind];
    connection->is_ready = 1;
    connection->next_ready = NULL;
    *(line->last ? &line->last->next_ready : &line->first) = connection;
    line->last = connection;
    line->count++;
}

static int64_t burst(uint64_t bytes_per_s) { return (int64_t)(bytes_per_s / (1000 / BURST_MS)) + 1; }

static void fill(const tr_engine *engine, line *line) {
    const uint64_t bytes_per_s = get(&line->bytes_per_s), passed_ms = engine->now_ms - line->filled_ms;
    if (!bytes_per_s) {
        line->left = 0; /* when there is a budget again it begins with nothing */
    } else {
        const int64_t more = (int64_t)(bytes_per_s / 1000.0 * (double)(passed_ms < 60000 ? passed_ms : 60000));
        if (!more) return;
        line->left = line->left + more < burst(bytes_per_s) ? line->left + more : burst(bytes_per_s);
    }
    line->filled_ms = engine->now_ms;
}

static int may_move(const line *line) { return !get(&line->bytes_per_s) || line->left > 0; }

/* How long until somebody who is ready may move bytes, in milliseconds; -1: nobody is ready. */
static int ready_in_ms(const tr_engine *engine) {
    int soonest_ms = -1;
    for (int i = 0; i < KINDS; i++) {
        const line *line = &engine->lines[i];
        if (!line->first) continue;
        if (may_move(line)) return 0;
        const double missing_ms = 1000.0 * (double)(1 - line->left) / (double)get(&line->bytes_per_s) + 1;
        const int wait_ms = missing_ms < 1000 ? (int)missing_ms : 1000;
        if (soonest_ms < 0 || wait_ms < soonest_ms) soonest_ms = wait_ms;
    }
    return soonest_ms;
}

static void count_pending(tr_engine *engine, size_t more, size_t less) {
    uint64_t pending = get(&engine->counts.pending) + more - less;
    put(&engine->counts.pending, pending);
    if (pending > get(&engine->counts.pending_peak)) put(&engine->counts.pending_peak, pending);
}

/* Whoever has an answer can see that it was counted. */
static void publish(tr_engine *engine) {
    put(&engine->counts.connections, serving(engine));
    put(&engine->counts.greeting, engine->queues[GREETING].count);
    put(&engine->counts.scanned, engine->source.scanned);
    put(&engine->counts.found, engine->source.found);
    put(&engine->counts.sent, engine->source.sent);
    put(&engine->counts.read, engine->source.read);
    put(&engine->counts.mutated, engine->source.mutated);
    put(&engine->counts.renewals, engine->source.renewals);
    put(&engine->counts.renewals_failed, engine->source.failures);
}

/* ---- the end of a connection */

static void drop_asked(tr_engine *engine, connection *connection) {
    if (!connection->asked) return;
    count_pending(engine, 0, connection->asked_count);
    free(connection->asked);
    connection->asked = NULL;
    connection->asked_at = connection->asked_count = 0;
}

static void drop_owed(tr_engine *engine, connection *connection) {
    if (!connection->owed) return;
    count_pending(engine, 0, connection->owed_count);
    free(connection->owed);
    connection->owed = NULL;
    connection->owed_at = connection->owed_count = 0;
}

static void drop_held(tr_engine *engine, connection *connection) {
    drop_asked(engine, connection);
    drop_owed(engine, connection);
    if (connection->ticket != TR_TICKET_NONE) tr_tickets_leave(&engine->tickets, connection->ticket, 0);
    connection->ticket = TR_TICKET_NONE;
}

/* Who mutates elsewhere looks at the number of waiters behind the mutation: so it is raised before the look at what
 * they wait for, and one of both notices. */
static void begin_to_wait(tr_engine *engine, connection *connection, uint32_t wait_ms) {
    connection->until_ms = engine->now_ms + wait_ms;
    if (connection->until_ms < engine->waited_ms) engine->waited_ms = connection->until_ms;
    atomic_fetch_add(&engine->waiters, 1);
}

static void end_waiting(tr_engine *engine, connection *connection) {
    if (!connection->until_ms) return;
    connection->until_ms = 0;
    atomic_fetch_sub(&engine->waiters, 1);
}

/* Its memory stays until nothing that was taken from the kernel names it any more. */
static void hang_up(tr_engine *engine, connection *connection) {
    if (connection->is_gone) return;
    end_waiting(engine, connection);
    drop_held(engine, connection);
    leave_queue(engine, connection);
    close(connection->socket);
    connection->is_gone = 1;
    connection->younger = engine->gone;
    engine->gone = connection;
}

static void bury(tr_engine *engine) {
    connection **link = &engine->gone;
    while (*link) {
        connection *connection = *link;
        if (connection->is_ready) {
            link = &connection->younger;
            continue;
        }
        *link = connection->younger;
        free(connection);
    }
}

/* No more from us. Hanging up on bytes that were not read would make the kernel drop what we said last, so they are
 * read until the peer hangs up, or its time is over. */
static void part_with(tr_engine *engine, connection *connection) {
    end_waiting(engine, connection);
    drop_held(engine, connection);
    shutdown(connection->socket, SHUT_WR);
    if (engine->queues[LEAVING].count >= LEAVING_MAX) hang_up(engine, engine->queues[LEAVING].oldest);
    move(engine, connection, LEAVING);
    make_ready(engine, connection);
}

/* Memory that waits for peers has a bound: whoever has kept it waiting longest goes. */
static void keep_within_bounds(tr_engine *engine) {
    while (get(&engine->counts.pending) > engine->config.pending_bytes_max && engine->queues[HOLDING].oldest) {
        add(&engine->counts.short_of_memory, 1);
        hang_up(engine, engine->queues[HOLDING].oldest);
    }
}

/* ---- moving bytes. Both return how many; -1: the connection is gone */

static ssize_t receive(tr_engine *engine, connection *connection, uint8_t *to, size_t room) {
    ssize_t got = recv(connection->socket, to, room, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR) got = recv(connection->socket, to, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        connection->is_readable = 0;
        return 0;
    }
    if (got <= 0) { /* a link hangs up only when it wants nothing more */
        hang_up(engine, connection);
        return -1;
    }
    /* Less than there was room for: there is no more, and the next bytes will be announced. But an end was already. */
    if ((size_t)got < room && !connection->is_hung_up) connection->is_readable = 0;
    add(&engine->counts.received_bytes, (uint64_t)got);
    return got;
}

/* What send() and its kin said: how many bytes were taken; -1: the connection is gone. */
static ssize_t taken(tr_engine *engine, connection *connection, ssize_t sent, size_t count) {
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        hang_up(engine, connection);
        return -1;
    }
    if (sent < 0) sent = 0;
    if ((size_t)sent < count) connection->is_writable = 0;
    add(&engine->counts.sent_bytes, (uint64_t)sent);
    return sent;
}

/* What is in one piece costs the kernel less than a list of one. */
static ssize_t send_pieces(int socket, struct iovec *pieces, size_t pieces_count, int flags) {
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = pieces_count};
    ssize_t sent;
    do {
        sent = pieces_count == 1 ? send(socket, pieces->iov_base, pieces->iov_len, flags | MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : sendmsg(socket, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

static ssize_t transmit(tr_engine *engine, connection *connection, const uint8_t *from, size_t count) {
    return taken(engine, connection, send_pieces(connection->socket, &(struct iovec){(void *)from, count}, 1, 0), count);
}

/* An entry by reference: its pages wait in the socket until the peer takes them, and nobody here copies them. As with a
 * network card that reads memory, whoever gets them may find them written over, and proves them. */
static ssize_t send_lent(tr_engine *engine, connection *connection, const tr_lent *lent) {
    const tr_view *view = &engine->source.view;
    off_t offset = (off_t)((const uint8_t *)lent->from - (const uint8_t *)view->data);
    const off_t end = offset + (off_t)lent->bytes;
    ssize_t got;
    do {
        got = sendfile(connection->socket, view->data_file, &offset, (size_t)(end - offset));
    } while (offset < end && (got > 0 || (got < 0 && errno == EINTR)));
    const size_t sent = lent->bytes - (size_t)(end - offset);
    if (got < 0 && !sent && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
        engine->copies = 1; /* this system cannot do it */
        got = send_pieces(connection->socket, &(struct iovec){(void *)lent->from, lent->bytes}, 1, 0);
        return taken(engine, connection, got, lent->bytes);
    }
    if (!got) { /* a file that is shorter than its mapping */
        errno = EIO;
        return taken(engine, connection, -1, lent->bytes);
    }
    const int is_full = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return taken(engine, connection, got > 0 || (is_full && sent) ? (ssize_t)sent : got, lent->bytes);
}

static ssize_t transmit_part(tr_engine *engine, connection *connection, size_t from, size_t to, int flags) {
    struct iovec pieces[TR_PIECES_MAX];
    const size_t count = tr_outbox_pieces(&engine->out, from, to, pieces);
    return taken(engine, connection, send_pieces(connection->socket, pieces, count, flags), to - from);
}

/* As much of the outbox as the kernel takes. */
static ssize_t transmit_outbox(tr_engine *engine, connection *connection) {
    const tr_outbox *out = &engine->out;
    size_t sent = 0;
    ssize_t got;
    for (uint32_t i = 0; i < out->lents_count; i++) {
        const tr_lent *lent = &out->lents[i];
        if (lent->bytes < TR_ENGINE_BY_REFERENCE || engine->copies) continue;
        if ((got = transmit_part(engine, connection, sent, lent->begin, MSG_MORE)) < 0) return -1;
        if ((sent += (size_t)got) < lent->begin) return (ssize_t)sent;
        if ((got = send_lent(engine, connection, lent)) < 0) return -1;
        sent += (size_t)got;
        if ((size_t)got < lent->bytes) return (ssize_t)sent;
    }
    if (sent == out->used) return (ssize_t)sent;
    got = transmit_part(engine, connection, sent, out->used, 0);
    return got < 0 ? got : (ssize_t)sent + got;
}

/* ---- before a ticket */

static void welcome(tr_engine *engine, connection *connection, tr_welcome_status status) {
    const tr_cell_head *head = &engine->source.view.head;
    tr_welcome welcome = {.magic = TR_WELCOME_MAGIC, .version = TR_FRAME_VERSION, .status = status};
    if (status == TR_WELCOME) {
        welcome.layout = TR_CELL_LAYOUT;
        welcome.request_bytes_max = engine->config.request_bytes_max;
        welcome.answer_bytes_max = TR_ENGINE_PART + TR_ANSWER_ROOM;
        welcome.instance = head->instance;
        welcome.config_id = head->config_id;
        welcome.generation = head->generation;
        welcome.buckets = head->buckets;
        welcome.reserved = head->reserved;
    } else {
        add(&engine->counts.refused, 1);
    }
    /* The first bytes on a new connection find room in the kernel; a peer for whom they do not is no loss. */
    publish(engine);
    ssize_t sent = transmit(engine, connection, (const uint8_t *)&welcome, sizeof welcome);
    if (sent < 0) return;
    if ((size_t)sent < sizeof welcome)
        hang_up(engine, connection);
    else if (status != TR_WELCOME)
        part_with(engine, connection);
}

/* Told as soon as the bytes so far tell it: a peer of another kind may never send as many as a hello has. */
static void judge(tr_engine *engine, connection *connection) {
    tr_hello hello = {.magic = TR_HELLO_MAGIC, .version = TR_FRAME_VERSION};
    const size_t count = connection->hello_count, magic = count < 8 ? count : 8;
    if (memcmp(connection->hello, &hello, magic)) {
        welcome(engine, connection, TR_NO_MAGIC);
        return;
    }
    if (count >= offsetof(tr_hello, zero)) {
        memcpy(&hello, connection->hello, offsetof(tr_hello, zero));
        if (hello.version != TR_FRAME_VERSION) {
            welcome(engine, connection, TR_NO_VERSION);
            return;
        }
    }
    if (count < sizeof hello) return;
    memcpy(&hello, connection->hello, sizeof hello);
    if (hello.zero) {
        welcome(engine, connection, TR_NO_VERSION);
        return;
    }
    connection->ticket = tr_tickets_take(&engine->tickets, hello.ticket, engine->now_ms);
    explicit_bzero(connection->hello, sizeof connection->hello);
    explicit_bzero(&hello, sizeof hello);
    if (connection->ticket == TR_TICKET_NONE) {
        welcome(engine, connection, TR_NO_TICKET);
    } else if (serving(engine) >= engine->config.connections_max) {
        tr_tickets_leave(&engine->tickets, connection->ticket, 1);
        connection->ticket = TR_TICKET_NONE;
        welcome(engine, connection, TR_NO_PLACE);
    } else {
        tr_source_refresh(&engine->source);
        move(engine, connection, QUIET);
        add(&engine->counts.admitted, 1);
        welcome(engine, connection, TR_WELCOME);
        if (!connection->is_gone) connection->is_readable = 1; /* only as much as a hello was read: there may be more */
    }
}

static void greet(tr_engine *engine, connection *connection) {
    ssize_t got = receive(engine, connection, connection->hello + connection->hello_count,
                          sizeof connection->hello - connection->hello_count);
    if (got <= 0) return;
    connection->hello_count += (size_t)got;
    judge(engine, connection);
    /* The end of the connection may have been announced along with these bytes, and nothing else will be. */
    if (connection->standing == GREETING && connection->is_readable) make_ready(engine, connection);
}

/* ---- behind it */

/* True: nothing is owed any more. */
static int settle(tr_engine *engine, connection *connection) {
    if (!connection->owed) return 1;
    if (!connection->is_writable) return 0;
    ssize_t sent = transmit(engine, connection, connection->owed + connection->owed_at,
                            connection->owed_count - connection->owed_at);
    if (sent < 0) return 0;
    connection->owed_at += (size_t)sent;
    if (connection->owed_at < connection->owed_count) return 0;
    drop_owed(engine, connection);
    return 1;
}

/* Send this turn's answers, and keep what is not taken. */
static void hand_over(tr_engine *engine, connection *connection) {
    tr_outbox *out = &engine->out;
    if (!out->used) return;
    publish(engine);
    ssize_t sent = transmit_outbox(engine, connection);
    if (sent < 0) return;
    /* Whoever takes a turn's answer at once gets more in the next. Whoever does not makes us keep it. */
    int is_taken = (size_t)sent == out->used;
    if (is_taken && connection->quantum < TR_ENGINE_QUANTUM) connection->quantum *= 2;
    if (!is_taken && connection->quantum > TR_ENGINE_QUANTUM_FIRST) connection->quantum /= 2;
    if (is_taken) return;
    /* Its own copy: what is lent would have to stay where it is for as long as the peer likes. */
    const size_t rest = out->used - (size_t)sent;
    if (!(connection->owed = malloc(rest))) {
        hang_up(engine, connection);
        return;
    }
    tr_outbox_copy(out, (size_t)sent, connection->owed);
    connection->owed_count = rest;
    count_pending(engine, rest, 0);
}

/* Bytes to look for requests in: those that are kept, if they have a whole one; else with more from the socket. */
static const uint8_t *gather(tr_engine *engine, connection *connection, size_t *count) {
    const uint8_t *kept = connection->asked ? connection->asked + connection->asked_at : NULL;
    const uint32_t most = engine->config.request_bytes_max;
    *count = connection->asked_count - connection->asked_at;
    if (kept && tr_request_measure(kept, *count, most)) return kept;
    if (!connection->is_readable) {
        *count = 0;
        return NULL;
    }
    if (kept) memcpy(engine->inbox, kept, *count); /* not a whole request, so there is room for more */
    ssize_t got = receive(engine, connection, engine->inbox + *count, most - *count);
    if (got <= 0) {
        *count = 0;
        return NULL;
    }
    *count += (size_t)got;
    return engine->inbox;
}

/* Keep what was not answered of what was gathered. */
static void put_aside(tr_engine *engine, connection *connection, const uint8_t *bytes, size_t at, size_t count) {
    if (bytes == engine->inbox) {
        drop_asked(engine, connection);
        if (at == count) return;
        if (!(connection->asked = malloc(count - at))) {
            hang_up(engine, connection);
            return;
        }
        memcpy(connection->asked, bytes + at, count - at);
        connection->asked_count = count - at;
        count_pending(engine, count - at, 0);
    } else {
        connection->asked_at += at;
        if (at == count) drop_asked(engine, connection);
    }
}

/* Whether this request is to be answered later. */
static int has_to_wait(tr_engine *engine, connection *connection, const uint8_t *request) {
    const uint32_t wait_ms = tr_request_wait_ms(request);
    if (!wait_ms || connection->next_item) return 0; /* one whose answer has begun */
    if (!connection->until_ms) begin_to_wait(engine, connection, wait_ms);
    if (engine->now_ms < connection->until_ms && !tr_request_is_due(&engine->source, request)) return 1;
    end_waiting(engine, connection);
    return 0;
}

/* One turn: about a quantum of answers, by one recv and one send at most, beside the rest of an earlier one. */
static void serve(tr_engine *engine, connection *connection) {
    size_t at = 0, count;
    uint64_t requests = 0;
    int64_t size = 0;
    tr_outbox *out = &engine->out;
    int was_owed = connection->owed != NULL;
    const uint64_t mutated = engine->source.mutated;
    if (connection->until_ms && connection->is_hung_up) { /* nobody is there to be told */
        hang_up(engine, connection);
        return;
    }
    if (!settle(engine, connection)) return;
    const uint8_t *bytes = gather(engine, connection, &count);
    if (connection->is_gone) return;
    tr_outbox_clear(out);
    while (at < count && out->used < connection->quantum) {
        size = tr_request_measure(bytes + at, count - at, engine->config.request_bytes_max);
        if (size <= 0 || has_to_wait(engine, connection, bytes + at)) break;
        const size_t enough = out->used + TR_ENGINE_PART;
        if (!tr_request_answer(&engine->source, bytes + at, &connection->next_item, out, enough)) continue;
        connection->next_item = 0;
        at += (size_t)size;
        requests++;
    }
    add(&engine->counts.requests, requests);
    if (requests) connection->kind = engine->source.mutated > mutated ? WRITES : READS;
    if (size < 0) tr_request_refuse(&engine->source, out);
    if (bytes) put_aside(engine, connection, bytes, at, count);
    if (!connection->is_gone) hand_over(engine, connection);
    out->lents_count = 0; /* between turns nothing is lent */
    if (connection->is_gone) return;
    if (size < 0) {
        add(&engine->counts.malformed, 1);
        part_with(engine, connection);
        return;
    }
    /* Time begins anew when something was brought to an end, not with every byte: else a byte now and then would hold
     * memory for good. */
    standing standing = connection->owed      ? HOLDING
                        : connection->until_ms ? WAITING
                        : connection->asked    ? HOLDING
                                               : QUIET;
    if (standing != connection->standing || requests || out->used || was_owed) move(engine, connection, standing);
    int whole = connection->asked && tr_request_measure(connection->asked + connection->asked_at,
                                                        connection->asked_count - connection->asked_at,
                                                        engine->config.request_bytes_max);
    if (standing != WAITING && !connection->owed && (whole || connection->is_readable)) make_ready(engine, connection);
}

static void take_turn(tr_engine *engine, connection *connection) {
    if (connection->standing == GREETING && connection->is_readable) greet(engine, connection);
    if (!connection->is_gone && connection->standing >= QUIET && connection->standing <= HOLDING)
        serve(engine, connection);
    if (!connection->is_gone && connection->standing == LEAVING && connection->is_readable) {
        if (receive(engine, connection, engine->inbox, engine->config.request_bytes_max) > 0 && connection->is_readable)
            make_ready(engine, connection);
    }
    keep_within_bounds(engine);
}

/* ---- new connections */

static void set_option(int socket, int level, int name, int value) {
    (void)setsockopt(socket, level, name, &value, sizeof value); /* each is for speed or patience, none for truth */
}

static void accept_one(tr_engine *engine, int socket) {
    connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(socket);
        add(&engine->counts.accept_failures, 1);
        return;
    }
    connection->socket = socket;
    connection->ticket = TR_TICKET_NONE;
    connection->kind = WRITES; /* until it shows what it is: a greeting is small, and somebody waits for it */
    connection->is_writable = 1;
    connection->quantum = TR_ENGINE_QUANTUM_FIRST;
    /* The kernel's buffers grow with what is on its way, so that a peer far away is not held up. What it has not even
     * sent has a bound: else a peer that takes nothing would fill megabytes. */
    set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES);
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)engine->config.stall_ms);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = connection};
    if (epoll_ctl(engine->events, EPOLL_CTL_ADD, socket, &event)) {
        close(socket);
        free(connection);
        add(&engine->counts.accept_failures, 1);
        return;
    }
    add(&engine->counts.accepted, 1);
    /* Whoever comes without a ticket takes nobody's place who has one. */
    if (engine->queues[GREETING].count >= TR_ENGINE_GREETING_MAX) hang_up(engine, engine->queues[GREETING].oldest);
    enter_queue(engine, connection, GREETING);
}

static int watch_listener(tr_engine *engine, int operation) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &engine->listener};
    return epoll_ctl(engine->events, operation, engine->listener, &event) ? errno : 0;
}

static void accept_some(tr_engine *engine) {
    for (int i = 0; i < ACCEPTS; i++) {
        int socket = accept4(engine->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (socket >= 0) {
            accept_one(engine, socket);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) continue; /* that one is gone */
        /* The connection stays in the backlog and would be announced again at once. Look away for a while. */
        add(&engine->counts.accept_failures, 1);
        engine->is_accepting = watch_listener(engine, EPOLL_CTL_DEL) != 0;
        engine->accept_ms = engine->now_ms + ACCEPT_PAUSE_MS;
        return;
    }
}

/* ---- the loop */

/* Hang up on those whose time is over. When the next one's time is, in milliseconds from now; -1: never. */
static int keep_time(tr_engine *engine) {
    const uint32_t times_ms[QUEUES] = {[GREETING] = engine->config.hello_ms, [QUIET] = engine->config.idle_ms,
                                       [HOLDING] = engine->config.stall_ms, [LEAVING] = LEAVE_MS};
    uint64_t next_ms = engine->queues[WAITING].oldest ? engine->waited_ms : UINT64_MAX;
    for (int i = 0; i < QUEUES; i++) {
        queue *queue = &engine->queues[i];
        if (i == WAITING) continue;
        while (queue->oldest && engine->now_ms >= queue->oldest->since_ms + times_ms[i]) {
            if (i == QUIET) add(&engine->counts.idle, 1);
            if (i == HOLDING || i == GREETING) add(&engine->counts.stalled, 1);
            hang_up(engine, queue->oldest);
        }
        if (queue->oldest && queue->oldest->since_ms + times_ms[i] < next_ms) next_ms = queue->oldest->since_ms + times_ms[i];
    }
    if (!engine->is_accepting) {
        if (engine->now_ms >= engine->accept_ms) {
            engine->is_accepting = watch_listener(engine, EPOLL_CTL_ADD) == 0;
            engine->accept_ms = engine->now_ms + ACCEPT_PAUSE_MS;
        }
        if (!engine->is_accepting && engine->accept_ms < next_ms) next_ms = engine->accept_ms;
    }
    if (next_ms == UINT64_MAX) return -1;
    return next_ms <= engine->now_ms ? 0 : next_ms - engine->now_ms > 60000 ? 60000 : (int)(next_ms - engine->now_ms);
}

static void end_revoked(tr_engine *engine) {
    if (!atomic_exchange(&engine->revoking, 0)) return;
    for (int i = QUIET; i <= HOLDING; i++) {
        connection *connection = engine->queues[i].oldest, *younger;
        for (; connection; connection = younger) {
            younger = connection->younger;
            if (tr_tickets_revoked(&engine->tickets, connection->ticket)) hang_up(engine, connection);
        }
    }
}

/* When something was mutated since they were looked at, or the first of them has waited enough. */
static void look_at_waiting(tr_engine *engine) {
    if (!atomic_exchange(&engine->mutated, 0) && engine->now_ms < engine->waited_ms) return;
    engine->waited_ms = UINT64_MAX;
    for (connection *each = engine->queues[WAITING].oldest; each; each = each->younger) {
        if (engine->now_ms >= each->until_ms || tr_request_is_due(&engine->source, each->asked + each->asked_at))
            make_ready(engine, each);
        else if (each->until_ms < engine->waited_ms)
            engine->waited_ms = each->until_ms;
    }
}

static void note(tr_engine *engine, const struct epoll_event *event) {
    if (event->data.ptr == &engine->listener) {
        accept_some(engine);
        return;
    }
    if (event->data.ptr == &engine->alarm) {
        uint64_t rings;
        while (read(engine->alarm, &rings, sizeof rings) < 0 && errno == EINTR) continue;
        return;
    }
    connection *connection = event->data.ptr;
    const uint32_t end = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    if (event->events & (EPOLLIN | end)) connection->is_readable = 1;
    if (event->events & (EPOLLOUT | end)) connection->is_writable = 1;
    if (event->events & end) connection->is_hung_up = 1;
    make_ready(engine, connection);
}

/* One turn for each that was ready, until so many bytes have moved; those that are ready again come behind. */
static void serve_line(tr_engine *engine, kind kind, uint64_t bytes_max) {
    line *line = &engine->lines[kind];
    uint64_t moved = 0;
    fill(engine, line);
    for (uint32_t turns = line->count; turns && moved < bytes_max; turns--) {
        connection *ready = line->first;
        if (!ready->is_gone && !may_move(line)) {
            add(&line->held, 1);
            return;
        }
        line->first = ready->next_ready;
        if (!line->first) line->last = NULL;
        line->count--;
        ready->is_ready = 0;
        if (ready->is_gone) continue;
        const uint64_t before = get(&engine->counts.sent_bytes) + get(&engine->counts.received_bytes);
        take_turn(engine, ready);
        const uint64_t bytes = get(&engine->counts.sent_bytes) + get(&engine->counts.received_bytes) - before;
        moved += bytes;
        line->left -= (int64_t)bytes;
    }
}

static void *run(void *argument) {
    tr_engine *engine = argument;
    struct epoll_event events[EVENTS];
    while (!atomic_load(&engine->stopping)) {
        engine->now_ms = engine->source.now_ms = monotonic_ms();
        end_revoked(engine);
        int wait_ms = keep_time(engine);
        bury(engine);
        publish(engine);
        int ready_ms = ready_in_ms(engine);
        if (ready_ms >= 0 && (wait_ms < 0 || ready_ms < wait_ms)) wait_ms = ready_ms;
        int count = epoll_wait(engine->events, events, EVENTS, wait_ms);
        engine->now_ms = engine->source.now_ms = monotonic_ms();
        for (int i = 0; i < count; i++) note(engine, &events[i]);
        /* Whoever mutates has made somebody wait for it; readers of all sorts take what is left. */
        serve_line(engine, WRITES, UINT64_MAX);
        look_at_waiting(engine);
        serve_line(engine, READS, TR_ENGINE_READS);
    }
    return NULL;
}

/* ---- start and stop */

static void ring(tr_engine *engine) {
    uint64_t one = 1;
    while (write(engine->alarm, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* The cell was mutated, by whatever thread. */
static void hear(void *whose) {
    tr_engine *engine = whose;
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&engine->waiters) && !atomic_exchange(&engine->mutated, 1)) ring(engine);
}

static int fail(char *why, const char *what, const tr_engine_config *config, int error) {
    snprintf(why, TR_WHY_BYTES, "%s for an engine on %.200s port %u", what, config->host, config->port);
    return error;
}

/* On this host alone. What an earlier engine left there goes: the folder's lock says that it is ours. */
static int open_local_listener(tr_engine *engine, const char *path, char *why) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return fail(why, "the path's length", &engine->config, ENAMETOOLONG);
    strcpy(address.sun_path, path);
    engine->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (engine->listener < 0) return fail(why, "socket", &engine->config, errno);
    if (unlink(path) && errno != ENOENT) return fail(why, "unlink", &engine->config, errno);
    if (bind(engine->listener, (struct sockaddr *)&address, sizeof address)) return fail(why, "bind", &engine->config, errno);
    if (chmod(path, 0600)) return fail(why, "chmod", &engine->config, errno);
    if (listen(engine->listener, BACKLOG)) return fail(why, "listen", &engine->config, errno);
    snprintf(engine->host, sizeof engine->host, "%s", engine->config.host);
    return 0;
}

static int open_listener(tr_engine *engine, char *why) {
    if (!strncmp(engine->config.host, TR_LOCAL, strlen(TR_LOCAL)))
        return open_local_listener(engine, engine->config.host + strlen(TR_LOCAL), why);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", engine->config.port);
    int error = getaddrinfo(engine->config.host, port, &hints, &found);
    if (error) {
        int number = error == EAI_SYSTEM ? errno : EADDRNOTAVAIL;
        fail(why, gai_strerror(error), &engine->config, 0);
        return number;
    }
    error = EADDRNOTAVAIL;
    const char *step = "socket";
    for (struct addrinfo *each = found; each && error; each = each->ai_next) {
        error = 0;
        engine->listener = socket(each->ai_family, each->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, each->ai_protocol);
        if (engine->listener >= 0) set_option(engine->listener, SOL_SOCKET, SO_REUSEADDR, 1);
        if (engine->listener < 0)
            error = errno;
        else if (step = "bind", bind(engine->listener, each->ai_addr, each->ai_addrlen))
            error = errno;
        else if (step = "listen", listen(engine->listener, BACKLOG))
            error = errno;
        if (error && engine->listener >= 0) {
            close(engine->listener);
            engine->listener = -1;
        }
    }
    freeaddrinfo(found);
    if (error) return fail(why, step, &engine->config, error);
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(engine->listener, (struct sockaddr *)&address, &size)) return fail(why, "getsockname", &engine->config, errno);
    if (getnameinfo((struct sockaddr *)&address, size, engine->host, sizeof engine->host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        return fail(why, "getnameinfo", &engine->config, EADDRNOTAVAIL);
    engine->port = (uint16_t)strtoul(port, NULL, 10);
    return 0;
}

static int prepare(tr_engine *engine, char *why) {
    const tr_engine_config *config = &engine->config;
    engine->source.view.folder = strdup(config->folder);
    engine->source.view.lends = 1;
    engine->inbox = malloc(config->request_bytes_max);
    engine->out.room = TR_ENGINE_QUANTUM + TR_ENGINE_PART + TR_ANSWER_ROOM;
    engine->out.at = malloc(engine->out.room);
    engine->source.lent_to = &engine->out;
    if (!engine->source.view.folder || !engine->inbox || !engine->out.at ||
        tr_tickets_open(&engine->tickets, TR_ENGINE_TICKETS_MAX, config->connections_max + TR_ENGINE_GREETING_MAX))
        return fail(why, "memory", config, ENOMEM);
    int error = tr_view_map(&engine->source.view, why);
    if (error || (error = open_listener(engine, why))) return error;
    engine->alarm = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    engine->events = epoll_create1(EPOLL_CLOEXEC);
    if (engine->alarm < 0 || engine->events < 0) return fail(why, "descriptors", config, errno);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &engine->alarm};
    if (epoll_ctl(engine->events, EPOLL_CTL_ADD, engine->alarm, &event)) return fail(why, "epoll_ctl", config, errno);
    engine->is_accepting = 1;
    if ((error = watch_listener(engine, EPOLL_CTL_ADD))) return fail(why, "epoll_ctl", config, error);
    return 0;
}

/* No signal is this thread's business: the program's handlers run in the program's threads. */
static int start_thread(tr_engine *engine) {
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&engine->thread, &attributes, run, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (!error) (void)pthread_setname_np(engine->thread, "cell-engine");
    return error;
}

static void tear_down(tr_engine *engine) {
    for (int i = 0; i < QUEUES; i++)
        while (engine->queues[i].oldest) hang_up(engine, engine->queues[i].oldest);
    for (connection *each = engine->gone, *next; each; each = next) {
        next = each->younger;
        free(each);
    }
    if (engine->listener >= 0) close(engine->listener);
    if (engine->alarm >= 0) close(engine->alarm);
    if (engine->events >= 0) close(engine->events);
    tr_tickets_close(&engine->tickets);
    tr_view_unmap(&engine->source.view);
    free(engine->source.view.folder);
    free(engine->inbox);
    free(engine->out.at);
    free(engine);
}

int tr_engine_start(tr_engine **started, const tr_engine_config *config, char *why) {
    tr_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return fail(why, "memory", config, ENOMEM);
    engine->config = *config;
    engine->source.mutator = config->mutator;
    engine->listener = engine->alarm = engine->events = -1;
    engine->process = getpid();
    engine->now_ms = engine->source.now_ms = monotonic_ms();
    engine->waited_ms = UINT64_MAX;
    int error = prepare(engine, why);
    if (!error && (error = start_thread(engine))) fail(why, "a thread", config, error);
    if (!error && config->mutator.hang && (error = config->mutator.hang(config->mutator.taker, (tr_bell){hear, engine}))) {
        fail(why, "a bell", config, error);
        tr_engine_stop(engine);
        return error;
    }
    engine->config.folder = engine->config.host = NULL; /* the caller's, who may take them back now */
    if (error) {
        tear_down(engine);
        return error;
    }
    *started = engine;
    return 0;
}

void tr_engine_stop(tr_engine *engine) {
    /* In a forked child there are the descriptors but no thread, and what it had in hand may be in any state. */
    if (engine->process != getpid()) {
        close(engine->listener);
        close(engine->alarm);
        close(engine->events);
        close(engine->source.view.data_file);
        return;
    }
    if (engine->config.mutator.take_down) engine->config.mutator.take_down(engine->config.mutator.taker, engine);
    atomic_store(&engine->stopping, 1);
    ring(engine);
    pthread_join(engine->thread, NULL);
    tear_down(engine);
}

const char *tr_engine_host(const tr_engine *engine) { return engine->host; }
uint16_t tr_engine_port(const tr_engine *engine) { return engine->port; }

int tr_engine_admit(tr_engine *engine, const uint8_t *ticket, uint64_t valid_ms) {
    uint64_t now_ms = monotonic_ms();
    return tr_tickets_admit(&engine->tickets, ticket, now_ms + valid_ms, now_ms);
}

int tr_engine_revoke(tr_engine *engine, const uint8_t *ticket) {
    int known = tr_tickets_revoke(&engine->tickets, ticket);
    if (known) {
        atomic_store(&engine->revoking, 1);
        ring(engine);
    }
    return known;
}

void tr_engine_budget(tr_engine *engine, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s) {
    put(&engine->lines[READS].bytes_per_s, read_bytes_per_s);
    put(&engine->lines[WRITES].bytes_per_s, write_bytes_per_s);
}

void tr_engine_look(tr_engine *engine, tr_engine_stats *stats) {
    const counters *counts = &engine->counts;
    struct timespec used = {0};
    clockid_t clock;
    if (!pthread_getcpuclockid(engine->thread, &clock)) clock_gettime(clock, &used);
    *stats = (tr_engine_stats){
        .connections = get(&counts->connections), .greeting = get(&counts->greeting),
        .accepted = get(&counts->accepted), .admitted = get(&counts->admitted), .refused = get(&counts->refused),
        .closed_idle = get(&counts->idle), .closed_stalled = get(&counts->stalled),
        .closed_short_of_memory = get(&counts->short_of_memory), .closed_malformed = get(&counts->malformed),
        .accept_failures = get(&counts->accept_failures), .requests = get(&counts->requests),
        .scanned = get(&counts->scanned), .found = get(&counts->found), .sent = get(&counts->sent),
        .read = get(&counts->read), .mutated = get(&counts->mutated), .received_bytes = get(&counts->received_bytes),
        .sent_bytes = get(&counts->sent_bytes), .renewals = get(&counts->renewals),
        .renewals_failed = get(&counts->renewals_failed), .pending_bytes = get(&counts->pending),
        .pending_bytes_peak = get(&counts->pending_peak),
        .cpu_ns = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec,
        .reads_held = get(&engine->lines[READS].held), .writes_held = get(&engine->lines[WRITES].held),
    };
}
