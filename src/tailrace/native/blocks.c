#include "blocks.h"

#include <stdlib.h>

enum { SMALLEST = 12, CLASSES = 40 }; /* 4 KiB … 2 PiB: the top is never reached, so no class needs a check */

typedef struct free_block {
    struct free_block *next;
} free_block;

static free_block *kept[CLASSES];
static size_t kept_bytes;

void *tr_block_take(size_t count, size_t *capacity) {
    int class = 0;
    while (((size_t)1 << (SMALLEST + class)) < count)
        if (++class == CLASSES) return NULL;
    *capacity = (size_t)1 << (SMALLEST + class);
    free_block *block = kept[class];
    if (!block) return aligned_alloc(TR_BLOCK_ALIGNMENT, *capacity);
    kept[class] = block->next;
    kept_bytes -= *capacity;
    return block;
}

void tr_block_give(void *memory, size_t capacity) {
    if (!memory) return;
    if (kept_bytes + capacity > BLOCKS_KEPT) {
        free(memory);
        return;
    }
    int class = 0;
    while (((size_t)1 << (SMALLEST + class)) < capacity) class ++;
    free_block *block = memory;
    block->next = kept[class];
    kept[class] = block;
    kept_bytes += capacity;
}
