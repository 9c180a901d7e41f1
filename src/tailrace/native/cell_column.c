#include "cell_column.h"

#include <errno.h>
#include <stdlib.h>

int tr_column_reach(tr_column *column, uint32_t count) {
    while ((uint64_t)column->made * TR_CHUNK_ROWS < count) {
        if (column->made == column->room) {
            uint32_t room = column->room ? 2 * column->room : 16;
            uint32_t **more = realloc(column->chunks, room * sizeof *more);
            if (!more) return ENOMEM;
            column->chunks = more;
            column->room = room;
        }
        uint32_t *chunk = calloc(TR_CHUNK_ROWS, column->width * sizeof *chunk);
        if (!chunk) return ENOMEM;
        column->chunks[column->made++] = chunk;
    }
    return 0;
}

void tr_column_close(tr_column *column) {
    for (uint32_t i = 0; i < column->made; i++) free(column->chunks[i]);
    free(column->chunks);
    *column = (tr_column){.width = column->width};
}

uint64_t tr_column_bytes(const tr_column *column) {
    return column->room * sizeof *column->chunks +
           (uint64_t)column->made * TR_CHUNK_ROWS * column->width * sizeof(uint32_t);
}
