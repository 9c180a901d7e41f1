#include "lengths.h"

#include <string.h>

#include "checksum.h"

_Static_assert(sizeof(tr_lengths_head) == 28 && sizeof(tr_segment_lengths) == 64, "read in place");

int tr_lengths_newest(const void *raw, size_t count, tr_segment_lengths *newest) {
    const uint8_t *bytes = raw;
    tr_lengths_head head;
    if (count < sizeof head) return 0;
    memcpy(&head, bytes, sizeof head);
    if (memcmp(head.magic, "TRLN", 4) || head.version != TR_LENGTHS_VERSION || !head.count) return 0;
    if (count != sizeof head + head.count * sizeof *newest) return 0;
    const size_t summed = offsetof(tr_lengths_head, beat_us);
    if (tr_crc32c(0, bytes + summed, count - summed) != head.sum) return 0;
    memcpy(newest, bytes + count - sizeof *newest, sizeof *newest);
    return 1;
}
