#define _GNU_SOURCE
#include "cell_apply.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static tr_outcome apply(tr_cell *cell, const uint8_t *at, uint32_t now_s, uint64_t clock_max) {
    tr_mutation_header header = tr_mutation_at(at);
    tr_slice key = {at + TR_MUTATION_HEADER_BYTES, header.key_bytes};
    tr_slice value = {key.at + tr_padded(header.key_bytes), header.value_bytes};
    if (header.version.clock > clock_max) return TR_AHEAD;
    if (header.kind == TR_MUTATION_ERASE) return tr_cell_erase(cell, key, header.version);
    return tr_cell_set(cell, key, value, header.version, header.expiry_s, now_s,
                       header.kind == TR_MUTATION_CAS ? &header.expected : NULL);
}

void tr_frame_apply(tr_cell *cell, tr_slice frame, uint32_t now_s, uint64_t clock_max, uint8_t *outcomes,
                    tr_version *floor) {
    for (const uint8_t *at = NULL; (at = tr_frame_next(frame, at));) {
        tr_outcome outcome = apply(cell, at, now_s, clock_max);
        if (outcome == TR_STALE) {
            tr_version stood = tr_cell_floor(cell, (tr_slice){at + TR_MUTATION_HEADER_BYTES, tr_mutation_at(at).key_bytes});
            if (tr_version_compare(stood, *floor) > 0) *floor = stood;
        }
        *outcomes++ = (uint8_t)outcome;
    }
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
    *count = (uint64_t)mutations;
    return 0;
}
