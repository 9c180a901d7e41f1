#define _GNU_SOURCE
#include "cell_apply.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static tr_slice key_at(const uint8_t *at) {
    return (tr_slice){at + TR_MUTATION_HEADER_BYTES, tr_mutation_at(at).key_bytes};
}

static tr_outcome apply(tr_cell *cell, const uint8_t *at, uint32_t now_s) {
    tr_mutation_header header = tr_mutation_at(at);
    tr_slice key = key_at(at), value = {key.at + tr_padded(header.key_bytes), header.value_bytes};
    if (header.kind == TR_MUTATION_ERASE) return tr_cell_erase(cell, key, header.version);
    return tr_cell_set(cell, key, value, header.version, header.expiry_s, now_s,
                       header.kind == TR_MUTATION_CAS ? &header.expected : NULL);
}

static void raise_to(tr_version *floor, tr_version version) {
    if (tr_version_compare(version, *floor) > 0) *floor = version;
}

void tr_frame_apply(tr_cell *cell, tr_slice frame, uint32_t now_s, uint64_t clock_max, uint8_t *outcomes,
                    tr_version *floor) {
    tr_version fence = tr_cell_fenced(cell);
    for (const uint8_t *at = NULL; (at = tr_frame_next(frame, at)); outcomes++) {
        tr_version version = tr_mutation_at(at).version;
        if (version.clock > clock_max) {
            *outcomes = TR_AHEAD;
        } else if (tr_version_compare(version, fence) <= 0) {
            *outcomes = TR_STALE;
            raise_to(floor, fence);
        } else if ((*outcomes = (uint8_t)apply(cell, at, now_s)) == TR_STALE) {
            tr_version stood = tr_cell_floor(cell, key_at(at));
            /* Nobody else nominates this version: a repair brought it here before its own message came. */
            if (!tr_version_compare(stood, version)) *outcomes = TR_APPLIED;
            else raise_to(floor, stood);
        }
    }
}

void tr_frame_repair(tr_cell *cell, tr_slice frame, uint8_t *outcomes) {
    for (const uint8_t *at = NULL; (at = tr_frame_next(frame, at)); outcomes++) *outcomes = (uint8_t)apply(cell, at, 0);
}

void tr_gate_open(tr_gate *gate, tr_cell *cell, uint64_t clock_error_us) {
    *gate = (tr_gate){.cell = cell, .clock_error_us = clock_error_us, .hanging = PTHREAD_MUTEX_INITIALIZER};
}

void tr_gate_close(tr_gate *gate) { pthread_mutex_destroy(&gate->hanging); }

void tr_gate_ring(tr_gate *gate) {
    pthread_mutex_lock(&gate->hanging);
    for (int i = 0; i < TR_BELLS_MAX; i++)
        if (gate->bells[i].ring) gate->bells[i].ring(gate->bells[i].whose);
    pthread_mutex_unlock(&gate->hanging);
}

int tr_gate_hang(void *taker, tr_bell bell) {
    tr_gate *gate = taker;
    int error = ENOSPC;
    pthread_mutex_lock(&gate->hanging);
    for (int i = 0; i < TR_BELLS_MAX && error; i++) {
        if (gate->bells[i].ring) continue;
        gate->bells[i] = bell;
        error = 0;
    }
    pthread_mutex_unlock(&gate->hanging);
    return error;
}

void tr_gate_take_down(void *taker, const void *whose) {
    tr_gate *gate = taker;
    pthread_mutex_lock(&gate->hanging);
    for (int i = 0; i < TR_BELLS_MAX; i++)
        if (gate->bells[i].whose == whose) gate->bells[i] = (tr_bell){0};
    pthread_mutex_unlock(&gate->hanging);
}

int tr_gate_apply(void *taker, tr_slice frame, uint8_t *outcomes, uint64_t room, uint64_t *count, tr_version *floor,
                  char *why) {
    tr_gate *gate = taker;
    struct timespec now;
    int64_t mutations = tr_frame_check(frame, why);
    if (mutations < 0) return EINVAL;
    if ((uint64_t)mutations > room) {
        snprintf(why, TR_WHY_BYTES, "more mutations than an answer has room for (%lld)", (long long)mutations);
        return EINVAL;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t now_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    *floor = (tr_version){0};
    if (!tr_cell_lock(gate->cell)) return ESHUTDOWN;
    tr_frame_apply(gate->cell, frame, (uint32_t)now.tv_sec, now_us + gate->clock_error_us, outcomes, floor);
    tr_cell_unlock(gate->cell);
    tr_gate_ring(gate);
    *count = (uint64_t)mutations;
    return 0;
}
