/* The sum of a data entry: where it lies and in whose memory, its header, its key, its value. docs/formats/cells.md.
 *
 * Not a CRC: this one runs at the speed of the copy that it goes along with. Eight lanes, each a running total of
 * products; a word goes into its own lane as a product with itself, and into the neighbour as it is, so that nothing
 * gets lost where a factor is zero. Every word has a key of its own, so that places matter.
 *
 * Copying and summing is one run, and what is summed is what was stored at the other side: a copy whose sum is right is
 * the one that was written, whatever memory did meanwhile.
 */
#ifndef TAILRACE_CELL_SUM_H
#define TAILRACE_CELL_SUM_H

#include "cell.h"

/* Of an entry whose parts are in ordinary memory. An entry that was moved, or left by an earlier backend, has another
 * sum than it says. */
uint32_t tr_entry_sum(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                      const void *value);

/* The same, of what arrives at `to` while the value is copied out of shared memory. `next`: what will be asked for
 * afterwards, or NULL. */
uint32_t tr_entry_sum_copied(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key, void *to,
                             const tr_word *value, const void *next);

/* The other way: the value, which nobody changes meanwhile, is copied from ordinary memory into shared memory. */
uint32_t tr_entry_sum_stored(uint64_t instance, uint64_t offset, const tr_data_header *header, tr_slice key,
                             tr_word *to, const void *value);

/* A copy alone. */
void tr_copy_out(void *to, const tr_word *from, uint64_t bytes);

/* Only for tests: do without the widest instructions that the processor has, or without any wide ones (2), from now
 * on; 0: with all of them again. */
void tr_sum_narrow(int narrower);

#endif
