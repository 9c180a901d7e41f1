/* What the lengths cache says of a shard, as far as whoever stands near its head needs it: of one segment.
 * docs/formats/layers.md is the contract; streams/lengths.py writes it and reads all of it.
 */
#ifndef TAILRACE_LENGTHS_H
#define TAILRACE_LENGTHS_H

#include <stddef.h>
#include <stdint.h>

enum { TR_LENGTHS_VERSION = 2, TR_LENGTHS_FILES_MAX = 255 };

/* As it lies there, little-endian. */
typedef struct __attribute__((packed)) {
    uint8_t magic[4];
    uint8_t version, count;
    uint16_t zero;
    uint32_t sum; /* CRC-32C of what follows */
    int64_t beat_us;
    uint64_t host;
} tr_lengths_head;

typedef struct __attribute__((packed)) {
    uint64_t created_us, data_base, index_base;
    uint32_t data_chunk_bytes, index_chunk_bytes;
    uint64_t data_cached, index_cached, data_durable, index_durable;
} tr_segment_lengths;

/* The lengths of the segment that was created then, and where the index of its successor begins: UINT64_MAX for the
 * newest one. False if it is not told of, or these bytes are no whole entry of this version. */
int tr_lengths_of(const void *raw, size_t count, uint64_t created_us, tr_segment_lengths *found, uint64_t *index_end);

#endif
