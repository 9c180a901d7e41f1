/* What the lengths cache says of a shard, as far as whoever stands at its head needs it: of the newest segment alone.
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

/* The newest segment's, if these bytes are a whole entry of this version; else false. */
int tr_lengths_newest(const void *raw, size_t count, tr_segment_lengths *newest);

#endif
