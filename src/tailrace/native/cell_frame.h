/* What an engine and a link say to each other over TCP. docs/formats/engine.md is the contract.
 *
 *   hello     0       8         12  16       48           link > engine, once
 *             | magic | version | 0 | ticket |
 *
 *   welcome   0       8         12       16       20         24         28  32         40
 *             | magic | version | status | layout | request# | answer#  | 0 | instance | config |
 *             48           56        64         72        engine > link, once
 *             | generation | buckets | reserved |
 *
 *   request   0       4      6   8     16         24       32      36      40      44        48
 *             | bytes | kind | 0 | tag | instance | config | items | now_s | data# | wait_ms | item | item | …
 *
 *     scan    0      16
 *             | hash |
 *     read    0        4      8            16       24     40
 *             | region | size | generation | offset | hash |
 *     mutate  one frame of mutations, docs/formats/mutations.md
 *     wait    0      16        32
 *             | hash | version |
 *
 *   answer    0       4      6        8     16         24       32           40        48         56      60      64
 *             | bytes | kind | status | tag | instance | config | generation | buckets | reserved | first | items | …
 *
 *     scanned, also the answer to a wait
 *             0       2   4       8         24       32     36       40
 *             | state | 0 | data# | version | offset | size | expiry | data entry, zeros up to an 8th byte
 *     fetched 0        2   4       8
 *             | status | 0 | data# | bytes, zeros up to an 8th byte
 *     mutated 0        2   4       8       24
 *             | status | 0 | data# | floor | outcomes, or what is wrong in words; zeros up to an 8th byte
 *
 * Everything is little-endian, and everything begins at a multiple of 8. One request is answered by one or more
 * answers with its tag, in the order of its items; requests are answered in the order they came. `first` is the number
 * of an answer's first item. Neither side trusts the other: each length is checked before it is used.
 */
#ifndef TAILRACE_CELL_FRAME_H
#define TAILRACE_CELL_FRAME_H

#include "cell.h"

#define TR_LOCAL "unix:" /* a host that begins with this is a path: a socket of this host */
#define TR_HELLO_MAGIC 0x4B4E494C4C494154u   /* "TAILLINK" */
#define TR_WELCOME_MAGIC 0x4E474E454C494154u /* "TAILENGN" */

enum {
    TR_FRAME_VERSION = 1,
    TR_TICKET_BYTES = 32,
    TR_REQUEST_BYTES_LEAST = 4096,  /* what an engine takes at least, and at most: told in the welcome */
    TR_REQUEST_BYTES_MOST = 1 << 20,
    TR_WAIT_MS_MOST = 60000,
    TR_ANSWER_BYTES_MOST = 1 << 20, /* of one answer. A request with more to tell is answered by several */
};

typedef enum {
    TR_WELCOME = 0,
    TR_NO_MAGIC = 1,   /* this is no link */
    TR_NO_VERSION = 2, /* another version of these frames; the welcome has the engine's */
    TR_NO_TICKET = 3,  /* unknown, expired, used or revoked */
    TR_NO_PLACE = 4,   /* as many links as the engine takes */
} tr_welcome_status;

typedef enum {
    TR_PING = 0, /* no items either way */
    TR_SCAN = 1,
    TR_READ = 2,
    TR_MUTATE = 3, /* one item, as large as the request allows */
    TR_WAIT = 4,   /* a scan that is answered when one of its keys has another version, or wait_ms later */
} tr_frame_kind;

typedef enum {
    TR_ANSWERED = 0,
    TR_CHANGED_HANDS = 1, /* the cell has another instance or configuration than the request names. No items from here */
    TR_MALFORMED = 2,     /* this was no request; the engine hangs up */
} tr_answer_status;

typedef enum {
    TR_REGION_INDEX = 1, /* its generation: the head's */
    TR_REGION_DATA = 2,  /* its generation: the instance. Only whole entries, as the index names them right now */
} tr_region;

typedef enum {
    TR_READ_DONE = 0,
    TR_READ_CHANGED = 1, /* the index names no such entry, or it changed while it was copied: scan again */
    TR_READ_STALE = 2,   /* the region has another generation by now */
    TR_READ_OUTSIDE = 3, /* no such region, or not within it, or too much at once, or not at a multiple of 8 */
} tr_read_status;

typedef enum {
    TR_MUTATED = 0,
    TR_MUTATE_WRONG = 1, /* the frame is wrong somewhere, and nothing was changed */
    TR_MUTATE_SHUT = 2,  /* the backend takes no mutations here, or none any more; nothing was changed */
} tr_mutate_status;

typedef struct {
    uint64_t magic;
    uint32_t version, zero;
    uint8_t ticket[TR_TICKET_BYTES];
} tr_hello;

typedef struct {
    uint64_t magic;
    uint32_t version, status, layout, request_bytes_max, answer_bytes_max, zero;
    uint64_t instance, config_id, generation, buckets, reserved;
} tr_welcome;

typedef struct {
    uint32_t bytes; /* of the whole frame */
    uint16_t kind, zero;
    uint64_t tag, instance, config_id;
    uint32_t items, now_s, data_bytes_max, wait_ms;
} tr_request;

typedef struct {
    tr_key_hash hash;
    tr_version version; /* that is known; zeros: none */
} tr_awaited;

typedef struct {
    uint32_t region, size;
    uint64_t generation, offset;
    tr_key_hash hash;
} tr_range;

typedef struct {
    uint32_t bytes; /* of the whole frame */
    uint16_t kind, status;
    uint64_t tag, instance, config_id, generation, buckets, reserved;
    uint32_t first, items;
} tr_answer;

typedef struct {
    uint16_t state, zero;
    uint32_t data_bytes; /* 0, or `size` */
    tr_version version;
    uint64_t offset;
    uint32_t size, expiry_s;
} tr_scanned;

typedef struct {
    uint16_t status, zero;
    uint32_t data_bytes;
} tr_fetched;

typedef struct {
    uint16_t status, zero;
    uint32_t data_bytes;
    tr_version floor;
} tr_mutated;

_Static_assert(sizeof(tr_mutated) == 24, "docs/formats/engine.md");
_Static_assert(sizeof(tr_hello) == 48 && sizeof(tr_welcome) == 72, "docs/formats/engine.md");
_Static_assert(sizeof(tr_request) == 48 && offsetof(tr_request, items) == 32, "docs/formats/engine.md");
_Static_assert(sizeof(tr_awaited) == 32, "docs/formats/engine.md");
_Static_assert(sizeof(tr_range) == 40 && offsetof(tr_range, hash) == 24, "docs/formats/engine.md");
_Static_assert(sizeof(tr_answer) == 64 && offsetof(tr_answer, first) == 56, "docs/formats/engine.md");
_Static_assert(sizeof(tr_scanned) == 40 && offsetof(tr_scanned, offset) == 24, "docs/formats/engine.md");
_Static_assert(sizeof(tr_fetched) == 8, "docs/formats/engine.md");

/* What one item takes in a request of this kind; a mutation's takes what is there. */
static inline uint32_t tr_item_bytes(uint16_t kind) {
    return kind == TR_SCAN   ? sizeof(tr_key_hash)
           : kind == TR_READ ? sizeof(tr_range)
           : kind == TR_WAIT ? sizeof(tr_awaited)
                             : 0;
}

#endif
