/* Sleeping until one of a few keys has another value, wherever the cell is: the engine of a backend of each key is asked,
 * and answers when there is news.
 *
 * Some bytes of a value may not count, because they change all the time and nobody waits for them. A watch belongs to
 * one thread at a time; only `stop` may come from others.
 */
#ifndef TAILRACE_CELL_WATCH_H
#define TAILRACE_CELL_WATCH_H

#include "cell_link.h"

typedef struct tr_watch tr_watch;

/* 0, ENOMEM or another errno. Key number i is asked of backend places[i]. Bytes from `skip_begin` to `skip_end` of the
 * values do not count. */
int tr_watch_open(tr_watch **opened, const tr_slice *keys, const uint32_t *places, uint32_t count, uint64_t skip_begin,
                  uint64_t skip_end);
void tr_watch_close(tr_watch *watch);

/* Take over a link to this backend. 0 or ENOMEM, and the link is closed. */
int tr_watch_attach(tr_watch *watch, uint32_t backend, tr_link *link);

enum { TR_WATCH_QUIET = 0, TR_WATCH_NEWS = 1, TR_WATCH_INTERRUPTED = 2, TR_WATCH_BROKEN = 3 };

/* Sleep, at most so long, until a key has another value than when this last returned NEWS; the first answer is news. A
 * watch that is BROKEN stays so: a link of it broke, its cell changed hands, or only a backend itself can tell of a key. */
int tr_watch_wait(tr_watch *watch, uint64_t timeout_ns);

/* The value of key number i when there was last news: `bytes` of it, until the next wait; NULL: there is none, or none
 * that is known. */
const uint8_t *tr_watch_value(const tr_watch *watch, uint32_t i, uint64_t *bytes);

/* Whoever waits returns, and nobody waits any more. */
void tr_watch_stop(tr_watch *watch);

#endif
