/* Numbers by record: a column of equal rows, in chunks that never move and never double.
 *
 * A cell has as many rows as it ever had records at once. Growing costs one chunk and copies nothing, so neither a
 * pause nor half an array of unused memory comes with it.
 */
#ifndef TAILRACE_CELL_COLUMN_H
#define TAILRACE_CELL_COLUMN_H

#include <stdint.h>

enum { TR_CHUNK_ROWS = 1024 };

typedef struct {
    uint32_t **chunks;
    uint32_t width; /* numbers in a row */
    uint32_t made, room; /* chunks */
} tr_column;

static inline uint32_t *tr_column_at(const tr_column *column, uint32_t row) {
    return column->chunks[row / TR_CHUNK_ROWS] + row % TR_CHUNK_ROWS * column->width;
}

/* See to it that rows below `count` are there; new ones are zeros. 0 or ENOMEM. */
int tr_column_reach(tr_column *column, uint32_t count);
void tr_column_close(tr_column *column);
uint64_t tr_column_bytes(const tr_column *column);

#endif
