#include "records.h"

#include <string.h>

#include "checksum.h"

#define KNOWN_SHAPE (TR_KEY_MAX | TR_HAS_KEY | TR_NO_VALUE | TR_FILLER)

static uint32_t sum_of(const tr_entry *entry, const uint8_t *message, uint64_t start) {
    uint32_t sum = tr_crc32c(0, message, entry->end - start);
    return tr_crc32c(tr_crc32c(sum, &start, sizeof start), entry, offsetof(tr_entry, sum));
}

static inline uint64_t filler_bytes(uint32_t shape) { return (shape & TR_FILLER) ? 1 : 0; }

tr_entry tr_describe(const uint8_t *message, uint64_t start, uint64_t length, uint32_t key_length, uint32_t flags,
                     int64_t time_us) {
    tr_entry entry = {.end = start + length, .time_us = time_us, .shape = key_length | flags};
    entry.sum = sum_of(&entry, message, start);
    return entry;
}

static int shape_fits(uint32_t shape, uint64_t length) {
    uint64_t key = shape & TR_KEY_MAX, filler = filler_bytes(shape);
    if (shape & ~KNOWN_SHAPE) return 0;
    if (key && !(shape & TR_HAS_KEY)) return 0;
    if (key + filler > length) return 0;
    if (filler && length != 1) return 0;                          /* only an empty message is filled */
    if ((shape & TR_NO_VALUE) && key + filler != length) return 0; /* a tombstone has no value bytes */
    return 1;
}

size_t tr_verify(const tr_entry *entries, size_t count, uint64_t start, const uint8_t *data, uint64_t data_bytes,
                 int proven) {
    uint64_t from = start;
    int64_t time_us = INT64_MIN;
    for (size_t i = 0; i < count; i++) {
        const tr_entry *entry = &entries[i];
        if (entry->end <= from || entry->end > INT64_MAX || entry->end - start > data_bytes) return i;
        uint64_t length = entry->end - from;
        if (entry->time_us < time_us || !shape_fits(entry->shape, length)) return i;
        if (!proven && entry->sum != sum_of(entry, data + (from - start), from)) return i;
        from = entry->end;
        time_us = entry->time_us;
    }
    return count;
}

size_t tr_count_to_position(const tr_entry *entries, size_t count, uint64_t limit) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (entries[middle].end <= limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t tr_count_to_time(const tr_entry *entries, size_t count, int64_t time_us) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (entries[middle].time_us < time_us)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void tr_move_entries(tr_entry *entries, size_t count, uint64_t from, uint64_t to, int64_t time_us) {
    struct {
        uint64_t start, end;
        int64_t time_us;
        uint32_t shape;
    } change = {0}; /* what the sum covers behind the message: 28 bytes, without a gap */
    enum { CHANGE_BYTES = sizeof(uint64_t) + offsetof(tr_entry, sum) };
    const uint32_t unchanged = tr_crc32c(0, &change, CHANGE_BYTES);
    uint64_t start = from;
    for (size_t i = 0; i < count; i++) {
        const tr_entry old = entries[i];
        tr_entry *entry = &entries[i];
        entry->end = old.end - from + to;
        if (entry->time_us < time_us) entry->time_us = time_us;
        time_us = entry->time_us;
        change.start = start ^ (start - from + to);
        change.end = old.end ^ entry->end;
        change.time_us = old.time_us ^ entry->time_us;
        entry->sum = old.sum ^ tr_crc32c(0, &change, CHANGE_BYTES) ^ unchanged;
        start = old.end;
    }
}

tr_measure tr_measure_columns(const tr_entry *entries, size_t count, uint64_t start) {
    tr_measure measure = {0};
    for (size_t i = 0; i < count; i++) {
        uint32_t shape = entries[i].shape;
        measure.key_bytes += shape & TR_KEY_MAX;
        measure.absent_keys += !(shape & TR_HAS_KEY);
        measure.absent_values += !!(shape & TR_NO_VALUE);
        measure.fillers += filler_bytes(shape);
    }
    measure.value_bytes = count ? entries[count - 1].end - start - measure.key_bytes - measure.fillers : 0;
    return measure;
}

void tr_split_columns(const tr_entry *entries, size_t count, uint64_t start, const uint8_t *data, int32_t shard,
                      tr_columns columns) {
    uint64_t from = start, key_at = 0, value_at = 0;
    if (columns.key_present) memset(columns.key_present, 0, (count + 7) / 8);
    if (columns.value_present) memset(columns.value_present, 0, (count + 7) / 8);
    columns.key_offsets[0] = columns.value_offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        const tr_entry *entry = &entries[i];
        const uint8_t *message = data + (from - start);
        uint64_t key = entry->shape & TR_KEY_MAX;
        uint64_t value = entry->end - from - key - filler_bytes(entry->shape);
        if (key) memcpy(columns.key_out + key_at, message, key);
        if (columns.value_out && value) memcpy(columns.value_out + value_at, message + key, value);
        key_at += key;
        value_at += value;
        columns.key_offsets[i + 1] = (int32_t)key_at;
        columns.value_offsets[i + 1] = (int32_t)value_at;
        if (columns.key_present && (entry->shape & TR_HAS_KEY)) columns.key_present[i / 8] |= (uint8_t)(1u << (i % 8));
        if (columns.value_present && !(entry->shape & TR_NO_VALUE))
            columns.value_present[i / 8] |= (uint8_t)(1u << (i % 8));
        columns.times[i] = entry->time_us;
        columns.positions[i] = (int64_t)from;
        columns.shards[i] = shard;
        from = entry->end;
    }
}
