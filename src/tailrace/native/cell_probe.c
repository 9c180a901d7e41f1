#include "cell_probe.h"

#include "cell_sum.h"

int tr_entry_begins(const tr_probe *probe, const uint8_t *raw) {
    tr_data_header header;
    memcpy(&header, raw, sizeof header);
    return tr_header_agrees(probe, &header) &&
           (!probe->key.count || !memcmp(raw + TR_DATA_HEADER_BYTES, probe->key.at, probe->key.count));
}

int tr_entry_ends(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw, const uint8_t *value) {
    tr_data_header header;
    memcpy(&header, raw, sizeof header);
    return header.sum == tr_entry_sum(head->instance, probe->entry.offset, &header, probe->key, value);
}

int tr_entry_proves(const tr_cell_head *head, const tr_probe *probe, const uint8_t *raw) {
    return tr_entry_begins(probe, raw) && tr_entry_ends(head, probe, raw, raw + tr_probe_value_at(probe));
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
