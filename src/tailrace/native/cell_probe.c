#include "cell_probe.h"

#include "cell_sum.h"

int tr_entry_proves(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw) {
    tr_data_header header;
    memcpy(&header, raw, sizeof header);
    if (!tr_header_agrees(probe, &header)) return 0;
    if (probe->key.count && memcmp(raw + TR_DATA_HEADER_BYTES, probe->key.at, probe->key.count)) return 0;
    return header.sum == tr_entry_sum(head->instance, probe->entry.offset, &header, probe->key,
                                      raw + tr_probe_value_at(probe));
}

int tr_entry_foreign(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw) {
    tr_data_header header;
    memcpy(&header, raw, sizeof header);
    tr_slice key = {raw + TR_DATA_HEADER_BYTES, header.key_bytes};
    if (key.count == probe->key.count && (!key.count || !memcmp(key.at, probe->key.at, key.count))) return 0;
    /* Whole by its own account: what it says of itself agrees with the index, so the index meant this entry. */
    tr_probe other = {.key = key, .entry = probe->entry};
    return tr_probe_accept(&other) && tr_entry_proves(head, &other, raw);
}
