/* Who may open a link: tickets that the backend hands out over an authenticated channel, each good for one link.
 *
 * A ticket waits until it is taken or expires. While its link lives it stays in the table, so that it cannot be taken
 * twice and so that revoking it ends the link. The table is bounded and shared: every call takes its lock.
 */
#ifndef TAILRACE_CELL_TICKETS_H
#define TAILRACE_CELL_TICKETS_H

#include <pthread.h>
#include <stdint.h>

#include "cell_frame.h"

#define TR_TICKET_NONE UINT32_MAX

typedef struct {
    uint64_t expires_ms;
    uint32_t state;
    uint8_t ticket[TR_TICKET_BYTES];
} tr_ticket;

typedef struct {
    pthread_mutex_t lock;
    tr_ticket *table;
    uint32_t count, waiting, waiting_max;
} tr_tickets;

/* Room for `waiting_max` tickets that nobody took yet and `taken_max` that somebody did. 0 or ENOMEM. */
int tr_tickets_open(tr_tickets *tickets, uint32_t waiting_max, uint32_t taken_max);
void tr_tickets_close(tr_tickets *tickets);

/* 0; EEXIST: taken already; ENOSPC: too many wait. A ticket that waits already gets the new time. */
int tr_tickets_admit(tr_tickets *tickets, const uint8_t *ticket, uint64_t expires_ms, uint64_t now_ms);

/* The place of a ticket that is good, and is now taken; or TR_TICKET_NONE. The time it takes says nothing of tickets. */
uint32_t tr_tickets_take(tr_tickets *tickets, const uint8_t *ticket, uint64_t now_ms);

/* The link of this place is gone. With `again`, it never was, and the ticket waits as before. */
void tr_tickets_leave(tr_tickets *tickets, uint32_t place, int again);

/* False: not known. A ticket that is taken is marked, and whoever has the link looks by tr_tickets_revoked. */
int tr_tickets_revoke(tr_tickets *tickets, const uint8_t *ticket);
int tr_tickets_revoked(tr_tickets *tickets, uint32_t place);

#endif
