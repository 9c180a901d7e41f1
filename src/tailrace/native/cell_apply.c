#include "cell_apply.h"

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
