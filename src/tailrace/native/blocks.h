/* Reused memory for batches and buffers.
 *
 * Touching fresh pages costs more than filling them, so blocks go back to a pool, by powers of two, instead of to the
 * system. The pool keeps at most BLOCKS_KEPT bytes. Callers hold the interpreter's lock, which is the pool's lock too.
 */
#ifndef TAILRACE_BLOCKS_H
#define TAILRACE_BLOCKS_H

#include <stddef.h>

#define BLOCKS_KEPT ((size_t)256 << 20)
#define TR_BLOCK_ALIGNMENT 4096 /* the smallest block */

/* A block of at least `count` bytes, aligned like a page; NULL without memory. Its true size goes to *capacity. */
void *tr_block_take(size_t count, size_t *capacity);
void tr_block_give(void *block, size_t capacity);

#endif
