#include "cell_mutation.h"

#include <inttypes.h>
#include <stdio.h>

uint8_t *tr_mutation_write(uint8_t *to, const tr_mutation_header *header, const void *key, const void *value) {
    memcpy(to, header, sizeof *header);
    to += sizeof *header;
    const uint64_t key_room = tr_padded(header->key_bytes), value_room = tr_padded(header->value_bytes);
    if (header->key_bytes) memcpy(to, key, header->key_bytes);
    memset(to + header->key_bytes, 0, key_room - header->key_bytes);
    to += key_room;
    if (header->value_bytes) memcpy(to, value, header->value_bytes);
    memset(to + header->value_bytes, 0, value_room - header->value_bytes);
    return to + value_room;
}

static uint64_t bytes_at(const uint8_t *at) {
    tr_mutation_header header = tr_mutation_at(at);
    return tr_mutation_bytes(header.key_bytes, header.value_bytes);
}

static int64_t wrong(char *why, const char *what, uint64_t seen) {
    snprintf(why, TR_WHY_BYTES, "%s (%" PRIu64 ")", what, seen);
    return -1;
}

int64_t tr_frame_check(tr_slice frame, char *why) {
    tr_frame_header head;
    if (frame.count < sizeof head) return wrong(why, "a frame shorter than its header", frame.count);
    memcpy(&head, frame.at, sizeof head);
    if (head.magic != TR_FRAME_MAGIC) return wrong(why, "not a frame of mutations", head.magic);
    if (head.layout != TR_FRAME_LAYOUT) return wrong(why, "a frame of another layout version", head.layout);
    if (head.count > TR_FRAME_COUNT_MAX) return wrong(why, "too many mutations in one frame", head.count);
    uint64_t at = sizeof head;
    for (uint64_t i = 0; i < head.count; i++) {
        if (frame.count - at < TR_MUTATION_HEADER_BYTES) return wrong(why, "a frame that ends within a mutation", i);
        tr_mutation_header header = tr_mutation_at(frame.at + at);
        if (header.kind < TR_MUTATION_SET || header.kind > TR_MUTATION_ERASE)
            return wrong(why, "a mutation of no known kind", header.kind);
        if (header.kind == TR_MUTATION_ERASE && header.value_bytes)
            return wrong(why, "an erase with a value", header.value_bytes);
        uint64_t bytes = tr_mutation_bytes(header.key_bytes, header.value_bytes); /* of 32-bit sizes: no overflow */
        if (bytes > frame.count - at) return wrong(why, "a mutation larger than the rest of its frame", bytes);
        at += bytes;
    }
    if (at != frame.count) return wrong(why, "bytes behind the last mutation", frame.count - at);
    return (int64_t)head.count;
}

const uint8_t *tr_frame_next(tr_slice frame, const uint8_t *at) {
    const uint8_t *next = at ? at + bytes_at(at) : frame.at + TR_FRAME_HEADER_BYTES;
    return next < frame.at + frame.count ? next : NULL;
}
