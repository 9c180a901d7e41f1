/* A backend applies a frame of mutations, with no lock but its own. */
#ifndef TAILRACE_CELL_APPLY_H
#define TAILRACE_CELL_APPLY_H

#include <pthread.h>

#include "cell_mutation.h"
#include "cell_store.h"

enum { TR_BELLS_MAX = 4 }; /* engines of one backend */

/* Apply a client's frame that was checked, in order. `outcomes` has a byte for each, a tr_outcome. Versions with a clock
 * above `clock_max` are refused: a client whose clock runs ahead would make keys unchangeable for everyone else. `floor`
 * is raised to the largest version that stood in the way of a mutation. */
void tr_frame_apply(tr_cell *cell, tr_slice frame, uint32_t now_s, uint64_t clock_max, uint8_t *outcomes,
                    tr_version *floor);

/* Apply what another backend of the cohort stores: neither clocks nor the fence are asked. */
void tr_frame_repair(tr_cell *cell, tr_slice frame, uint8_t *outcomes);

/* Takes frames for a cell, by the system's clock, which versions may exceed by so much. */
typedef struct {
    tr_cell *cell;
    uint64_t clock_error_us;
    pthread_mutex_t hanging;
    tr_bell bells[TR_BELLS_MAX];
} tr_gate;

void tr_gate_open(tr_gate *gate, tr_cell *cell, uint64_t clock_error_us);
void tr_gate_close(tr_gate *gate);

/* What is applied elsewhere than here is told here. */
void tr_gate_ring(tr_gate *gate);

/* As tr_mutator's. */
int tr_gate_hang(void *gate, tr_bell bell);
void tr_gate_take_down(void *gate, const void *whose);
int tr_gate_apply(void *gate, tr_slice frame, uint8_t *outcomes, uint64_t room, uint64_t *count, tr_version *floor,
                  char *why);

#endif
