#include "cell_cohort.h"

#include <errno.h>
#include <stdlib.h>

#include "cell_mutation.h"

enum { RUN = 1024 }; /* records looked at before others get their turn */

uint8_t *tr_buffer_more(tr_buffer *buffer, uint64_t bytes) {
    if (bytes > buffer->room - buffer->count) {
        uint64_t room = 2 * buffer->room + bytes;
        uint8_t *more = realloc(buffer->at, room);
        if (!more) return NULL;
        buffer->at = more;
        buffer->room = room;
    }
    uint8_t *at = buffer->at + buffer->count;
    buffer->count += bytes;
    return at;
}

void tr_buffer_free(tr_buffer *buffer) {
    free(buffer->at);
    *buffer = (tr_buffer){0};
}

/* One number for a key at a version. Summed up, so that the order of records does not matter. */
static uint64_t mixed(tr_key_hash hash, tr_version version) {
    uint64_t state = hash.low ^ version.clock * 0x9E3779B97F4A7C15u;
    state = (state ^ state >> 29) * 0xBF58476D1CE4E5B9u + (hash.high ^ (uint64_t)version.client << 32 ^ version.sequence);
    state = (state ^ state >> 32) * 0x94D049BB133111EBu;
    return state ^ state >> 31;
}

typedef int visit(void *with, const tr_item *item); /* other than 0: stop, and that is the result */

static int each(tr_cell *cell, uint32_t home, uint32_t backends, visit *at, void *with) {
    int result = 0;
    for (uint32_t number = 0, end = 1; number < end && !result;) {
        if (!tr_cell_lock(cell)) return ESHUTDOWN;
        end = tr_cell_records(cell);
        for (uint32_t stop = end - number < RUN ? end : number + RUN; number < stop && !result; number++) {
            tr_item item;
            if (tr_cell_item_at(cell, number, &item) && tr_home_of(item.hash, backends) == home)
                result = at(with, &item);
        }
        tr_cell_unlock(cell);
    }
    return result;
}

static int add_digest(void *with, const tr_item *item) {
    ((uint64_t *)with)[tr_partition_of(item->hash)] += mixed(item->hash, item->version);
    return 0;
}

int tr_cohort_digest(tr_cell *cell, uint32_t home, uint32_t backends, uint64_t digests[TR_PARTITIONS]) {
    return each(cell, home, backends, add_digest, digests);
}

typedef struct {
    tr_buffer *list;
    uint64_t partitions;
} listing;

static int add_known(void *with, const tr_item *item) {
    listing *to = with;
    if (!(to->partitions >> tr_partition_of(item->hash) & 1)) return 0;
    tr_known known = {item->hash, item->version};
    uint8_t *room = tr_buffer_more(to->list, sizeof known);
    if (!room) return ENOMEM;
    memcpy(room, &known, sizeof known);
    return 0;
}

int tr_cohort_list(tr_cell *cell, uint32_t home, uint32_t backends, uint64_t partitions, tr_buffer *list) {
    listing to = {list, partitions};
    return each(cell, home, backends, add_known, &to);
}

int tr_cohort_fetch(tr_cell *cell, const tr_key_hash *hashes, uint64_t count, uint64_t bytes_max, tr_buffer *frame,
                    uint64_t *done) {
    tr_frame_header head = {TR_FRAME_MAGIC, TR_FRAME_LAYOUT, 0};
    int error = tr_buffer_more(frame, sizeof head) ? 0 : ENOMEM;
    for (*done = 0; *done < count && !error; ++*done) {
        tr_item item;
        if (!tr_cell_lock(cell)) return ESHUTDOWN;
        if (tr_cell_item_of(cell, hashes[*done], &item)) {
            uint64_t bytes = tr_mutation_bytes(item.key.count, item.value.count);
            if (head.count && frame->count + bytes > bytes_max) {
                tr_cell_unlock(cell);
                break;
            }
            tr_mutation_header header = {.kind = TR_MUTATION_SET, .key_bytes = (uint32_t)item.key.count,
                                         .value_bytes = (uint32_t)item.value.count, .expiry_s = item.expiry_s,
                                         .version = item.version};
            uint8_t *room = tr_buffer_more(frame, bytes);
            if (room) {
                tr_mutation_write(room, &header, item.key.at, item.value.at);
                head.count++;
            } else {
                error = ENOMEM;
            }
        }
        tr_cell_unlock(cell);
    }
    if (!error) memcpy(frame->at, &head, sizeof head);
    return error;
}
