#define _GNU_SOURCE
#include "cell_watch.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 30000 }; /* then the engine answers without news, and is asked again: both know that they live */

typedef struct {
    tr_probe probe;
    uint32_t backend;
    int is_known;
    uint8_t *value; /* when there was last news; `value_bytes` of it */
    uint64_t value_bytes;
} watched;

typedef struct {
    uint32_t backend;
    tr_link *link;
} way;

struct tr_watch {
    watched *keys;
    uint8_t *names;
    tr_probe **asking; /* room for one question */
    way *ways;
    struct pollfd *polled; /* a way each, and the alarm */
    uint32_t keys_count, ways_count;
    uint64_t skip_begin, skip_end;
    int alarm, is_broken;
};

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int tr_watch_open(tr_watch **opened, const tr_slice *keys, const uint32_t *places, uint32_t count, uint64_t skip_begin,
                  uint64_t skip_end) {
    size_t names = 0;
    for (uint32_t i = 0; i < count; i++) names += keys[i].count;
    tr_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return ENOMEM;
    *watch = (tr_watch){.keys_count = count, .skip_begin = skip_begin, .skip_end = skip_end, .alarm = eventfd(0, EFD_CLOEXEC)};
    int error = watch->alarm < 0 ? errno : 0;
    watch->keys = calloc(count + 1, sizeof *watch->keys);
    watch->names = malloc(names + 1);
    watch->asking = calloc(count + 1, sizeof *watch->asking);
    watch->ways = calloc(count + 1, sizeof *watch->ways);
    watch->polled = calloc(count + 2, sizeof *watch->polled);
    if (!error && (!watch->keys || !watch->names || !watch->asking || !watch->ways || !watch->polled)) error = ENOMEM;
    if (error) {
        tr_watch_close(watch);
        return error;
    }
    uint8_t *name = watch->names;
    for (uint32_t i = 0; i < count; i++) {
        tr_slice key = {name, keys[i].count};
        memcpy(name, keys[i].at, keys[i].count);
        name += keys[i].count;
        watch->keys[i] = (watched){.probe = {.key = key, .hash = tr_key_hash_of(key)}, .backend = places[i]};
    }
    *opened = watch;
    return 0;
}

void tr_watch_close(tr_watch *watch) {
    for (uint32_t i = 0; i < watch->ways_count; i++) tr_link_close(watch->ways[i].link);
    for (uint32_t i = 0; watch->keys && i < watch->keys_count; i++) free(watch->keys[i].value);
    if (watch->alarm >= 0) close(watch->alarm);
    free(watch->keys);
    free(watch->names);
    free(watch->asking);
    free(watch->ways);
    free(watch->polled);
    free(watch);
}

int tr_watch_attach(tr_watch *watch, uint32_t backend, tr_link *link) {
    if (watch->ways_count == watch->keys_count) { /* no key needs another */
        tr_link_close(link);
        return ENOMEM;
    }
    watch->ways[watch->ways_count++] = (way){backend, link};
    return 0;
}

static int ask(tr_watch *watch, const way *way) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < watch->keys_count; i++)
        if (watch->keys[i].backend == way->backend) watch->asking[count++] = &watch->keys[i].probe;
    return tr_link_watch(way->link, watch->asking, count, 0, WAIT_MS);
}

static int is_same(const tr_watch *watch, const watched *key) {
    const uint64_t count = key->value_bytes, begin = watch->skip_begin < count ? watch->skip_begin : count;
    const uint64_t end = watch->skip_end < count ? watch->skip_end : count;
    return key->is_known && key->probe.value_bytes == count && !memcmp(key->value, key->probe.data, begin) &&
           !memcmp(key->value + end, key->probe.data + end, count - end);
}

/* 1: it has another value. 0: it has not. -1: no memory to remember it. */
static int take(const tr_watch *watch, watched *key) {
    if (key->probe.state != TR_PROBE_HIT) { /* there is none, or none that could be had: whoever waits may look */
        const int was_known = key->is_known || key->probe.state != TR_PROBE_MISS;
        key->is_known = 0;
        key->probe.entry.version = (tr_version){0};
        return was_known;
    }
    if (is_same(watch, key)) return 0;
    uint8_t *value = realloc(key->value, key->probe.value_bytes + 1);
    if (!value) return -1;
    memcpy(value, key->probe.data, key->probe.value_bytes);
    key->value = value;
    key->value_bytes = key->probe.value_bytes;
    key->is_known = 1;
    return 1;
}

/* All of this way's keys are answered. */
static int take_all(tr_watch *watch, const way *way) {
    int news = 0;
    for (uint32_t i = 0; i < watch->keys_count; i++) {
        watched *key = &watch->keys[i];
        if (key->backend != way->backend) continue;
        /* Of a key that only the backend itself can tell of, there is no news to be had here. */
        const tr_probe_state state = key->probe.state;
        if (state == TR_PROBE_REVOKED || state == TR_PROBE_DOWN || state == TR_PROBE_ASK) return -1;
        int taken = take(watch, key);
        if (taken < 0) return -1;
        news |= taken;
    }
    return news;
}

static int break_watch(tr_watch *watch) {
    watch->is_broken = 1;
    return TR_WATCH_BROKEN;
}

int tr_watch_wait(tr_watch *watch, uint64_t timeout_ns) {
    const uint64_t until_ns = monotonic_ns() + timeout_ns;
    const nfds_t alarm = watch->ways_count;
    int news = 0;
    if (watch->is_broken || !watch->ways_count) return TR_WATCH_BROKEN;
    for (;;) {
        for (uint32_t i = 0; i < watch->ways_count; i++) {
            tr_link *link = watch->ways[i].link;
            if (!tr_link_pending(link) && ask(watch, &watch->ways[i])) return break_watch(watch);
            watch->polled[i] = (struct pollfd){.fd = tr_link_fd(link), .events = tr_link_events(link)};
        }
        watch->polled[alarm] = (struct pollfd){.fd = watch->alarm, .events = POLLIN};
        const uint64_t now_ns = monotonic_ns(), left_ns = now_ns < until_ns ? until_ns - now_ns : 0;
        const struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
        int came = ppoll(watch->polled, alarm + 1, &left, NULL);
        if (came < 0) return errno == EINTR ? TR_WATCH_INTERRUPTED : break_watch(watch);
        if (!came || watch->polled[alarm].revents) return TR_WATCH_QUIET;
        for (uint32_t i = 0; i < watch->ways_count; i++) {
            tr_link *link = watch->ways[i].link;
            if (!watch->polled[i].revents) continue;
            if (tr_link_pump(link)) return break_watch(watch);
            if (tr_link_pending(link)) continue;
            int taken = take_all(watch, &watch->ways[i]);
            if (taken < 0) return break_watch(watch);
            news |= taken;
        }
        if (news) return TR_WATCH_NEWS;
    }
}

const uint8_t *tr_watch_value(const tr_watch *watch, uint32_t i, uint64_t *bytes) {
    if (i >= watch->keys_count || !watch->keys[i].is_known) return NULL;
    *bytes = watch->keys[i].value_bytes;
    return watch->keys[i].value;
}

void tr_watch_stop(tr_watch *watch) {
    uint64_t one = 1;
    while (write(watch->alarm, &one, sizeof one) < 0 && errno == EINTR) continue;
}
