#define _GNU_SOURCE
#include "cell_courier.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* One courier's way through its parcels: which is being sent and how far, which is answered next. */
typedef struct trip {
    tr_courier *courier;
    size_t sending, answered; /* numbers of parcels, of any backend: others are stepped over */
    uint64_t sent;            /* bytes of the one that is being sent */
    tr_request request;
    uint8_t *answer; /* the begin of one, up to answer_bytes */
    size_t answer_bytes, answer_room;
} trip;

enum {
    ANSWER_HEAD = sizeof(tr_answer) + sizeof(tr_mutated),
    PATIENCE_NS = 30 * 1000 * 1000, /* with backends whose word is not needed, at least */
};

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void tr_courier_attach(tr_courier *courier, int socket, const tr_welcome *told) {
    tr_courier_detach(courier);
    *courier = (tr_courier){socket, told->instance, told->config_id, told->request_bytes_max};
}

void tr_courier_detach(tr_courier *courier) {
    if (courier->socket >= 0) close(courier->socket);
    courier->socket = -1;
}

/* The next parcel of this trip's backend from `at` on, or `count`. */
static size_t next_parcel(const tr_parcel *parcels, size_t count, size_t at, uint32_t backend) {
    while (at < count && (parcels[at].backend != backend || parcels[at].state != TR_PARCEL_WAITS)) at++;
    return at;
}

static void load(trip *trip, const tr_parcel *parcel) {
    trip->request = (tr_request){
        .bytes = (uint32_t)(sizeof(tr_request) + parcel->frame.count), .kind = TR_MUTATE, .tag = trip->sending + 1,
        .instance = trip->courier->instance, .config_id = trip->courier->config_id, .items = 1,
    };
    trip->sent = 0;
}

/* It goes no further. What was not begun is unsent, what was is unknown. */
static void break_off(trip *trip, tr_parcel *parcels, size_t count, uint32_t backend) {
    for (size_t i = 0; i < count; i++) {
        if (parcels[i].backend != backend || parcels[i].state != TR_PARCEL_WAITS) continue;
        int begun = i < trip->sending || (i == trip->sending && trip->sent);
        parcels[i].state = begun ? TR_PARCEL_UNKNOWN : TR_PARCEL_UNSENT;
    }
    tr_courier_detach(trip->courier);
}

/* As far as the kernel takes it. False: the connection broke. */
static int send_on(trip *trip, const tr_parcel *parcels, size_t count, uint32_t backend) {
    while (trip->sending < count) {
        const tr_parcel *parcel = &parcels[trip->sending];
        const uint64_t head = sizeof trip->request, all = head + parcel->frame.count;
        if (!trip->sent) load(trip, parcel);
        while (trip->sent < all) {
            uint64_t past = trip->sent < head ? 0 : trip->sent - head;
            struct iovec parts[2] = {
                {(uint8_t *)&trip->request + trip->sent, trip->sent < head ? head - trip->sent : 0},
                {(uint8_t *)(uintptr_t)parcel->frame.at + past, parcel->frame.count - past},
            };
            struct msghdr message = {.msg_iov = trip->sent < head ? parts : parts + 1,
                                     .msg_iovlen = trip->sent < head ? 2 : 1};
            ssize_t sent = sendmsg(trip->courier->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 1;
            if (sent < 0) return 0;
            trip->sent += (uint64_t)sent;
        }
        trip->sending = next_parcel(parcels, count, trip->sending + 1, backend);
        trip->sent = 0;
    }
    return 1;
}

/* One whole answer. False: this is none of ours. */
static int take_answer(trip *trip, tr_parcel *parcel, const uint8_t *frame) {
    tr_answer answer;
    tr_mutated item;
    memcpy(&answer, frame, sizeof answer);
    if (answer.kind != TR_MUTATE || answer.tag != trip->answered + 1 || answer.first) return 0;
    if (answer.status == TR_CHANGED_HANDS) {
        parcel->state = TR_PARCEL_MOVED;
        return answer.items == 0 && answer.bytes == sizeof answer;
    }
    if (answer.status != TR_ANSWERED || answer.items != 1 || answer.bytes < ANSWER_HEAD) return 0;
    memcpy(&item, frame + sizeof answer, sizeof item);
    if (item.zero || item.status > TR_MUTATE_SHUT || answer.bytes != ANSWER_HEAD + tr_padded(item.data_bytes)) return 0;
    if (item.status == TR_MUTATED && item.data_bytes != parcel->outcomes_count) return 0;
    uint64_t count = item.data_bytes < parcel->outcomes_room ? item.data_bytes : parcel->outcomes_room;
    memcpy(parcel->outcomes, frame + ANSWER_HEAD, count);
    parcel->outcomes_count = count;
    parcel->floor = item.floor;
    parcel->state = item.status == TR_MUTATED       ? TR_PARCEL_TAKEN
                    : item.status == TR_MUTATE_WRONG ? TR_PARCEL_WRONG
                                                     : TR_PARCEL_SHUT;
    return 1;
}

/* All that is there. False: the connection broke, or speaks nonsense. */
static int receive_on(trip *trip, tr_parcel *parcels, size_t count, uint32_t backend) {
    while (trip->answered < count) {
        ssize_t got = recv(trip->courier->socket, trip->answer + trip->answer_bytes,
                           trip->answer_room - trip->answer_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 1;
        if (got <= 0) return 0;
        trip->answer_bytes += (size_t)got;
        size_t at = 0;
        while (trip->answer_bytes - at >= sizeof(tr_answer) && trip->answered < count) {
            uint32_t bytes;
            memcpy(&bytes, trip->answer + at, sizeof bytes);
            if (bytes < sizeof(tr_answer) || bytes > trip->answer_room) return 0;
            if (trip->answer_bytes - at < bytes) break;
            if (trip->answered >= trip->sending && !(trip->answered == trip->sending && trip->sent)) return 0;
            if (!take_answer(trip, &parcels[trip->answered], trip->answer + at)) return 0;
            at += bytes;
            trip->answered = next_parcel(parcels, count, trip->answered + 1, backend);
        }
        memmove(trip->answer, trip->answer + at, trip->answer_bytes - at);
        trip->answer_bytes -= at;
    }
    return trip->answer_bytes == 0;
}

/* Where one backend's trip begins. False: there is nothing to send, or nobody to send it to. */
static int set_out(trip *trip, tr_courier *courier, tr_parcel *parcels, size_t count, uint32_t backend) {
    *trip = (struct trip){.courier = courier, .answer_room = ANSWER_HEAD};
    for (size_t i = 0; i < count; i++) {
        tr_parcel *parcel = &parcels[i];
        if (parcel->backend != backend || parcel->state != TR_PARCEL_WAITS) continue;
        if (courier->socket < 0 || sizeof(tr_request) + parcel->frame.count > courier->request_bytes_max)
            parcel->state = TR_PARCEL_UNSENT;
        uint64_t answer = ANSWER_HEAD + tr_padded(parcel->outcomes_room);
        if (answer > trip->answer_room) trip->answer_room = answer;
    }
    trip->sending = trip->answered = next_parcel(parcels, count, 0, backend);
    if (trip->sending == count) return 0;
    trip->answer = malloc(trip->answer_room);
    if (trip->answer) return 1;
    break_off(trip, parcels, count, backend);
    return 0;
}

/* How many backends have parcels that they surely or perhaps did not get. */
static uint32_t without(const tr_parcel *parcels, size_t count, uint32_t backends) {
    uint32_t found = 0;
    for (uint32_t b = 0; b < backends; b++) {
        size_t i = 0;
        while (i < count && (parcels[i].backend != b || parcels[i].state <= TR_PARCEL_WRONG)) i++;
        found += i < count;
    }
    return found;
}

void tr_couriers_deliver(tr_courier *couriers, uint32_t backends, tr_parcel *parcels, size_t count, uint32_t spare,
                         uint64_t deadline_ns) {
    const uint64_t began_ns = monotonic_ns();
    int hurried = 0;
    trip *trips = calloc(backends, sizeof *trips);
    struct pollfd *polled = calloc(backends, sizeof *polled);
    uint32_t *which = calloc(backends, sizeof *which), under_way = 0;
    for (uint32_t b = 0; trips && polled && which && b < backends; b++)
        if (set_out(&trips[b], &couriers[b], parcels, count, b)) which[under_way++] = b;
    while (under_way) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < under_way; i++) {
            uint32_t b = which[i];
            trip *trip = &trips[b];
            if (!send_on(trip, parcels, count, b) || !receive_on(trip, parcels, count, b))
                break_off(trip, parcels, count, b);
            else if (trip->answered < count) {
                polled[left] = (struct pollfd){.fd = trip->courier->socket,
                                               .events = POLLIN | (trip->sending < count ? POLLOUT : 0)};
                which[left++] = b;
            }
        }
        under_way = left;
        uint64_t now = monotonic_ns();
        /* Whoever did not get theirs is one of those that can be spared. */
        if (!hurried && under_way && under_way + without(parcels, count, backends) <= spare) {
            uint64_t took = now - began_ns, patience = 3 * took > PATIENCE_NS ? 3 * took : PATIENCE_NS;
            if (now + patience < deadline_ns) deadline_ns = now + patience;
            hurried = 1;
        }
        if (now < deadline_ns) {
            struct timespec rest = {.tv_sec = (time_t)((deadline_ns - now) / 1000000000u),
                                    .tv_nsec = (long)((deadline_ns - now) % 1000000000u)};
            if (under_way) (void)ppoll(polled, under_way, &rest, NULL);
            continue;
        }
        while (under_way) {
            uint32_t b = which[--under_way];
            break_off(&trips[b], parcels, count, b);
        }
    }
    for (uint32_t b = 0; trips && b < backends; b++) free(trips[b].answer);
    for (size_t i = 0; i < count; i++)
        if (parcels[i].state == TR_PARCEL_WAITS) parcels[i].state = TR_PARCEL_UNSENT; /* no memory, or no such backend */
    free(trips);
    free(polled);
    free(which);
}
