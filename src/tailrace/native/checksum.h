/* CRC-32C (Castagnoli, reflected), the checksum of every record and header.
 *
 * Uses the processor's instruction where there is one and tables where there is none; both give the same sums.
 * Chainable: tr_crc32c(tr_crc32c(0, a), b) is the sum of a followed by b.
 */
#ifndef TAILRACE_CHECKSUM_H
#define TAILRACE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint32_t tr_crc32c(uint32_t sum, const void *bytes, size_t count);

/* The same by tables alone: the fallback, kept reachable so that tests can hold it against the fast one. */
uint32_t tr_crc32c_tables(uint32_t sum, const void *bytes, size_t count);

#endif
