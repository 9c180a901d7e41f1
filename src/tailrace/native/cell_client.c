#define _GNU_SOURCE
#include "cell_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

enum {
    ATTEMPTS = 32,
    DATA_BYTES = 16 << 10, /* beyond this a second step costs less than bytes that nobody may want */
    HEDGE_NS = 30 * 1000 * 1000,
    BACKOFF_NS = 10 * 1000, /* after the first attempt; doubled after each */
    POLLED = 64,            /* links waited for at once: more are looked at in turns */
};

#define IDLE TR_PROBE_DOWN  /* a probe that asks nobody */
#define ANSWER_NS_FIRST 1e5 /* what a link is thought to need before it has answered once */

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The copy's backend: in a ring, and without a division, since this is done for every key. */
static inline uint32_t ring(const tr_client *client, uint32_t home, uint32_t copy) {
    uint32_t number = home + copy;
    return number < client->backends ? number : number - client->backends;
}

/* ---- backends */

int tr_client_open(tr_client *client, uint32_t backends, uint32_t copies, uint32_t quorum) {
    *client = (tr_client){.backends = backends, .copies = copies, .quorum = quorum, .attempts_max = ATTEMPTS,
                          .data_bytes_max = DATA_BYTES, .hedge_ns = HEDGE_NS};
    client->backend = calloc(backends, sizeof *client->backend);
    client->begin = calloc(backends + 1, sizeof *client->begin);
    if (client->backend && client->begin) return 0;
    tr_client_close(client);
    return ENOMEM;
}

static void let_go(tr_backend *backend) {
    if (backend->view) {
        tr_view_unmap(backend->view);
        free(backend->view->folder);
        free(backend->view);
    }
    if (backend->link) tr_link_close(backend->link);
    backend->view = NULL;
    backend->link = NULL;
}

void tr_client_close(tr_client *client) {
    tr_client_finish(client);
    for (uint32_t i = 0; client->backend && i < client->backends; i++) let_go(&client->backend[i]);
    free(client->backend);
    free(client->begin);
    free(client->keys);
    free(client->probes);
    free(client->owners);
    free(client->places);
    free(client->asking);
    free(client->offers);
    free(client->stashed);
    *client = (tr_client){0};
}

void tr_client_attach(tr_client *client, uint32_t number, tr_view *view, tr_link *link, uint64_t config_id) {
    tr_backend *backend = &client->backend[number];
    let_go(backend);
    *backend = (tr_backend){.view = view, .link = link, .config_id = config_id, .answer_ns = ANSWER_NS_FIRST};
}

/* ---- the batch */

static int make_batch_room(tr_client *client, size_t count) {
    if (count <= client->keys_room) return 0;
    size_t room = count > 2 * client->keys_room ? count : 2 * client->keys_room, probes = room * client->copies;
    free(client->keys);
    free(client->probes);
    free(client->owners);
    free(client->places);
    free(client->asking);
    free(client->offers);
    free(client->stashed);
    client->keys = calloc(room, sizeof *client->keys);
    client->probes = calloc(probes, sizeof *client->probes);
    client->owners = calloc(probes, sizeof *client->owners);
    client->places = calloc(probes, sizeof *client->places);
    client->asking = calloc(probes, sizeof *client->asking);
    client->offers = calloc(room, sizeof *client->offers);
    client->stashed = calloc(room, sizeof *client->stashed);
    int whole = client->keys && client->probes && client->owners && client->places && client->asking &&
                client->offers && client->stashed;
    client->keys_room = whole ? room : 0;
    return whole ? 0 : ENOMEM;
}

static inline void begin_key(tr_client *client, size_t i, tr_slice slice) {
    tr_key_hash hash = tr_key_hash_of(slice);
    client->keys[i] = (tr_key){.hash = hash, .home = tr_home_of(hash, client->backends)};
}

static inline void deal(tr_client *client, size_t i, tr_slice slice, uint32_t copy, uint32_t number) {
    tr_key *key = &client->keys[i];
    key->probes[copy] = number;
    client->owners[number] = (uint32_t)i;
    tr_probe_begin(&client->probes[number], slice, key->hash, IDLE);
}

/* Every backend has a copy of every key. */
static void deal_to_all(tr_client *client, const tr_slice *keys, size_t count) {
    for (size_t i = 0; i < count; i++) {
        begin_key(client, i, keys[i]);
        for (uint32_t copy = 0; copy < client->copies; copy++)
            deal(client, i, keys[i], copy, ring(client, client->keys[i].home, copy) * (uint32_t)count + (uint32_t)i);
    }
    for (uint32_t b = 0; b <= client->backends; b++) client->begin[b] = b * (uint32_t)count;
}

/* Counted first, then dealt out. */
static void deal_to_some(tr_client *client, const tr_slice *keys, size_t count) {
    const uint32_t backends = client->backends, copies = client->copies;
    memset(client->begin, 0, (backends + 1) * sizeof *client->begin);
    for (size_t i = 0; i < count; i++) {
        begin_key(client, i, keys[i]);
        for (uint32_t copy = 0; copy < copies; copy++) client->begin[ring(client, client->keys[i].home, copy) + 1]++;
    }
    for (uint32_t b = 1; b <= backends; b++) client->begin[b] += client->begin[b - 1];
    for (size_t i = 0; i < count; i++)
        for (uint32_t copy = 0; copy < copies; copy++)
            deal(client, i, keys[i], copy, client->begin[ring(client, client->keys[i].home, copy)]++);
    /* Dealing moved each beginning to its end, which is the next one's beginning. */
    memmove(client->begin + 1, client->begin, backends * sizeof *client->begin);
    client->begin[0] = 0;
}

/* Probes of one backend lie side by side, in the order of the keys. */
int tr_client_prepare(tr_client *client, const tr_slice *keys, size_t count) {
    tr_client_finish(client);
    client->keys_count = 0;
    client->all_hit = 0;
    client->offer_bytes = 0;
    if (make_batch_room(client, count)) return ENOMEM;
    if (count) memset(client->offers, 0, count * sizeof *client->offers); /* the last batch's, which are somebody else's by now */
    (client->copies == client->backends ? deal_to_all : deal_to_some)(client, keys, count);
    client->keys_count = count;
    return 0;
}

void tr_client_finish(tr_client *client) {
    for (size_t i = 0; client->stashes && i < client->keys_count; i++) {
        if (!client->stashed[i]) continue;
        free(client->stashed[i]);
        client->stashed[i] = NULL;
        client->stashes--;
    }
    for (uint32_t b = 0; client->backend && b < client->backends; b++)
        if (client->backend[b].link && tr_link_pending(client->backend[b].link)) tr_link_forget(client->backend[b].link);
}

/* ---- asking */

typedef struct {
    tr_client *client;
    uint32_t now_s, need, need_misses;
    int relaxed, hedged;
    int near; /* every memory is here: the first replicas of the ring are as good as any */
    uint64_t began_ns, deadline_ns;
} look;

static tr_backend *backend_of(const tr_client *client, const tr_key *key, uint32_t copy) {
    return &client->backend[ring(client, key->home, copy)];
}

static tr_probe *probe_of(const tr_client *client, const tr_key *key, uint32_t copy) {
    return &client->probes[key->probes[copy]];
}

static void ask(const tr_client *client, tr_key *key, uint32_t copy) {
    const tr_backend *backend = backend_of(client, key, copy);
    tr_probe *probe = probe_of(client, key, copy);
    key->asked |= (uint8_t)(1u << copy);
    key->sent &= (uint8_t)~(1u << copy);
    probe->state = backend->view || backend->link ? TR_PROBE_NEW : TR_PROBE_DOWN;
    probe->data = NULL;
    probe->sight = (tr_sight){0};
}

/* How much we would rather not ask this replica. Memory is the cheapest, then the quickest link, then who is suspect. */
static double reluctance(const tr_backend *backend) {
    double cost = backend->view ? 0 : backend->link ? backend->answer_ns : 1e18;
    return backend->suspect ? cost + 1e15 : cost;
}

/* The best replica that was not asked yet, beginning elsewhere at each attempt; or none. */
static int next_copy(const tr_client *client, const tr_key *key) {
    int best = -1;
    double least = 0;
    for (uint32_t step = 0; step < client->copies; step++) {
        uint32_t copy = (step + key->attempts) % client->copies;
        if (key->asked & 1u << copy) continue;
        double cost = reluctance(backend_of(client, key, copy));
        if (best >= 0 && cost >= least) continue;
        best = (int)copy;
        least = cost;
    }
    return best;
}

static int ask_more(const look *with, tr_key *key, uint32_t count) {
    int asked = 0;
    for (int copy; count-- && (copy = next_copy(with->client, key)) >= 0; asked++) ask(with->client, key, (uint32_t)copy);
    return asked;
}

static int in_memory(const tr_client *client, const tr_key *key) {
    int views = 0;
    for (uint32_t copy = 0; copy < client->copies; copy++) views += backend_of(client, key, copy)->view != NULL;
    return views;
}

/* Every backend's memory is here, and none of them is said to be dead. */
static int all_near(const tr_client *client) {
    for (uint32_t b = 0; b < client->backends; b++)
        if (!client->backend[b].view || client->backend[b].suspect) return 0;
    return 1;
}

/* Of shared memory only as many as must agree; of engines all, since the slowest would otherwise be waited for. */
static void ask_first(const look *with, tr_key *key) {
    const tr_client *client = with->client;
    ask_more(with, key, with->need == 1 || in_memory(client, key) >= (int)with->need ? with->need : client->copies);
}

/* Nobody is asked any more but for `kept`, which has the value: whoever is still FOUND would be fetched. And whatever
 * else is on its way is received elsewhere than where the value is, or will be. */
static void settle(const tr_client *client, tr_key *key, tr_key_state state, int kept) {
    for (int copy = 0; copy < (int)client->copies; copy++) {
        tr_probe *probe = probe_of(client, key, (uint32_t)copy);
        if (copy != kept) probe->state = IDLE;
        if (client->offer_bytes) probe->place = NULL;
    }
    if (kept >= 0) key->chosen = (uint8_t)kept;
    key->state = state;
    key->reading = 0;
}

/* From the beginning, if another attempt is allowed. */
static void reopen(tr_client *client, tr_key *key) {
    client->stats.retries++;
    key->attempts++;
    key->asked = key->sent = 0;
    settle(client, key, key->attempts < client->attempts_max ? TR_KEY_OPEN : TR_KEY_INQUORATE, -1);
}

static void start_again(look *with, tr_key *key) {
    reopen(with->client, key);
    if (key->state == TR_KEY_OPEN) ask_first(with, key);
}

/* ---- views */

static void group_down(tr_client *client, uint32_t b) {
    for (uint32_t i = client->begin[b]; i < client->begin[b + 1]; i++)
        if (client->probes[i].state == TR_PROBE_NEW || client->probes[i].state == TR_PROBE_REVOKED)
            client->probes[i].state = TR_PROBE_DOWN;
}

/* The view was mapped anew, and what was found there is new again: keys that relied on it were decided too early. */
static void vote_again(look *with, uint32_t b) {
    tr_client *client = with->client;
    for (uint32_t i = client->begin[b]; i < client->begin[b + 1]; i++) {
        tr_key *key = &client->keys[client->owners[i]];
        if (key->state == TR_KEY_TAKE && key->probes[key->chosen] == i) start_again(with, key);
    }
}

static void look_at_view(look *with, uint32_t b) {
    tr_client *client = with->client;
    tr_backend *backend = &client->backend[b];
    tr_probe *probes = client->probes + client->begin[b];
    const size_t count = client->begin[b + 1] - client->begin[b];
    for (;;) {
        char why[TR_WHY_BYTES];
        int revoked = 0;
        if (backend->view->head.config_id != backend->config_id) {
            backend->trouble |= TR_TROUBLE_CONFIG;
            group_down(client, b);
            return;
        }
        tr_view_locate(backend->view, probes, count, with->now_s);
        for (size_t i = 0; i < count; i++) revoked |= probes[i].state == TR_PROBE_REVOKED;
        if (!revoked) return;
        if (tr_view_renew(backend->view, probes, count, why)) {
            backend->trouble |= TR_TROUBLE_VIEW;
            group_down(client, b);
            return;
        }
        vote_again(with, b);
    }
}

/* ---- links */

/* The one replica that is asked for the bytes along with the index: the quickest that was asked. */
static int brings_data(const look *with, const tr_key *key, uint32_t copy) {
    const tr_client *client = with->client;
    double own = reluctance(backend_of(client, key, copy));
    for (uint32_t other = 0; other < client->copies; other++) {
        if (other == copy || !(key->asked & 1u << other)) continue;
        double theirs = reluctance(backend_of(client, key, other));
        if (theirs < own || (theirs == own && (other + client->copies - key->attempts) % client->copies <
                                                  (copy + client->copies - key->attempts) % client->copies))
            return 0;
    }
    return 1;
}

/* Nobody will ask for this value: its key is decided otherwise, or another replica's copy of it is kept already. */
static int is_spare(const tr_client *client, uint32_t number, const tr_probe *probe) {
    const tr_key *key = &client->keys[number];
    if (key->state != TR_KEY_OPEN) return key->state != TR_KEY_READY || probe != probe_of(client, key, key->chosen);
    for (uint32_t copy = 0; client->stashed[number] && copy < client->copies; copy++)
        if (probe_of(client, key, copy)->data == client->stashed[number]) return 1;
    return 0;
}

/* A link's buffer is its own at the next question: values that wait in it move out. */
static void stash_values(tr_client *client, uint32_t b) {
    for (uint32_t i = client->begin[b]; i < client->begin[b + 1]; i++) {
        tr_probe *probe = &client->probes[i];
        uint32_t number = client->owners[i];
        if (probe->state != TR_PROBE_HIT || !probe->data || client->stashed[number] == probe->data) continue;
        if (client->offer_bytes && probe->data == client->offers[number]) continue; /* it never was in the link's buffer */
        if (is_spare(client, number, probe)) {
            probe->state = TR_PROBE_FOUND; /* its word still counts */
            probe->data = NULL;
            continue;
        }
        uint8_t *copy = malloc(probe->value_bytes + 1);
        if (!copy) { /* then it is asked for again */
            probe->state = TR_PROBE_UNSETTLED;
            if (client->keys[number].state == TR_KEY_READY) client->keys[number].state = TR_KEY_UNREACHABLE;
            continue;
        }
        memcpy(copy, probe->data, probe->value_bytes);
        if (client->stashed[number])
            free(client->stashed[number]);
        else
            client->stashes++;
        client->stashed[number] = copy;
        probe->data = copy;
    }
}

static void link_broke(tr_client *client, uint32_t b) {
    client->backend[b].trouble |= TR_TROUBLE_LINK;
    stash_values(client, b);
    tr_link_close(client->backend[b].link);
    client->backend[b].link = NULL;
    group_down(client, b);
}

/* One replica alone may receive a value where it is wanted: two would write over each other. */
static void give_place(const look *with, uint32_t number, tr_probe *probe) {
    const int alone = with->need == 1 && __builtin_popcount(with->client->keys[number].asked) == 1;
    probe->place = alone ? with->client->offers[number] : NULL;
}

/* How many may be asked for now. Values that have a place are many or large: a window of them, and the next ones when
 * all of it is there. */
static size_t may_ask(const look *with, const tr_backend *backend, int with_data) {
    const tr_client *client = with->client;
    if (!client->offer_bytes || !backend->link || !with_data || with->need > 1) return SIZE_MAX;
    if (tr_link_pending(backend->link)) return 0;
    const size_t most = tr_link_window(backend->link) / client->offer_bytes;
    return most ? most : 1;
}

/* Questions of one kind, in one frame. */
static void send_scan(look *with, uint32_t b, int with_data) {
    tr_client *client = with->client;
    tr_backend *backend = &client->backend[b];
    const size_t most = may_ask(with, backend, with_data);
    size_t count = 0;
    for (uint32_t i = client->begin[b]; backend->link && i < client->begin[b + 1] && count < most; i++) {
        tr_key *key = &client->keys[client->owners[i]];
        uint32_t copy = (b + client->backends - key->home) % client->backends;
        if (client->probes[i].state != TR_PROBE_NEW || key->sent & 1u << copy) continue;
        if (brings_data(with, key, copy) != with_data) continue;
        client->asking[count++] = &client->probes[i];
    }
    if (!count) return;
    for (size_t i = 0; i < count; i++) {
        size_t number = (size_t)(client->asking[i] - client->probes);
        tr_key *key = &client->keys[client->owners[number]];
        key->sent |= (uint8_t)(1u << ((b + client->backends - key->home) % client->backends));
        if (client->offer_bytes) give_place(with, client->owners[number], client->asking[i]);
    }
    stash_values(client, b);
    /* Where one replica's word is enough its bytes are wanted, however many. */
    const uint32_t data_bytes_max = !with_data ? 0 : with->need == 1 ? UINT32_MAX : client->data_bytes_max;
    if (tr_link_scan(backend->link, client->asking, count, with->now_s, data_bytes_max, client->offer_bytes))
        link_broke(client, b);
}

static void send_read(look *with, tr_key *key, uint32_t copy) {
    tr_client *client = with->client;
    uint32_t b = ring(client, key->home, copy);
    tr_probe *probe = probe_of(client, key, copy);
    key->chosen = (uint8_t)copy;
    key->reading = 1;
    client->stats.two_step_reads++;
    if (tr_link_read(client->backend[b].link, &probe, 1)) {
        link_broke(client, b);
        start_again(with, key);
    }
}

static int wait_for_links(look *with, uint64_t until_ns) {
    tr_client *client = with->client;
    struct pollfd polled[POLLED];
    uint32_t which[POLLED];
    nfds_t count = 0;
    for (uint32_t b = 0; b < client->backends && count < POLLED; b++) {
        tr_link *link = client->backend[b].link;
        if (!link || !tr_link_pending(link)) continue;
        polled[count] = (struct pollfd){.fd = tr_link_fd(link), .events = tr_link_events(link)};
        which[count++] = b;
    }
    uint64_t now = monotonic_ns();
    if (now >= until_ns) return 0;
    struct timespec left = {.tv_sec = (time_t)((until_ns - now) / 1000000000u),
                            .tv_nsec = (long)((until_ns - now) % 1000000000u)};
    if (ppoll(polled, count, &left, NULL) <= 0) return count > 0;
    now = monotonic_ns();
    for (nfds_t i = 0; i < count; i++) {
        tr_backend *backend = &client->backend[which[i]];
        if (!polled[i].revents) continue;
        int error = tr_link_pump(backend->link);
        if (!error && !tr_link_pending(backend->link))
            backend->answer_ns += 0.125 * ((double)(now - with->began_ns) - backend->answer_ns);
        int changed = !error && tr_link_head(backend->link)->config_id != backend->config_id;
        if (changed) backend->trouble |= TR_TROUBLE_CONFIG;
        if (error || changed) link_broke(client, which[i]);
    }
    return 1;
}

/* ---- the vote */

enum { WAITS, ASKED, DECIDED };

static int agrees(const tr_probe *a, const tr_probe *b) {
    return !tr_version_compare(a->entry.version, b->entry.version);
}

/* Who of those that agree gives the bytes. They may have come along; they may lie in memory; or they must be read. */
static int choose(look *with, tr_key *key, uint32_t members, int waiting) {
    tr_client *client = with->client;
    int in_view = -1, on_link = -1;
    for (uint32_t step = 0; step < client->copies; step++) {
        uint32_t copy = (step + key->attempts) % client->copies;
        if (!(members & 1u << copy)) continue;
        const tr_probe *probe = probe_of(client, key, copy);
        if (probe->state == TR_PROBE_HIT) {
            client->stats.scan_reads++;
            settle(client, key, TR_KEY_READY, (int)copy);
            return DECIDED;
        }
        if (backend_of(client, key, copy)->view)
            in_view = in_view < 0 ? (int)copy : in_view;
        else if (backend_of(client, key, copy)->link)
            on_link = on_link < 0 ? (int)copy : on_link;
    }
    if (in_view >= 0) {
        settle(client, key, TR_KEY_TAKE, in_view);
        return DECIDED;
    }
    if (on_link < 0) {
        start_again(with, key);
        return ASKED;
    }
    if (waiting && !with->hedged) return WAITS; /* the bytes are on their way with the answer that is still missing */
    send_read(with, key, (uint32_t)on_link);
    return ASKED;
}

static int decide(const tr_client *client, tr_key *key, tr_key_state state) {
    settle(client, key, state, -1);
    return DECIDED;
}

static int vote(look *with, tr_key *key) {
    tr_client *client = with->client;
    uint32_t waiting = 0, misses = 0, asks = 0, down = 0, unasked = 0;
    if (key->reading) {
        tr_probe *probe = probe_of(client, key, key->chosen);
        if (probe->state == TR_PROBE_FOUND) return WAITS;
        if (probe->state == TR_PROBE_HIT) {
            settle(client, key, TR_KEY_READY, key->chosen);
            return DECIDED;
        }
        if (probe->state == TR_PROBE_ASK) return decide(client, key, TR_KEY_ASK);
        start_again(with, key);
        return ASKED;
    }
    for (uint32_t copy = 0; copy < client->copies; copy++) {
        const tr_probe *probe = probe_of(client, key, copy);
        if (!(key->asked & 1u << copy)) {
            unasked++;
            continue;
        }
        waiting += probe->state == TR_PROBE_NEW;
        misses += probe->state == TR_PROBE_MISS;
        asks += probe->state == TR_PROBE_ASK;
        down += probe->state == TR_PROBE_DOWN;
    }
    for (uint32_t copy = 0; copy < client->copies; copy++) {
        const tr_probe *probe = probe_of(client, key, copy);
        uint32_t members = 0;
        if (probe->state != TR_PROBE_FOUND && probe->state != TR_PROBE_HIT) continue;
        for (uint32_t other = 0; other < client->copies; other++) {
            const tr_probe *theirs = probe_of(client, key, other);
            if ((theirs->state == TR_PROBE_FOUND || theirs->state == TR_PROBE_HIT) && agrees(probe, theirs))
                members |= 1u << other;
        }
        if ((uint32_t)__builtin_popcount(members) >= with->need) return choose(with, key, members, waiting > 0);
    }
    if (misses >= with->need_misses) return decide(client, key, TR_KEY_MISS);
    if (unasked && (with->need > 1 || !waiting || with->hedged) && ask_more(with, key, with->need > 1 ? unasked : 1))
        return ASKED;
    if (waiting) return WAITS;
    if (asks) return decide(client, key, TR_KEY_ASK);
    /* Those that are left cannot decide, however often they are asked. Others may be reached in another way. */
    if (down && (down > client->copies - with->need || misses + down == client->copies))
        return decide(client, key, TR_KEY_UNREACHABLE);
    start_again(with, key);
    return key->state == TR_KEY_OPEN ? ASKED : DECIDED;
}

/* What nearly every key is: the first replicas in memory all have it at one version, or all miss it. vote() would say
 * the same. */
static int unanimous(const look *with, tr_key *key) {
    tr_client *client = with->client;
    const tr_probe *first = probe_of(client, key, 0);
    if (key->attempts || (first->state != TR_PROBE_FOUND && (first->state != TR_PROBE_MISS || with->need < with->need_misses)))
        return 0;
    for (uint32_t copy = 1; copy < with->need; copy++) {
        const tr_probe *other = probe_of(client, key, copy);
        if (other->state != first->state || (first->state == TR_PROBE_FOUND && !agrees(first, other))) return 0;
    }
    for (uint32_t copy = 1; copy < with->need; copy++) probe_of(client, key, copy)->state = IDLE;
    key->state = first->state == TR_PROBE_FOUND ? TR_KEY_TAKE : TR_KEY_MISS;
    return 1;
}

static void look_everywhere(look *with) {
    tr_client *client = with->client;
    for (uint32_t b = 0; b < client->backends; b++) {
        if (client->begin[b] == client->begin[b + 1]) continue;
        if (client->backend[b].view) {
            look_at_view(with, b);
        } else if (client->backend[b].link) {
            send_scan(with, b, 1);
            send_scan(with, b, 0);
        } else {
            group_down(client, b);
        }
    }
}

/* The sooner of the deadline and what else there is to do at a certain time. */
static uint64_t wake_at(const look *with, int backing_off, uint32_t attempts) {
    uint64_t at = with->deadline_ns, hedge = with->began_ns + with->client->hedge_ns;
    if (!with->hedged && hedge < at) at = hedge;
    if (backing_off) {
        uint64_t later = monotonic_ns() + ((uint64_t)BACKOFF_NS << (attempts < 7 ? attempts : 7));
        if (later < at) at = later;
    }
    return at;
}

static look begin_look(tr_client *client, uint32_t now_s, int relaxed, uint64_t deadline_ns) {
    const uint32_t need = relaxed ? 1 : client->quorum;
    return (look){.client = client, .now_s = now_s, .need = need, .relaxed = relaxed, .near = all_near(client),
                  .need_misses = need > 1 || relaxed ? need : client->copies, .deadline_ns = deadline_ns};
}

static void ask_open_keys(look *with) {
    tr_client *client = with->client;
    for (size_t i = 0; i < client->keys_count; i++) {
        tr_key *key = &client->keys[i];
        if (key->state != TR_KEY_OPEN || key->asked) continue;
        if (!with->near || key->attempts) {
            ask_first(with, key);
            continue;
        }
        key->asked = (uint8_t)((1u << with->need) - 1); /* a new probe is as ask() would leave it, but for its state */
        for (uint32_t copy = 0; copy < with->need; copy++) probe_of(client, key, copy)->state = TR_PROBE_NEW;
    }
}

size_t tr_client_glance(tr_client *client, uint32_t now_s, int relaxed) {
    look with = begin_look(client, now_s, relaxed, 0);
    size_t open = client->keys_count;
    if (!with.near) return open;
    ask_open_keys(&with);
    look_everywhere(&with);
    for (size_t i = 0; i < client->keys_count; i++) open -= (size_t)unanimous(&with, &client->keys[i]);
    return open;
}

void tr_client_look(tr_client *client, uint32_t now_s, int relaxed, uint64_t deadline_ns) {
    look with = begin_look(client, now_s, relaxed, deadline_ns);
    ask_open_keys(&with);
    for (uint64_t rounds = 0;; rounds++) {
        size_t open = 0, asked = 0;
        uint32_t attempts = 0;
        look_everywhere(&with);
        for (size_t i = 0; i < client->keys_count; i++) {
            tr_key *key = &client->keys[i];
            if (key->state != TR_KEY_OPEN || (with.near && unanimous(&with, key))) continue;
            uint8_t before = key->attempts;
            asked += vote(&with, key) == ASKED;
            open += key->state == TR_KEY_OPEN;
            if (key->attempts > before && key->attempts > attempts) attempts = key->attempts;
        }
        if (!open) return;
        uint64_t now = monotonic_ns();
        if (!rounds) with.began_ns = now;
        if (now >= deadline_ns) break;
        if (!with.hedged && now >= with.began_ns + client->hedge_ns) {
            with.hedged = 1;
            client->stats.hedges++;
            continue;
        }
        /* New questions go out at once, unless the replicas just disagreed: then a mutation is on its way, give it time. */
        if (asked && attempts < 2) continue;
        wait_for_links(&with, wake_at(&with, attempts >= 2, attempts));
    }
    for (size_t i = 0; i < client->keys_count; i++)
        if (client->keys[i].state == TR_KEY_OPEN) settle(client, &client->keys[i], TR_KEY_UNREACHABLE, -1);
}

/* ---- bytes */

static void count_results(tr_client *client, const tr_key *key) {
    client->stats.hits += key->state == TR_KEY_HIT;
    client->stats.misses += key->state == TR_KEY_MISS;
    client->stats.asks += key->state == TR_KEY_ASK;
    client->stats.inquorate += key->state == TR_KEY_INQUORATE;
    client->stats.unreachable += key->state == TR_KEY_UNREACHABLE;
}

void tr_client_leave(tr_client *client, size_t key) { settle(client, &client->keys[key], TR_KEY_MISS, -1); }

size_t tr_client_take(tr_client *client) {
    size_t open = 0, hits = 0;
    for (uint32_t b = 0; b < client->backends; b++)
        if (client->backend[b].view)
            tr_view_fetch(client->backend[b].view, client->probes + client->begin[b],
                          client->places + client->begin[b], client->begin[b + 1] - client->begin[b]);
    for (size_t i = 0; i < client->keys_count; i++) {
        tr_key *key = &client->keys[i];
        tr_probe *probe = tr_client_chosen(client, i);
        if (key->state == TR_KEY_READY) {
            uint8_t *place = client->places[key->probes[key->chosen]];
            if (probe->value_bytes && probe->data != place) memcpy(place, probe->data, probe->value_bytes);
            key->state = TR_KEY_HIT;
        } else if (key->state == TR_KEY_TAKE) {
            if (probe->state == TR_PROBE_HIT) {
                key->state = TR_KEY_HIT;
            } else if (probe->state == TR_PROBE_ASK) { /* they agreed on another key with our hash: ours is chained */
                settle(client, key, TR_KEY_ASK, -1);
            } else { /* changed while it was copied: everyone is asked again */
                reopen(client, key);
                open += key->state == TR_KEY_OPEN;
            }
        }
        hits += key->state == TR_KEY_HIT;
    }
    client->all_hit = hits == client->keys_count;
    if (client->all_hit)
        client->stats.hits += hits; /* nearly always */
    else if (!open)
        for (size_t i = 0; i < client->keys_count; i++) count_results(client, &client->keys[i]);
    return open;
}
