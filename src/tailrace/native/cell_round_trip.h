/* How long a byte takes to a peer and its acknowledgement back, as the kernel has seen it. */
#ifndef TAILRACE_CELL_ROUND_TRIP_H
#define TAILRACE_CELL_ROUND_TRIP_H

#include <stdint.h>

/* The shortest so far, in microseconds; 0: it is not known, or this is no TCP. */
uint32_t tr_round_trip_us(int socket);

#endif
