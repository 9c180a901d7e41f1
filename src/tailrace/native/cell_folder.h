/* The files of a cell: their names, how they come to be, and how an earlier backend's are taken away. */
#ifndef TAILRACE_CELL_FOLDER_H
#define TAILRACE_CELL_FOLDER_H

#include "cell.h"

enum { TR_INDEX_NAME_BYTES = 32 };
void tr_index_name(char *name, uint64_t generation);

/* A new file of zeros, mapped for writing. Its memory is asked for at once: later it would be a SIGBUS. 0 or an
 * errno. */
int tr_file_make(tr_word **mapped, int folder, const char *name, uint64_t bytes);

/* A head begins as head.new, which marks the folder as a cell's, and gets its name when the rest is complete. From then
 * on it changes in place. Sum and counter are filled in. 0 or an errno. */
int tr_head_make(tr_word **mapped, int folder, tr_cell_head *head);
int tr_head_publish(int folder);
void tr_head_write(tr_word *mapped, tr_cell_head *head);

/* Take from its views what an earlier backend left in the folder, and unlink it. 0 or an errno. */
int tr_folder_clear(int folder);

#endif
