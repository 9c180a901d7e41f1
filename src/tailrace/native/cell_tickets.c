#define _GNU_SOURCE
#include "cell_tickets.h"

#include <errno.h>
#include <stdlib.h>

enum { FREE = 0, WAITING = 1, TAKEN = 2, REVOKED = 3 };

int tr_tickets_open(tr_tickets *tickets, uint32_t waiting_max, uint32_t taken_max) {
    *tickets = (tr_tickets){.count = waiting_max + taken_max, .waiting_max = waiting_max};
    tickets->table = calloc(tickets->count, sizeof *tickets->table);
    if (!tickets->table) return ENOMEM;
    pthread_mutex_init(&tickets->lock, NULL);
    return 0;
}

void tr_tickets_close(tr_tickets *tickets) {
    if (!tickets->table) return;
    explicit_bzero(tickets->table, tickets->count * sizeof *tickets->table);
    free(tickets->table);
    tickets->table = NULL;
    pthread_mutex_destroy(&tickets->lock);
}

static void drop(tr_tickets *tickets, tr_ticket *ticket) {
    tickets->waiting -= ticket->state == WAITING;
    explicit_bzero(ticket, sizeof *ticket);
}

/* Every ticket is compared, and every byte of it, so that time does not tell how much of a guess was right. */
static tr_ticket *find(tr_tickets *tickets, const uint8_t *sought) {
    uint64_t words[TR_TICKET_BYTES / 8], here[TR_TICKET_BYTES / 8];
    uint32_t place = TR_TICKET_NONE;
    memcpy(words, sought, sizeof words);
    for (uint32_t i = 0; i < tickets->count; i++) {
        uint64_t differs = 0;
        memcpy(here, tickets->table[i].ticket, sizeof here);
        for (int word = 0; word < TR_TICKET_BYTES / 8; word++) differs |= words[word] ^ here[word];
        differs |= tickets->table[i].state == FREE;
        uint32_t other = (uint32_t)((differs | -differs) >> 63); /* 1 if anything differs, without a branch */
        place = (place & -other) | (i & (other - 1));
    }
    return place == TR_TICKET_NONE ? NULL : &tickets->table[place];
}

/* A place for one more, after those that have expired are gone. */
static tr_ticket *make_room(tr_tickets *tickets, uint64_t now_ms) {
    tr_ticket *room = NULL;
    for (uint32_t i = 0; i < tickets->count; i++) {
        tr_ticket *ticket = &tickets->table[i];
        if (ticket->state == WAITING && now_ms >= ticket->expires_ms) drop(tickets, ticket);
        if (ticket->state == FREE && !room) room = ticket;
    }
    return tickets->waiting < tickets->waiting_max ? room : NULL;
}

int tr_tickets_admit(tr_tickets *tickets, const uint8_t *ticket, uint64_t expires_ms, uint64_t now_ms) {
    int error = 0;
    pthread_mutex_lock(&tickets->lock);
    tr_ticket *known = find(tickets, ticket);
    if (known && known->state != WAITING) {
        error = EEXIST;
    } else if (known) {
        known->expires_ms = expires_ms;
    } else if ((known = make_room(tickets, now_ms))) {
        *known = (tr_ticket){.expires_ms = expires_ms, .state = WAITING};
        memcpy(known->ticket, ticket, TR_TICKET_BYTES);
        tickets->waiting++;
    } else {
        error = ENOSPC;
    }
    pthread_mutex_unlock(&tickets->lock);
    return error;
}

uint32_t tr_tickets_take(tr_tickets *tickets, const uint8_t *ticket, uint64_t now_ms) {
    uint32_t place = TR_TICKET_NONE;
    pthread_mutex_lock(&tickets->lock);
    tr_ticket *known = find(tickets, ticket);
    if (known && known->state == WAITING && now_ms < known->expires_ms) {
        known->state = TAKEN;
        tickets->waiting--;
        place = (uint32_t)(known - tickets->table);
    }
    pthread_mutex_unlock(&tickets->lock);
    return place;
}

void tr_tickets_leave(tr_tickets *tickets, uint32_t place, int again) {
    pthread_mutex_lock(&tickets->lock);
    tr_ticket *ticket = &tickets->table[place];
    if (again && ticket->state == TAKEN) {
        ticket->state = WAITING;
        tickets->waiting++;
    } else {
        drop(tickets, ticket);
    }
    pthread_mutex_unlock(&tickets->lock);
}

int tr_tickets_revoke(tr_tickets *tickets, const uint8_t *ticket) {
    pthread_mutex_lock(&tickets->lock);
    tr_ticket *known = find(tickets, ticket);
    if (known && known->state == WAITING)
        drop(tickets, known);
    else if (known)
        known->state = REVOKED;
    pthread_mutex_unlock(&tickets->lock);
    return known != NULL;
}

int tr_tickets_revoked(tr_tickets *tickets, uint32_t place) {
    pthread_mutex_lock(&tickets->lock);
    int revoked = tickets->table[place].state == REVOKED;
    pthread_mutex_unlock(&tickets->lock);
    return revoked;
}
