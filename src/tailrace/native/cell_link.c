#define _GNU_SOURCE
#include "cell_link.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cell_round_trip.h"

enum {
    CHUNK_BYTES = TR_ANSWER_BYTES_MOST, /* of the memory for answers: one item lies in one chunk */
    CHUNKS_KEPT = 8,        /* when a question needed more, and the next one does not */
    CHUNKS_ROOM = 16,       /* places for chunks to begin with */
    RECEIVES = 16,          /* in one pump at most: another link may wait for the caller */
    AHEAD = 1 << 10,        /* bytes received beside a value that has a place: enough to know where the next one goes */
    LANDED_LEAST = 4 << 10, /* bytes of a value that is worth it */
    GAP_LEAST = 4 << 10,    /* bytes that nobody needs, before what is behind them is moved there */
    /* A new connection may have ten segments on its way, of up to 64 KiB on one host. An engine that may send no more
     * is woken for every few of them, and wakes us for each: that costs more than all the bytes do. */
    WINDOW_LEAST = 512 << 10,
    WINDOW_MOST = 16 << 20,
    BYTES_PER_US = 2500, /* of a fast network */
};

/* A request on its way, oldest first. Its probes are the next `items` of the ring of probes. */
typedef struct {
    uint64_t tag, instance, config_id;
    uint32_t items, answered, data_bytes_max, place_bytes;
    uint16_t kind;
    uint16_t forgotten;
} question;

/* A ring that grows. Counts run on; places are counts modulo the room, a power of two. */
typedef struct {
    size_t first, last, room;
} ring;

/* A value on its way to its probe's place. Its item's head, and the head and key of its entry, wait where the answer is;
 * behind them comes what follows the value. */
typedef struct {
    int is_under_way;
    tr_probe *probe; /* NULL: nobody waits for it any more */
    uint8_t *to;     /* NULL: there is no place for it any more, and the rest is dropped */
    uint32_t left;
    size_t head, padding;
} landing;

struct tr_link {
    int socket, error;
    char why[TR_WHY_BYTES];
    tr_cell_head head;
    uint32_t request_bytes_max, answer_bytes_max;
    size_t window;
    uint64_t tag;
    size_t pending;
    ring questions_ring, probes_ring;
    question *questions;
    tr_probe **probes;
    uint8_t *outbox; /* requests that the kernel did not take yet */
    size_t out_at, out_count, out_room;
    /* Answers, in the chunk `chunk`: values that live up to `kept`, what is done with up to `next`, then the beginning
     * of something up to `used`, which is an item's if the head of its answer was taken already. */
    uint8_t **chunks;
    size_t chunk, chunks_count, chunks_room, kept, next, used;
    size_t missing; /* bytes that what has begun still needs, as far as is known */
    uint32_t answer_bytes, answer_left, items_left; /* of the answer whose items are to come */
    landing landing;
    tr_link_stats stats;
};

static uint64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- a broken link stays so */

__attribute__((format(printf, 3, 4))) static int break_link(tr_link *link, int error, const char *format, ...) {
    if (link->error) return link->error;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(link->why, sizeof link->why, format, arguments);
    va_end(arguments);
    link->error = error;
    for (size_t i = link->questions_ring.first, probe = link->probes_ring.first; i < link->questions_ring.last; i++) {
        question *question = &link->questions[i & (link->questions_ring.room - 1)];
        for (uint32_t item = question->answered; item < question->items; item++, probe++)
            if (!question->forgotten) link->probes[probe & (link->probes_ring.room - 1)]->state = TR_PROBE_DOWN;
    }
    link->questions_ring.first = link->questions_ring.last;
    link->probes_ring.first = link->probes_ring.last;
    link->pending = 0;
    link->landing = (landing){0};
    return error;
}

static int break_by_system(tr_link *link, int error, const char *what) {
    return break_link(link, error, "%s: %s", what, strerror(error));
}

/* ---- rings. What is in them moves when they grow, in order, from place 0 on */

static int grow(ring *ring, void **elements, size_t element_bytes, size_t more) {
    size_t count = ring->last - ring->first, room = ring->room ? ring->room : 16;
    if (count + more <= ring->room) return 0;
    while (room < count + more) room *= 2;
    uint8_t *larger = malloc(room * element_bytes);
    if (!larger) return ENOMEM;
    for (size_t i = 0; i < count; i++)
        memcpy(larger + i * element_bytes,
               (uint8_t *)*elements + ((ring->first + i) & (ring->room - 1)) * element_bytes, element_bytes);
    free(*elements);
    *elements = larger;
    ring->first = 0;
    ring->last = count;
    ring->room = room;
    return 0;
}

static question *oldest(tr_link *link) {
    return link->questions_ring.first == link->questions_ring.last
               ? NULL
               : &link->questions[link->questions_ring.first & (link->questions_ring.room - 1)];
}

/* ---- asking */

static uint8_t *make_out_room(tr_link *link, size_t bytes) {
    if (link->out_at == link->out_count) link->out_at = link->out_count = 0;
    if (link->out_count + bytes > link->out_room) {
        size_t waiting = link->out_count - link->out_at, room = link->out_room ? link->out_room : 4096;
        while (room < waiting + bytes) room *= 2;
        uint8_t *larger = malloc(room);
        if (!larger) return NULL;
        if (waiting) memcpy(larger, link->outbox + link->out_at, waiting);
        free(link->outbox);
        link->outbox = larger;
        link->out_at = 0;
        link->out_count = waiting;
        link->out_room = room;
    }
    uint8_t *at = link->outbox + link->out_count;
    link->out_count += bytes;
    return at;
}

static int transmit(tr_link *link) {
    while (link->out_at < link->out_count) {
        ssize_t sent = send(link->socket, link->outbox + link->out_at, link->out_count - link->out_at,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (sent < 0) return break_by_system(link, errno, "sending a request");
        link->out_at += (size_t)sent;
        link->stats.sent_bytes += (uint64_t)sent;
    }
    return 0;
}

static int put_request(tr_link *link, uint16_t kind, tr_probe **probes, uint32_t count, uint32_t now_s,
                       uint32_t data_bytes_max, uint32_t wait_ms, uint32_t place_bytes) {
    const size_t bytes = sizeof(tr_request) + (size_t)count * tr_item_bytes(kind);
    uint8_t *at = make_out_room(link, bytes);
    if (!at || grow(&link->questions_ring, (void **)&link->questions, sizeof *link->questions, 1) ||
        grow(&link->probes_ring, (void **)&link->probes, sizeof *link->probes, count))
        return break_link(link, ENOMEM, "no memory to ask for %" PRIu32 " probes", count);
    tr_request request = {
        .bytes = (uint32_t)bytes, .kind = kind, .tag = ++link->tag, .instance = link->head.instance,
        .config_id = link->head.config_id, .items = count, .now_s = now_s, .data_bytes_max = data_bytes_max,
        .wait_ms = wait_ms,
    };
    memcpy(at, &request, sizeof request);
    at += sizeof request;
    for (uint32_t i = 0; i < count; i++, at += tr_item_bytes(kind)) {
        tr_probe *probe = probes[i];
        link->probes[link->probes_ring.last++ & (link->probes_ring.room - 1)] = probe;
        if (kind == TR_SCAN) {
            memcpy(at, &probe->hash, sizeof probe->hash);
            probe->state = TR_PROBE_NEW;
        } else if (kind == TR_WAIT) {
            tr_awaited awaited = {.hash = probe->hash, .version = probe->entry.version};
            memcpy(at, &awaited, sizeof awaited);
            probe->state = TR_PROBE_NEW;
        } else {
            tr_range range = {.region = TR_REGION_DATA, .size = probe->entry.size, .generation = link->head.instance,
                              .offset = probe->entry.offset, .hash = probe->hash};
            memcpy(at, &range, sizeof range);
        }
        probe->data = NULL;
    }
    link->questions[link->questions_ring.last++ & (link->questions_ring.room - 1)] = (question){
        .tag = request.tag, .instance = request.instance, .config_id = request.config_id, .items = count,
        .data_bytes_max = data_bytes_max, .place_bytes = place_bytes, .kind = kind,
    };
    link->pending += count;
    link->stats.requests++;
    link->stats.probes += count;
    return 0;
}

static int ask(tr_link *link, uint16_t kind, tr_probe **probes, size_t count, uint32_t now_s, uint32_t data_bytes_max,
               uint32_t wait_ms, uint32_t place_bytes) {
    const size_t most = (link->request_bytes_max - sizeof(tr_request)) / tr_item_bytes(kind);
    if (link->probes_ring.last - link->probes_ring.first + count > TR_LINK_PENDING_MAX) return EAGAIN;
    for (size_t at = 0, part; at < count && !link->error; at += part) {
        part = count - at < most ? count - at : most;
        put_request(link, kind, probes + at, (uint32_t)part, now_s, data_bytes_max, wait_ms, place_bytes);
    }
    /* Those that did not get as far as the ring are down like those in it. */
    for (size_t i = 0; link->error && i < count; i++) probes[i]->state = TR_PROBE_DOWN;
    return link->error;
}

/* All values that came whole are dead; of what is still coming in, what is there goes to the front. */
static void reuse_memory(tr_link *link) {
    size_t part = link->used - link->next;
    if (part) memmove(link->chunks[0], link->chunks[link->chunk] + link->next, part);
    while (link->chunks_count > CHUNKS_KEPT && link->chunks_count > link->chunk + 1)
        free(link->chunks[--link->chunks_count]);
    link->chunk = link->kept = link->next = 0;
    link->used = part;
}

int tr_link_scan(tr_link *link, tr_probe **probes, size_t count, uint32_t now_s, uint32_t data_bytes_max,
                 uint32_t place_bytes) {
    if (!link->error) reuse_memory(link);
    int error = ask(link, TR_SCAN, probes, count, now_s, data_bytes_max, 0, place_bytes);
    return error ? error : transmit(link);
}

int tr_link_watch(tr_link *link, tr_probe **probes, size_t count, uint32_t now_s, uint32_t wait_ms) {
    if (!link->error) reuse_memory(link);
    int error = ask(link, TR_WAIT, probes, count, now_s, UINT32_MAX, wait_ms, 0);
    return error ? error : transmit(link);
}

int tr_link_read(tr_link *link, tr_probe **probes, size_t count) {
    return ask(link, TR_READ, probes, count, 0, 0, 0, 0);
}

int tr_link_ping(tr_link *link) {
    if (link->questions_ring.last - link->questions_ring.first >= TR_LINK_PENDING_MAX) return EAGAIN;
    if (!link->error && !put_request(link, TR_PING, NULL, 0, 0, 0, 0, 0)) transmit(link);
    return link->error;
}

/* ---- answers */

static void settle(tr_link *link, tr_probe *probe, tr_probe_state state) {
    probe->state = state;
    link->stats.hits += state == TR_PROBE_HIT;
    link->stats.misses += state == TR_PROBE_MISS || state == TR_PROBE_ASK;
}

/* A raw entry came for a probe whose index entry is accepted: entry.size bytes. */
static void prove(tr_link *link, tr_probe *probe, const uint8_t *raw) {
    if (tr_entry_proves(&link->head, probe, raw)) {
        probe->data = raw + tr_probe_value_at(probe);
        settle(link, probe, TR_PROBE_HIT);
    } else if (tr_entry_foreign(&link->head, probe, raw)) {
        settle(link, probe, TR_PROBE_ASK);
    } else {
        link->stats.unproven++;
        settle(link, probe, TR_PROBE_UNSETTLED);
    }
}

static int scanned_is_right(const question *question, const tr_scanned *item) {
    if (item->zero || item->data_bytes > question->data_bytes_max) return 0;
    if (item->state < TR_PROBE_FOUND || item->state > TR_PROBE_REVOKED || item->state == TR_PROBE_HIT) return 0;
    return !item->data_bytes || (item->state == TR_PROBE_FOUND && item->data_bytes == item->size);
}

/* False: no entry of this key is as large, so another one has its hash. */
static int accept_found(tr_probe *probe, const tr_scanned *item) {
    probe->entry = (tr_index_entry){.hash = probe->hash, .version = item->version, .offset = item->offset,
                                    .size = item->size, .expiry_s = item->expiry_s};
    return tr_probe_accept(probe);
}

/* A whole item. False: it is none. `probe`: NULL if nobody waits for it. */
static int take_scanned(tr_link *link, const question *question, tr_probe *probe, const uint8_t *at) {
    tr_scanned item;
    memcpy(&item, at, sizeof item);
    if (!scanned_is_right(question, &item)) return 0;
    if (!probe) return 1;
    if (item.state != TR_PROBE_FOUND)
        settle(link, probe, (tr_probe_state)item.state);
    else if (!accept_found(probe, &item))
        settle(link, probe, TR_PROBE_ASK);
    else if (item.data_bytes)
        prove(link, probe, at + sizeof item);
    else
        settle(link, probe, TR_PROBE_FOUND);
    return 1;
}

static int take_fetched(tr_link *link, tr_probe *probe, const uint8_t *at) {
    tr_fetched item;
    memcpy(&item, at, sizeof item);
    if (item.zero || item.status > TR_READ_OUTSIDE) return 0;
    if ((item.status == TR_READ_DONE) != (item.data_bytes != 0)) return 0;
    if (!probe) return 1;
    if (item.data_bytes && item.data_bytes != probe->entry.size) return 0;
    if (item.data_bytes)
        prove(link, probe, at + sizeof item);
    else
        settle(link, probe, item.status == TR_READ_STALE ? TR_PROBE_REVOKED : TR_PROBE_UNSETTLED);
    return 1;
}

static void adopt(tr_link *link, const tr_answer *answer) {
    link->head.instance = answer->instance;
    link->head.config_id = answer->config_id;
    link->head.generation = answer->generation;
    link->head.buckets = answer->buckets;
    link->head.reserved = answer->reserved;
}

static tr_probe *next_probe(tr_link *link, question *question) {
    tr_probe *probe = link->probes[link->probes_ring.first++ & (link->probes_ring.room - 1)];
    question->answered++;
    if (question->forgotten) return NULL;
    link->pending--;
    return probe;
}

static int misses_format(tr_link *link, const char *what, uint64_t seen) {
    return break_link(link, EPROTO, "the engine broke the format: %s %" PRIu64, what, seen);
}

static void end_answer(tr_link *link, const question *question) {
    if (question->answered == question->items) link->questions_ring.first++;
}

/* The head of an answer. 0 or the errno of the link, which is broken then. */
static int begin_answer(tr_link *link, const uint8_t *at) {
    tr_answer answer;
    memcpy(&answer, at, sizeof answer);
    question *question = oldest(link);
    if (answer.bytes < sizeof answer || answer.bytes > link->answer_bytes_max || answer.bytes % 8)
        return misses_format(link, "an answer's bytes:", answer.bytes);
    if (answer.status == TR_MALFORMED) return break_link(link, EPROTO, "the engine did not understand a request");
    if (!question) return misses_format(link, "an answer that nobody asked for, tag", answer.tag);
    if (answer.tag != question->tag) return misses_format(link, "an answer out of turn, tag", answer.tag);
    if (answer.kind != question->kind) return misses_format(link, "another kind of answer than of question:", answer.kind);
    if (answer.status > TR_MALFORMED) return misses_format(link, "an answer of status", answer.status);
    if (answer.first != question->answered) return misses_format(link, "an answer from item", answer.first);
    const int same = answer.instance == question->instance && answer.config_id == question->config_id;
    if (same != (answer.status == TR_ANSWERED)) return misses_format(link, "whose cell it is, with status", answer.status);
    adopt(link, &answer);
    link->stats.answers++;
    if (answer.status == TR_CHANGED_HANDS) {
        if (answer.items) return misses_format(link, "an answer without answers has items:", answer.items);
        if (answer.bytes != sizeof answer) return misses_format(link, "an answer without items has bytes:", answer.bytes);
        link->stats.changed_hands++;
        while (question->answered < question->items) {
            tr_probe *probe = next_probe(link, question);
            if (probe) settle(link, probe, TR_PROBE_REVOKED);
        }
    } else if (answer.items > question->items - question->answered || (question->items && !answer.items)) {
        return misses_format(link, "an answer has items:", answer.items);
    }
    link->answer_bytes = answer.bytes;
    link->answer_left = answer.bytes - (uint32_t)sizeof answer;
    link->items_left = answer.items;
    if (link->items_left) return 0;
    if (link->answer_left) return misses_format(link, "bytes behind the items:", link->answer_left);
    end_answer(link, question);
    return 0;
}

/* An item is done with. */
static int end_item(tr_link *link, question *question, uint32_t bytes) {
    next_probe(link, question);
    link->answer_left -= bytes;
    if (--link->items_left) return 0;
    if (link->answer_left) return misses_format(link, "bytes behind the items:", link->answer_left);
    end_answer(link, question);
    return 0;
}

static tr_probe *asked_next(const tr_link *link, const question *question) {
    return question->forgotten ? NULL : link->probes[link->probes_ring.first & (link->probes_ring.room - 1)];
}

/* ---- values that are received where they are wanted */

/* Whether what comes next may be a value that has a place: then no more than its head is to be received elsewhere. */
static int expects_place(tr_link *link) {
    const question *question = oldest(link);
    if (!question || question->forgotten || !question->place_bytes) return 0;
    return asked_next(link, question)->place != NULL;
}

/* Before the value: the item's head, and the entry's with its key. */
static size_t landing_head(const tr_probe *probe) { return sizeof(tr_scanned) + tr_probe_value_at(probe); }

/* The beginning of an item came, `count` bytes of it at `at`. True: the rest of its value goes to its place. What its
 * head and key must prove they prove before that; what they do not is left to those who take whole items. */
static int begin_landing(tr_link *link, const question *question, tr_probe *probe, const uint8_t *at, size_t count) {
    tr_scanned item;
    const size_t head = landing_head(probe);
    if (!question->place_bytes || !probe->place || probe->state != TR_PROBE_NEW || count < head) return 0;
    memcpy(&item, at, sizeof item);
    if (!item.data_bytes || !scanned_is_right(question, &item) || !accept_found(probe, &item)) return 0;
    if (probe->value_bytes < LANDED_LEAST || probe->value_bytes > question->place_bytes) return 0;
    if (count - head >= probe->value_bytes || !tr_entry_begins(probe, at + sizeof item)) return 0;
    memcpy(probe->place, at + head, count - head);
    link->landing = (landing){
        .is_under_way = 1, .probe = probe, .to = probe->place, .left = probe->value_bytes - (uint32_t)(count - head),
        .head = head, .padding = tr_padded(item.data_bytes) - item.data_bytes,
    };
    link->used = link->next + head;
    return 1;
}

/* Who asked may have taken the place back, or given it anew for another answer: what comes then is dropped. */
static uint8_t *landing_place(tr_link *link) {
    landing *landing = &link->landing;
    if (!landing->probe || landing->probe->place != landing->to) landing->to = NULL;
    return landing->to ? landing->to + landing->probe->value_bytes - landing->left : NULL;
}

/* The value is there, and what pads it. */
static int end_landing(tr_link *link) {
    const landing landed = link->landing;
    tr_probe *probe = landed.probe;
    question *question = oldest(link);
    const uint8_t *raw = link->chunks[link->chunk] + link->next + sizeof(tr_scanned);
    tr_scanned item;
    memcpy(&item, raw - sizeof item, sizeof item);
    link->landing = (landing){0};
    link->next += landed.head + landed.padding;
    if (probe && landed.to && probe->place == landed.to && tr_entry_ends(&link->head, probe, raw, landed.to)) {
        probe->data = landed.to;
        probe->place = NULL; /* nothing else is received there */
        settle(link, probe, TR_PROBE_HIT);
    } else if (probe) {
        link->stats.unproven += landed.to != NULL;
        settle(link, probe, TR_PROBE_UNSETTLED);
    }
    return end_item(link, question, (uint32_t)(sizeof item + tr_padded(item.data_bytes)));
}

/* ---- the memory that answers come to */

static int next_chunk(tr_link *link) {
    size_t next = link->chunks_count && (link->used || link->chunk) ? link->chunk + 1 : 0;
    if (next == link->chunks_room) {
        size_t room = link->chunks_room ? 2 * link->chunks_room : CHUNKS_ROOM;
        uint8_t **larger = realloc(link->chunks, room * sizeof *larger);
        if (!larger) return ENOMEM;
        link->chunks = larger;
        link->chunks_room = room;
    }
    if (next == link->chunks_count) {
        if (!(link->chunks[next] = malloc(CHUNK_BYTES))) return ENOMEM;
        link->chunks_count++;
    }
    size_t part = link->used - link->next;
    if (part) memcpy(link->chunks[next], link->chunks[link->chunk] + link->next, part);
    link->chunk = next;
    link->kept = link->next = 0;
    link->used = part;
    return 0;
}

/* What has begun needs so many bytes in one piece. False: they are not there yet. */
static int has_whole(tr_link *link, size_t bytes) {
    const size_t count = link->used - link->next;
    link->missing = count < bytes ? bytes - count : 0;
    if (!link->missing) return 1;
    if (link->next + bytes > CHUNK_BYTES && next_chunk(link)) break_link(link, ENOMEM, "no memory for an answer");
    return 0;
}

/* True: this item was taken. */
static int take_item(tr_link *link, question *question, uint32_t fixed) {
    tr_probe *probe = asked_next(link, question);
    const uint32_t left = link->answer_left, at = link->answer_bytes - left;
    uint32_t data_bytes;
    if (left < fixed) return misses_format(link, "no item at byte", at), 0;
    if (!has_whole(link, fixed)) return 0;
    const uint8_t *item = link->chunks[link->chunk] + link->next;
    memcpy(&data_bytes, item + offsetof(tr_scanned, data_bytes), sizeof data_bytes);
    const uint64_t bytes = fixed + tr_padded(data_bytes);
    if (bytes > left) return misses_format(link, "no item at byte", at), 0;
    const size_t count = link->used - link->next;
    if (count < bytes && question->place_bytes && probe && probe->place) {
        /* Not more than the heads: they tell where the rest goes. */
        if (landing_head(probe) < bytes && !has_whole(link, landing_head(probe))) return 0;
        if (begin_landing(link, question, probe, item, count)) return 0;
    }
    if (!has_whole(link, bytes)) return 0;
    if (!(question->kind == TR_READ ? take_fetched(link, probe, item) : take_scanned(link, question, probe, item)))
        return misses_format(link, "no item at byte", at), 0;
    link->next += bytes;
    if (probe) link->kept = link->next;
    return !end_item(link, question, (uint32_t)bytes);
}

/* True: all that were left of this answer were taken. */
static int take_items(tr_link *link) {
    question *question = oldest(link);
    const uint32_t fixed = question->kind == TR_READ ? sizeof(tr_fetched) : sizeof(tr_scanned);
    while (link->items_left)
        if (!take_item(link, question, fixed)) return 0;
    return 1;
}

/* Take all that is whole. What nobody waits for leaves its room to the next. */
static int take_answers(tr_link *link) {
    for (int more = 1; more && !link->error;) {
        if (link->landing.is_under_way) {
            more = !link->landing.left && has_whole(link, link->landing.head + link->landing.padding) && !end_landing(link);
        } else if (link->items_left) {
            more = take_items(link);
        } else {
            more = has_whole(link, sizeof(tr_answer));
            if (!more || begin_answer(link, link->chunks[link->chunk] + link->next)) break;
            link->next += sizeof(tr_answer);
        }
    }
    const size_t rest = link->used - link->next, gap = link->next - link->kept;
    if (!link->error && gap && (!rest || gap >= GAP_LEAST)) {
        uint8_t *chunk = link->chunks[link->chunk];
        memmove(chunk + link->kept, chunk + link->next, rest);
        link->next = link->kept;
        link->used = link->kept + rest;
    }
    return link->error;
}

/* Bytes that came, or 0 or less as recv() says; `*room`: as many were asked for. */
static ssize_t receive(tr_link *link, size_t *room) {
    uint8_t *chunk = link->chunks[link->chunk] + link->used;
    const size_t left = CHUNK_BYTES - link->used;
    landing *landing = &link->landing;
    if (!landing->is_under_way || !landing->left) {
        const size_t enough = link->missing > AHEAD ? link->missing : AHEAD;
        *room = enough < left && expects_place(link) ? enough : left;
        ssize_t got = recv(link->socket, chunk, *room, MSG_DONTWAIT);
        if (got > 0) link->used += (size_t)got;
        return got;
    }
    uint8_t *to = landing_place(link);
    struct iovec pieces[2] = {{to, landing->left}, {chunk, left < AHEAD ? left : AHEAD}};
    if (!to) pieces[0] = (struct iovec){chunk, landing->left < left ? landing->left : left};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = to ? 2 : 1};
    *room = pieces[0].iov_len + (to ? pieces[1].iov_len : 0);
    ssize_t got = recvmsg(link->socket, &message, MSG_DONTWAIT);
    if (got <= 0) return got;
    const size_t landed = (size_t)got < landing->left ? (size_t)got : landing->left;
    landing->left -= (uint32_t)landed;
    link->used += (size_t)got - landed;
    return got;
}

int tr_link_pump(tr_link *link) {
    if (link->error || transmit(link)) return link->error;
    for (int i = 0; i < RECEIVES && !link->error; i++) {
        /* Room at least for a head, so that the next bytes tell how much there is to come. */
        if ((!link->chunks_count || CHUNK_BYTES - link->next < sizeof(tr_answer) || CHUNK_BYTES == link->used) &&
            next_chunk(link))
            return break_link(link, ENOMEM, "no memory for an answer");
        size_t room;
        ssize_t got = receive(link, &room);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (got < 0) return break_by_system(link, errno, "receiving an answer");
        if (!got) return break_link(link, ECONNRESET, "the engine hung up");
        link->stats.received_bytes += (uint64_t)got;
        take_answers(link);
        if ((size_t)got < room) break; /* there is no more for now */
    }
    return link->error;
}

int tr_link_wait(tr_link *link, uint64_t wait_ms) {
    const uint64_t end_ms = monotonic_ms() + wait_ms;
    if (!link->error) transmit(link);
    while (link->pending) {
        struct pollfd waiting = {.fd = link->socket, .events = tr_link_events(link)};
        uint64_t now_ms = monotonic_ms(), left_ms = end_ms > now_ms ? end_ms - now_ms : 0;
        int came = poll(&waiting, 1, left_ms > 60000 ? 60000 : (int)left_ms);
        if (came < 0 && errno != EINTR) return break_by_system(link, errno, "waiting for an answer");
        if (came < 0) return EINTR;
        if (came && tr_link_pump(link)) break;
        if (!came && !left_ms) return ETIMEDOUT;
    }
    return link->error;
}

void tr_link_forget(tr_link *link) {
    for (size_t i = link->questions_ring.first; i < link->questions_ring.last; i++) {
        question *question = &link->questions[i & (link->questions_ring.room - 1)];
        link->stats.forgotten += question->forgotten ? 0 : question->items - question->answered;
        question->forgotten = 1;
    }
    link->landing.probe = NULL;
    link->pending = 0;
}

int tr_link_fd(const tr_link *link) { return link->socket; }
short tr_link_events(const tr_link *link) { return POLLIN | (link->out_at < link->out_count ? POLLOUT : 0); }
size_t tr_link_window(const tr_link *link) { return link->window; }
const tr_cell_head *tr_link_head(const tr_link *link) { return &link->head; }
size_t tr_link_pending(const tr_link *link) { return link->pending; }
const char *tr_link_why(const tr_link *link) { return link->why; }

void tr_link_look(const tr_link *link, tr_link_stats *stats) {
    *stats = link->stats;
    stats->memory_bytes = link->chunks_count * CHUNK_BYTES;
}

/* ---- opening */

/* Until the socket is ready, or the time is over. */
static int wait_for(int socket, short events, uint64_t end_ms) {
    for (;;) {
        struct pollfd waiting = {.fd = socket, .events = events};
        uint64_t now_ms = monotonic_ms();
        int came = poll(&waiting, 1, now_ms >= end_ms ? 0 : end_ms - now_ms > 60000 ? 60000 : (int)(end_ms - now_ms));
        if (came > 0) return 0;
        if (came < 0 && errno != EINTR) return errno;
        if (!came && monotonic_ms() >= end_ms) return ETIMEDOUT;
    }
}

static void set_option(int socket, int level, int name, int value) {
    (void)setsockopt(socket, level, name, &value, sizeof value);
}

static int connect_to(const struct addrinfo *address, uint64_t end_ms, int *connected) {
    int error = 0;
    socklen_t size = sizeof error;
    *connected = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
    if (*connected < 0) return errno;
    set_option(*connected, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(*connected, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (connect(*connected, address->ai_addr, address->ai_addrlen)) {
        error = errno;
        if (error == EINPROGRESS || error == EINTR) error = wait_for(*connected, POLLOUT, end_ms);
        if (!error && getsockopt(*connected, SOL_SOCKET, SO_ERROR, &error, &size)) error = errno;
    }
    if (!error) return 0;
    close(*connected);
    *connected = -1;
    return error;
}

static int transfer(int socket, void *bytes, size_t count, int sending, uint64_t end_ms) {
    for (size_t done = 0; done < count;) {
        ssize_t moved = sending ? send(socket, (uint8_t *)bytes + done, count - done, MSG_NOSIGNAL)
                                : recv(socket, (uint8_t *)bytes + done, count - done, 0);
        if (moved > 0) done += (size_t)moved;
        if (moved == 0) return ECONNRESET;
        if (moved < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) return errno;
        int error = moved < 0 && errno != EINTR ? wait_for(socket, sending ? POLLOUT : POLLIN, end_ms) : 0;
        if (error) return error;
    }
    return 0;
}

static int refuse(char *why, int error, const char *what, uint32_t seen, uint32_t expected) {
    snprintf(why, TR_WHY_BYTES, "%s %" PRIu32 ", not %" PRIu32, what, seen, expected);
    return error;
}

static int greet(int socket, tr_welcome *welcome, const uint8_t *ticket, uint64_t end_ms, char *why) {
    tr_hello hello = {.magic = TR_HELLO_MAGIC, .version = TR_FRAME_VERSION};
    memcpy(hello.ticket, ticket, sizeof hello.ticket);
    int error = transfer(socket, &hello, sizeof hello, 1, end_ms);
    explicit_bzero(&hello, sizeof hello);
    if (!error) error = transfer(socket, welcome, sizeof *welcome, 0, end_ms);
    if (error) {
        snprintf(why, TR_WHY_BYTES, "greeting it: %s", strerror(error));
        return error;
    }
    snprintf(why, TR_WHY_BYTES, "there is no engine, but something else");
    if (welcome->magic != TR_WELCOME_MAGIC || welcome->status == TR_NO_MAGIC) return EPROTO;
    if (welcome->version != TR_FRAME_VERSION || welcome->status == TR_NO_VERSION)
        return refuse(why, EPROTO, "it speaks version", welcome->version, TR_FRAME_VERSION);
    snprintf(why, TR_WHY_BYTES, "it does not know the ticket (any more); ask its backend for another");
    if (welcome->status == TR_NO_TICKET) return EACCES;
    snprintf(why, TR_WHY_BYTES, "it has as many links as it takes");
    if (welcome->status == TR_NO_PLACE) return EUSERS;
    if (welcome->status != TR_WELCOME) return refuse(why, EPROTO, "it answered with status", welcome->status, TR_WELCOME);
    if (welcome->layout != TR_CELL_LAYOUT)
        return refuse(why, EPROTO, "its cell has layout", welcome->layout, TR_CELL_LAYOUT);
    if (welcome->request_bytes_max < TR_REQUEST_BYTES_LEAST || welcome->request_bytes_max > TR_REQUEST_BYTES_MOST)
        return refuse(why, EPROTO, "it takes requests of bytes:", welcome->request_bytes_max, TR_REQUEST_BYTES_MOST);
    if (welcome->answer_bytes_max < sizeof(tr_answer) || welcome->answer_bytes_max > TR_ANSWER_BYTES_MOST)
        return refuse(why, EPROTO, "it gives answers of bytes:", welcome->answer_bytes_max, TR_ANSWER_BYTES_MOST);
    return 0;
}

static int connect_local(const char *path, int *connected, char *why) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(why, TR_WHY_BYTES, "its path is too long for a socket");
        return ENAMETOOLONG;
    }
    strcpy(address.sun_path, path);
    *connected = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = *connected < 0 || connect(*connected, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    if (error) snprintf(why, TR_WHY_BYTES, "connecting: %s", strerror(error));
    return error;
}

static int connect_any(const char *host, uint16_t port, uint64_t end_ms, int *connected, char *why) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char number[8];
    if (!strncmp(host, TR_LOCAL, strlen(TR_LOCAL))) return connect_local(host + strlen(TR_LOCAL), connected, why);
    snprintf(number, sizeof number, "%u", port);
    int error = getaddrinfo(host, number, &hints, &found);
    if (error) {
        int kind = error == EAI_SYSTEM ? errno : EADDRNOTAVAIL;
        snprintf(why, TR_WHY_BYTES, "%s", gai_strerror(error));
        return kind;
    }
    error = EADDRNOTAVAIL;
    snprintf(why, TR_WHY_BYTES, "no address");
    for (const struct addrinfo *each = found; each && error; each = each->ai_next) {
        error = connect_to(each, end_ms, connected);
        if (error) snprintf(why, TR_WHY_BYTES, "connecting: %s", strerror(error));
    }
    freeaddrinfo(found);
    return error;
}

int tr_link_connect(int *connected, tr_welcome *told, const char *host, uint16_t port, const uint8_t ticket[32],
                    uint64_t deadline_ms, char *why) {
    const uint64_t end_ms = monotonic_ms() + deadline_ms;
    char seen[TR_WHY_BYTES] = "";
    *connected = -1;
    int error = connect_any(host, port, end_ms, connected, seen);
    if (!error) error = greet(*connected, told, ticket, end_ms, seen);
    if (!error) return 0;
    snprintf(why, TR_WHY_BYTES, "the engine at %.200s port %u: %.250s", host, port, seen);
    if (*connected >= 0) close(*connected);
    *connected = -1;
    return error;
}

int tr_link_open(tr_link **opened, const char *host, uint16_t port, const uint8_t ticket[32], uint64_t deadline_ms,
                 char *why) {
    tr_welcome told = {0};
    tr_link *link = calloc(1, sizeof *link);
    if (!link) {
        snprintf(why, TR_WHY_BYTES, "the engine at %.200s port %u: no memory for a link", host, port);
        return ENOMEM;
    }
    int error = tr_link_connect(&link->socket, &told, host, port, ticket, deadline_ms, why);
    if (error) {
        free(link);
        return error;
    }
    const size_t under_way = (size_t)tr_round_trip_us(link->socket) * BYTES_PER_US;
    link->window = under_way < WINDOW_LEAST ? WINDOW_LEAST : under_way < WINDOW_MOST ? under_way : WINDOW_MOST;
    link->request_bytes_max = told.request_bytes_max;
    link->answer_bytes_max = told.answer_bytes_max;
    link->head = (tr_cell_head){
        .magic = TR_CELL_MAGIC, .layout = TR_CELL_LAYOUT, .instance = told.instance, .config_id = told.config_id,
        .generation = told.generation, .buckets = told.buckets, .reserved = told.reserved,
    };
    *opened = link;
    return 0;
}

void tr_link_close(tr_link *link) {
    break_link(link, EBADF, "closed");
    if (link->socket >= 0) close(link->socket);
    for (size_t i = 0; i < link->chunks_count; i++) free(link->chunks[i]);
    free(link->chunks);
    free(link->questions);
    free(link->probes);
    free(link->outbox);
    free(link);
}
