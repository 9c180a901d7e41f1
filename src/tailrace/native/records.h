/* Records: how messages lie in a data file and an index file. docs/formats/message-files.md is the contract.
 *
 *   data file      key value | key value | key value | …            no header, no separators
 *   index file     header (48 B) | entry (24 B) | entry | …
 *
 *   entry   0        8          16        20        24
 *           | end    | time_us  | shape   | sum     |
 *             u64      i64        u32       u32
 *
 *   end      position behind the message: the entry before it (or the file's base) says where it begins
 *   time_us  producer's clock; never less than the entry's before it
 *   shape    bits 0-27 key length, 28 has a key, 29 has no value (a tombstone), 30 one filler byte ends the message
 *   sum      CRC-32C of the message's bytes, the position where it begins (u64) and bytes 0-19 of the entry
 *
 * Every message takes at least one byte, so positions are unique: an empty one is given a filler byte.
 * Nothing here trusts an entry: every bound is checked before a byte of data is touched.
 */
#ifndef TAILRACE_RECORDS_H
#define TAILRACE_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "message files are little-endian and read in place; this machine is not"
#endif

enum { TR_ENTRY_BYTES = 24 };

#define TR_KEY_MAX 0x0FFFFFFFu
#define TR_HAS_KEY (1u << 28)
#define TR_NO_VALUE (1u << 29)
#define TR_FILLER (1u << 30)

typedef struct {
    uint64_t end;
    int64_t time_us;
    uint32_t shape;
    uint32_t sum;
} tr_entry;

_Static_assert(sizeof(tr_entry) == TR_ENTRY_BYTES, "entries are read in place");

/* How much room the columns of a run of messages need. */
typedef struct {
    uint64_t key_bytes, value_bytes;
    uint64_t absent_keys, absent_values;
    uint64_t fillers;
} tr_measure;

/* Where the columns go. Offsets have count + 1 places; value_out is NULL when the values already lie side by side. */
typedef struct {
    int32_t *key_offsets, *value_offsets;
    uint8_t *key_out, *value_out;
    uint8_t *key_present, *value_present; /* bitmaps, (count + 7) / 8 bytes, or NULL when nothing is absent */
    int64_t *times, *positions;
    int32_t *shards;
} tr_columns;

/* Describe a message; its bytes are key, value and filler, which the caller lays down behind each other. */
tr_entry tr_describe(const uint8_t *message, uint64_t start, uint64_t length, uint32_t key_length, uint32_t flags,
                     int64_t time_us);

/* How many entries from the first on are whole and true, given the data bytes from `start` on. `proven`: the bytes have
 * proven themselves where they come from, so their sums are not made again; bounds and shapes are checked all the same. */
size_t tr_verify(const tr_entry *entries, size_t count, uint64_t start, const uint8_t *data, uint64_t data_bytes,
                 int proven);

/* Move entries of messages that begin at `from` so that they begin at `to`, none of them older than time_us or than the
 * one before it. The messages are not looked at: a sum is linear in the bytes it is made of, so it changes by the sum of
 * how the bytes behind the message change. Sums that were wrong stay wrong. */
void tr_move_entries(tr_entry *entries, size_t count, uint64_t from, uint64_t to, int64_t time_us);

/* How many entries end at or before `limit`; how many are older than `time_us`. Both need entries in order. */
size_t tr_count_to_position(const tr_entry *entries, size_t count, uint64_t limit);
size_t tr_count_to_time(const tr_entry *entries, size_t count, int64_t time_us);

/* Both only after tr_verify has passed all `count` entries. */
tr_measure tr_measure_columns(const tr_entry *entries, size_t count, uint64_t start);
void tr_split_columns(const tr_entry *entries, size_t count, uint64_t start, const uint8_t *data, int32_t shard,
                      tr_columns columns);

#endif
