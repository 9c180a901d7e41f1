/* Stands in for blocks.c in one of the sanitized builds.
 *
 * The pool rounds every block up and hands it out again and again, so the sanitizer cannot see a write that runs past the
 * end of a block, or a read of a block that was given back. Here each block is an allocation of its own, of exactly the
 * bytes that were asked for.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>

#include "blocks.h"

void *tr_block_take(size_t count, size_t *capacity) {
    void *block = NULL;
    *capacity = count;
    return posix_memalign(&block, TR_BLOCK_ALIGNMENT, count) ? NULL : block;
}

void tr_block_give(void *block, size_t capacity) {
    (void)capacity;
    free(block);
}
