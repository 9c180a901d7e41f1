#include "lengths.h"

#include <string.h>

#include "checksum.h"

_Static_assert(sizeof(tr_lengths_head) == 28 && sizeof(tr_segment_lengths) == 64, "read in place");

int tr_lengths_of(const void *raw, size_t count, uint64_t created_us, tr_segment_lengths *found, uint64_t *index_end) {
    const uint8_t *bytes = raw;
    tr_lengths_head head;
    if (count < sizeof head) return 0;
    memcpy(&head, bytes, sizeof head);
    if (memcmp(head.magic, "TRLN", 4) || head.version != TR_LENGTHS_VERSION || !head.count) return 0;
    if (count != sizeof head + head.count * sizeof *found) return 0;
    const size_t summed = offsetof(tr_lengths_head, beat_us);
    if (tr_crc32c(0, bytes + summed, count - summed) != head.sum) return 0;
    *index_end = UINT64_MAX;
    for (int number = head.count - 1; number >= 0; number--) {
        memcpy(found, bytes + sizeof head + (size_t)number * sizeof *found, sizeof *found);
        if (found->created_us == created_us) return 1;
        *index_end = found->index_base;
    }
    return 0;
}
