/* Brings frames of mutations to the engines of several backends at once, and their outcomes back.
 *
 * A parcel is one frame for one backend. Whatever happens, in the end each parcel says what is known of it: that it was
 * taken, that it was not, or that nobody knows. A connection with parcels of which nobody knows is closed, so that no
 * later answer is taken for another's.
 */
#ifndef TAILRACE_CELL_COURIER_H
#define TAILRACE_CELL_COURIER_H

#include "cell_frame.h"

typedef enum {
    TR_PARCEL_WAITS = 0,
    TR_PARCEL_TAKEN = 1,   /* outcomes and floor are there */
    TR_PARCEL_WRONG = 2,   /* the frame is wrong, and `outcomes` has the words; nothing was changed */
    TR_PARCEL_SHUT = 3,    /* the backend takes none; nothing was changed */
    TR_PARCEL_MOVED = 4,   /* the backend is another instance or configuration by now; nothing was changed */
    TR_PARCEL_UNSENT = 5,  /* no connection, or it broke before this one; nothing was changed */
    TR_PARCEL_UNKNOWN = 6, /* it broke, or time was over, while this one was on its way */
} tr_parcel_state;

typedef struct {
    uint32_t backend;
    tr_parcel_state state;
    tr_slice frame;
    uint8_t *outcomes; /* room for outcomes_room of them */
    uint64_t outcomes_room, outcomes_count;
    tr_version floor;
} tr_parcel;

typedef struct {
    int socket; /* -1: there is none */
    uint64_t instance, config_id;
    uint32_t request_bytes_max;
} tr_courier;

/* Take over a connection from tr_link_connect. */
void tr_courier_attach(tr_courier *courier, int socket, const tr_welcome *told);
void tr_courier_detach(tr_courier *courier);

/* Deliver all parcels, to couriers by backend, until all are decided or the deadline in nanoseconds of the monotonic
 * clock is over. Those of one backend arrive in their order. When no more than `spare` backends have not answered, they
 * are waited for a little longer than the others took, and not until the deadline. */
void tr_couriers_deliver(tr_courier *couriers, uint32_t backends, tr_parcel *parcels, size_t count, uint32_t spare,
                         uint64_t deadline_ns);

#endif
