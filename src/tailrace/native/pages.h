/* Memory that is a file's: looking at it may fail, as reading a file may.
 *
 * The kernel tells so by SIGBUS, which ends a process that is not prepared. Whoever has touched all pages of a mapping
 * here can look at them as at any memory: the kernel would have to drop them and then fail to bring them back.
 */
#ifndef TAILRACE_PAGES_H
#define TAILRACE_PAGES_H

#include <stddef.h>

/* Bring all pages of these bytes to memory, from any thread. 0; EIO: some of them cannot be had; ENOTSUP: SIGBUS is
 * somebody else's here, so nobody can tell. */
int tr_pages_touch(const void *bytes, size_t count);

#endif
