/* One connection to one engine, used by one thread: asks for probes, and proves what comes back.
 *
 * After it is open nothing waits here. A scan is sent as far as the kernel takes it, `pump` moves the rest and takes
 * answers, and poll() on the link's descriptor tells when to pump. The engine is not trusted: an answer that breaks the
 * format, or that nobody asked for, breaks the link, and a value that does not prove itself is none.
 *
 * Values are not copied: a probe's `data` lies in the link's memory until the next tr_link_scan. That memory grows to
 * what was asked for at once, and is used again. A large value whose probe has a `place` is received there instead, and
 * proved there.
 */
#ifndef TAILRACE_CELL_LINK_H
#define TAILRACE_CELL_LINK_H

#include "cell_frame.h"
#include "cell_probe.h"

enum { TR_LINK_PENDING_MAX = 1 << 20 }; /* probes under way, forgotten or not */

typedef struct tr_link tr_link;

typedef struct {
    uint64_t requests, answers, probes, hits, misses, unproven, forgotten, changed_hands, sent_bytes, received_bytes;
    uint64_t memory_bytes; /* now, for answers */
} tr_link_stats;

/* Connect and greet within `deadline_ms` from now; waits. 0; an errno; EACCES: the ticket is not good (any more);
 * EUSERS: the engine has as many links as it takes; EPROTO: no engine, or one of another version or layout. `why`
 * (TR_WHY_BYTES) says what was tried and seen. Names are looked up without a deadline: better give a number. */
int tr_link_open(tr_link **opened, const char *host, uint16_t port, const uint8_t ticket[32], uint64_t deadline_ms,
                 char *why);
void tr_link_close(tr_link *link);

/* The same without what follows: a connected socket, and what the engine told. For those who send mutations. */
int tr_link_connect(int *connected, tr_welcome *told, const char *host, uint16_t port, const uint8_t ticket[32],
                    uint64_t deadline_ms, char *why);

/* For poll(). The descriptor stays the same; the events do not. */
int tr_link_fd(const tr_link *link);
short tr_link_events(const tr_link *link);

/* How many bytes of values to ask for at once, so that the engine has always something to send and never has to wait for
 * room: about what is on its way on a fast network. */
size_t tr_link_window(const tr_link *link);

/* The cell's instance, configuration, generation and size, as the last answer told them. */
const tr_cell_head *tr_link_head(const tr_link *link);

/* Ask for these probes; `key`, `hash` and `place` are set. They stay where they are until they are answered or forgotten.
 * Entries of at most `data_bytes_max` bytes come along with the index; 0: the index only. Where a probe has a place,
 * there is room for `place_bytes`. Ends the life of all values that came before. 0; EAGAIN: too many are under way, and none of these was asked; or an errno: the link is broken. */
int tr_link_scan(tr_link *link, tr_probe **probes, size_t count, uint32_t now_s, uint32_t data_bytes_max,
                 uint32_t place_bytes);

/* The same, but it is answered only when one of them has another version than its `entry` says, or after `wait_ms`. */
int tr_link_watch(tr_link *link, tr_probe **probes, size_t count, uint32_t now_s, uint32_t wait_ms);

/* Read the entries of probes in state FOUND. Values that came before live on. Nothing is sent before the next pump or
 * scan, so that many calls cost one system call. As tr_link_scan. */
int tr_link_read(tr_link *link, tr_probe **probes, size_t count);

/* Ask for nothing, to be noticed: an engine hangs up on links that are silent too long. As tr_link_scan. */
int tr_link_ping(tr_link *link);

/* Move what can be moved without waiting. A probe that is answered becomes
 *   FOUND      in the index, with its entry; its bytes did not come along
 *   HIT        its bytes came and proved themselves: value_bytes at `data`
 *   MISS       not in the index
 *   ASK        not in the index, or another key with its hash is: only the backend knows
 *   UNSETTLED  it changed meanwhile, or what came does not prove itself: ask again
 *   REVOKED    the cell has another instance or configuration by now, and the head says which; or the old one is gone
 *              and no new one came yet. Ask again
 * 0, or an errno: the link is broken, and whatever was not answered is DOWN. */
int tr_link_pump(tr_link *link);

/* Pump until every probe is answered, at most this long. 0, ETIMEDOUT, EINTR, or the errno of a broken link. */
int tr_link_wait(tr_link *link, uint64_t wait_ms);

/* Probes that are not answered yet. */
size_t tr_link_pending(const tr_link *link);

/* Nobody waits for them any more: their answers are dropped when they come. */
void tr_link_forget(tr_link *link);

/* What broke it, in words. */
const char *tr_link_why(const tr_link *link);

void tr_link_look(const tr_link *link, tr_link_stats *stats);

#endif
