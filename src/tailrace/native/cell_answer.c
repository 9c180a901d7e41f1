#define _GNU_SOURCE
#include "cell_answer.h"

#include <errno.h>
#include <stdio.h>

#include "cell_sum.h"

enum {
    GROUP = 16,        /* items that are found before the first of them is copied, so that memory is on its way */
    PREFETCHED = 1024, /* bytes of an entry at most; the processor follows a longer run by itself */
    RENEWALS = 8,      /* for the sake of one item */
    RENEW_PAUSE_MS = 10,
};

_Static_assert(TR_ANSWER_ROOM < TR_ANSWER_BYTES_MOST / 2, "one item leaves room for others");

int64_t tr_request_measure(const uint8_t *bytes, size_t count, uint32_t bytes_max) {
    tr_request request;
    if (count < sizeof request) return 0;
    memcpy(&request, bytes, sizeof request);
    uint64_t item = tr_item_bytes(request.kind);
    if (request.bytes < sizeof request || request.bytes > bytes_max || request.kind > TR_WAIT) return -1;
    if (request.zero || (request.kind == TR_WAIT ? request.wait_ms > TR_WAIT_MS_MOST : request.wait_ms != 0)) return -1;
    if ((request.kind != TR_PING) != (request.items != 0)) return -1;
    if (request.kind == TR_MUTATE ? request.items != 1 : request.bytes != sizeof request + item * request.items) return -1;
    return count < request.bytes ? 0 : (int64_t)request.bytes;
}

/* ---- the outbox */

static void lend(tr_outbox *out, size_t begin, const tr_word *from, size_t bytes) {
    out->lents[out->lents_count++] = (tr_lent){.begin = begin, .bytes = bytes, .from = from};
}

/* What is behind this place does not count. */
static void take_back(tr_outbox *out, size_t used) {
    out->used = used;
    while (out->lents_count && out->lents[out->lents_count - 1].begin >= used) out->lents_count--;
}

/* The memory that was lent goes away: from here on everything lies in its place. */
static void bring_home(tr_outbox *out) {
    for (uint32_t i = 0; i < out->lents_count; i++)
        tr_copy_out(out->at + out->lents[i].begin, out->lents[i].from, out->lents[i].bytes);
    out->lents_count = 0;
}

size_t tr_outbox_pieces(const tr_outbox *out, size_t from, size_t to, struct iovec pieces[TR_PIECES_MAX]) {
    size_t count = 0, at = from;
    for (uint32_t i = 0; i < out->lents_count && out->lents[i].begin < to; i++) {
        const tr_lent *lent = &out->lents[i];
        if (lent->begin < from) continue;
        if (lent->begin > at) pieces[count++] = (struct iovec){out->at + at, lent->begin - at};
        pieces[count++] = (struct iovec){(void *)lent->from, lent->bytes};
        at = lent->begin + lent->bytes;
    }
    if (to > at) pieces[count++] = (struct iovec){out->at + at, to - at};
    return count;
}

void tr_outbox_copy(const tr_outbox *out, size_t skipped, uint8_t *to) {
    size_t at = skipped; /* all before it is copied, or skipped */
    for (uint32_t i = 0; i < out->lents_count; i++) {
        const tr_lent *lent = &out->lents[i];
        const size_t end = lent->begin + lent->bytes;
        if (end <= at) continue;
        if (lent->begin > at) {
            memcpy(to + (at - skipped), out->at + at, lent->begin - at);
            at = lent->begin;
        }
        /* Shared memory is read in words of its own: of the first one a part may be sent already. */
        size_t inside = at - lent->begin, odd = inside % 8;
        if (odd) {
            uint8_t word[8];
            const size_t bytes = end - at < 8 - odd ? end - at : 8 - odd;
            tr_words_read(word, lent->from + inside / 8, sizeof word);
            memcpy(to + (at - skipped), word + odd, bytes);
            at += bytes;
            inside += bytes;
        }
        if (end > at) tr_copy_out(to + (at - skipped), lent->from + inside / 8, end - at);
        at = end;
    }
    if (out->used > at) memcpy(to + (at - skipped), out->at + at, out->used - at);
}

/* ---- the cell behind */

/* True: another mapping than before. */
static int renew(tr_source *source) {
    char why[TR_WHY_BYTES];
    tr_cell_head before = source->view.head;
    if (source->now_ms < source->renew_ms) return 0;
    if (source->lent_to) bring_home(source->lent_to);
    if (tr_view_renew(&source->view, NULL, 0, why)) {
        /* The next backend may be about to start. Looking for it at every item would cost those who still wait. */
        source->renew_ms = source->now_ms + RENEW_PAUSE_MS;
        source->failures++;
        return 0;
    }
    source->epoch++;
    const tr_cell_head *head = &source->view.head;
    if (before.instance == head->instance && before.generation == head->generation && before.config_id == head->config_id) {
        /* Revoked, but the head still names it: whoever revoked it has not come to the head yet. */
        source->renew_ms = source->now_ms + RENEW_PAUSE_MS;
        return 0;
    }
    source->renewals++;
    return 1;
}

static tr_probe_state find(tr_source *source, tr_key_hash hash, uint32_t now_s, tr_index_entry *entry, tr_sight *sight) {
    tr_probe_state state = tr_view_find(&source->view, hash, now_s, entry, sight);
    for (int tries = 0; state == TR_PROBE_REVOKED && tries < RENEWALS && renew(source); tries++) {
        *sight = (tr_sight){0};
        state = tr_view_find(&source->view, hash, now_s, entry, sight);
    }
    return state;
}

void tr_source_refresh(tr_source *source) {
    tr_index_entry entry;
    tr_sight sight = {0};
    find(source, (tr_key_hash){0, 0}, 0, &entry, &sight); /* whatever it finds: every bucket tells if it is revoked */
}

static int same_hands(const tr_source *source, const tr_request *request) {
    return source->view.head.instance == request->instance && source->view.head.config_id == request->config_id;
}

static void prefetch_bucket(const tr_source *source, const uint8_t *hash_at) {
    tr_key_hash hash;
    memcpy(&hash, hash_at, sizeof hash);
    const uint8_t *bucket = (const uint8_t *)source->view.index +
                            tr_bucket_of(hash, source->view.head.buckets) * sizeof(tr_bucket);
    for (size_t line = 0; line < sizeof(tr_bucket); line += 64) __builtin_prefetch(bucket + line);
}

static void prefetch_entry(const tr_source *source, const tr_index_entry *entry) {
    uint32_t bytes = entry->size < PREFETCHED ? entry->size : PREFETCHED;
    for (uint32_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const uint8_t *)source->view.data + entry->offset + line);
}

/* ---- answers */

typedef struct {
    tr_source *source;
    tr_request request;
    const uint8_t *items; /* of the request, at no particular alignment */
    tr_outbox *out;
    size_t begin;         /* of this answer in the outbox */
    uint32_t first, next;
} part;

/* The header comes last, when it is known what follows it. */
static void finish(part *part, tr_answer_status status) {
    const tr_cell_head *head = &part->source->view.head;
    if (status != TR_ANSWERED) { /* nothing of it counts */
        take_back(part->out, part->begin + sizeof(tr_answer));
        part->next = part->first;
    }
    tr_answer answer = {
        .bytes = (uint32_t)(part->out->used - part->begin), .kind = part->request.kind, .status = status,
        .tag = part->request.tag, .instance = head->instance, .config_id = head->config_id,
        .generation = head->generation, .buckets = head->buckets, .reserved = head->reserved,
        .first = part->first, .items = part->next - part->first,
    };
    memcpy(part->out->at + part->begin, &answer, sizeof answer);
}

static int has_room(const part *part, size_t bytes) { return part->out->room - part->out->used >= bytes; }

/* Behind an item's `fixed` bytes its data was put already: zeros up to the next item. */
static void close_item(part *part, const void *item, size_t fixed, uint32_t data_bytes) {
    uint8_t *at = part->out->at + part->out->used;
    uint64_t padded = tr_padded(data_bytes);
    memcpy(at, item, fixed);
    memset(at + fixed + data_bytes, 0, padded - data_bytes);
    part->out->used += fixed + padded;
    part->next++;
}

typedef struct {
    tr_key_hash hash;
    tr_index_entry entry;
    tr_sight sight;
    tr_probe_state state;
} finding;

static void look(part *part, finding *finding) {
    finding->state = find(part->source, finding->hash, part->request.now_s, &finding->entry, &finding->sight);
}

/* Bring a data entry that was just found behind an item's `fixed` bytes: a large one is lent, not copied. False: it
 * changed meanwhile. */
static int bring_entry(part *part, size_t fixed, tr_key_hash hash, const tr_index_entry *entry, tr_sight *sight) {
    tr_outbox *out = part->out;
    tr_view *view = &part->source->view;
    if (entry->size < TR_LENT_LEAST || out->lents_count == TR_LENT_MAX)
        return tr_view_copy(view, hash, entry, sight, out->at + out->used + fixed);
    lend(out, out->used + fixed, view->data + entry->offset / 8, entry->size);
    return 1;
}

/* False: no room for it here, so it begins the next answer. */
static int put_scanned(part *part, finding *finding) {
    uint32_t data_bytes = 0;
    while (finding->state == TR_PROBE_FOUND && finding->entry.size <= part->request.data_bytes_max) {
        if (!has_room(part, sizeof(tr_scanned) + tr_padded(finding->entry.size))) {
            if (part->next > part->first) return 0;
            break; /* larger than any entry: whoever wants it may find out why */
        }
        if (bring_entry(part, sizeof(tr_scanned), finding->hash, &finding->entry, &finding->sight)) {
            data_bytes = finding->entry.size;
            part->source->sent++;
            break;
        }
        look(part, finding);
    }
    tr_scanned item = {.state = (uint16_t)finding->state, .data_bytes = data_bytes};
    if (finding->state == TR_PROBE_FOUND) {
        item.version = finding->entry.version;
        item.offset = finding->entry.offset;
        item.size = finding->entry.size;
        item.expiry_s = finding->entry.expiry_s;
        part->source->found++;
    }
    part->source->scanned++;
    close_item(part, &item, sizeof item, data_bytes);
    return 1;
}

/* An answer has at least one item, and more until it is large enough. */
static int goes_on(const part *part, size_t enough) {
    return part->next < part->request.items && (part->next == part->first || part->out->used < enough);
}

static void find_group(part *part, finding *group, uint32_t count) {
    const size_t item = tr_item_bytes(part->request.kind); /* a hash, and what else there may be behind it */
    const uint8_t *hashes = part->items + part->next * item;
    for (uint32_t i = 0; i < count; i++) prefetch_bucket(part->source, hashes + i * item);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&group[i].hash, hashes + i * item, sizeof(tr_key_hash));
        group[i].sight = (tr_sight){0};
        look(part, &group[i]);
        if (group[i].state == TR_PROBE_FOUND && group[i].entry.size <= part->request.data_bytes_max)
            prefetch_entry(part->source, &group[i].entry);
    }
}

static void scan(part *part, size_t enough) {
    finding group[GROUP];
    while (goes_on(part, enough) && same_hands(part->source, &part->request)) {
        uint32_t left = part->request.items - part->next, count = left < GROUP ? left : GROUP;
        uint64_t epoch = part->source->epoch; /* what was found in an index that is gone since is looked for again */
        find_group(part, group, count);
        for (uint32_t i = 0; i < count && goes_on(part, enough) && epoch == part->source->epoch; i++)
            if (!put_scanned(part, &group[i])) return;
    }
}

/* Bounds of a region of `bytes`, in whole words, and of what is told at once. */
static int within(const tr_range *range, uint64_t bytes) {
    return range->size && range->size <= TR_READ_BYTES_MAX && range->offset % 8 == 0 && range->offset < bytes &&
           tr_padded(range->size) <= bytes - range->offset;
}

static tr_read_status copy_index(const tr_source *source, const tr_range *range, uint8_t *to) {
    const tr_view *view = &source->view;
    if (range->generation != view->head.generation) return TR_READ_STALE;
    if (!within(range, view->head.buckets * sizeof(tr_bucket))) return TR_READ_OUTSIDE;
    tr_words_read(to, view->index + range->offset / 8, range->size);
    return TR_READ_DONE;
}

/* Not any bytes, but an entry that the index names while they are copied. Others could prove nothing, and touching the
 * holes of the data would fill them with memory. */
static tr_read_status bring_data(part *part, const tr_range *range) {
    tr_source *source = part->source;
    tr_index_entry entry;
    tr_sight sight = {0};
    if (range->generation != source->view.head.instance) return TR_READ_STALE;
    if (!within(range, source->view.head.reserved)) return TR_READ_OUTSIDE;
    for (;;) {
        tr_probe_state state = find(source, range->hash, 0, &entry, &sight);
        if (range->generation != source->view.head.instance || state == TR_PROBE_REVOKED) return TR_READ_STALE;
        if (state != TR_PROBE_FOUND || entry.offset != range->offset || entry.size != range->size) return TR_READ_CHANGED;
        if (bring_entry(part, sizeof(tr_fetched), range->hash, &entry, &sight)) return TR_READ_DONE;
    }
}

static void read_ranges(part *part, size_t enough) {
    tr_source_refresh(part->source);
    while (goes_on(part, enough) && same_hands(part->source, &part->request)) {
        tr_range range;
        memcpy(&range, part->items + (size_t)part->next * sizeof range, sizeof range);
        /* Sizes beyond the bound are refused below; no more than the bound needs room. */
        uint32_t size = range.size <= TR_READ_BYTES_MAX ? range.size : 0;
        if (!has_room(part, sizeof(tr_fetched) + tr_padded(size)) && part->next > part->first) return;
        uint8_t *to = part->out->at + part->out->used + sizeof(tr_fetched);
        tr_read_status status = range.region == TR_REGION_INDEX  ? copy_index(part->source, &range, to)
                                : range.region == TR_REGION_DATA ? bring_data(part, &range)
                                                                 : TR_READ_OUTSIDE;
        tr_fetched item = {.status = status, .data_bytes = status == TR_READ_DONE ? range.size : 0};
        part->source->read += status == TR_READ_DONE;
        close_item(part, &item, sizeof item, item.data_bytes);
    }
}

/* The frame lies where the request was read to: at no particular alignment, which nobody minds. */
static void mutate(part *part) {
    const tr_mutator *mutator = &part->source->mutator;
    tr_slice frame = {part->items, part->request.bytes - sizeof(tr_request)};
    uint8_t *data = part->out->at + part->out->used + sizeof(tr_mutated);
    uint64_t room = part->out->room - part->out->used - sizeof(tr_mutated) - 8, count = 0;
    char why[TR_WHY_BYTES] = "no mutations are taken here";
    tr_mutated item = {0};
    int error = mutator->apply ? mutator->apply(mutator->taker, frame, data, room, &count, &item.floor, why) : ESHUTDOWN;
    item.status = error == EINVAL ? TR_MUTATE_WRONG : error ? TR_MUTATE_SHUT : TR_MUTATED;
    if (error) {
        count = strnlen(why, sizeof why);
        memcpy(data, why, count);
    }
    item.data_bytes = (uint32_t)count;
    part->source->mutated += error ? 0 : count;
    close_item(part, &item, sizeof item, item.data_bytes);
}

uint32_t tr_request_wait_ms(const uint8_t *bytes) {
    tr_request request;
    memcpy(&request, bytes, sizeof request);
    return request.wait_ms;
}

int tr_request_is_due(tr_source *source, const uint8_t *bytes) {
    tr_request request;
    memcpy(&request, bytes, sizeof request);
    for (uint32_t i = 0; i < request.items && same_hands(source, &request); i++) {
        tr_awaited awaited;
        tr_index_entry entry;
        tr_sight sight = {0};
        memcpy(&awaited, bytes + sizeof request + i * sizeof awaited, sizeof awaited);
        const tr_probe_state state = find(source, awaited.hash, request.now_s, &entry, &sight);
        const tr_version there = state == TR_PROBE_FOUND ? entry.version : (tr_version){0};
        if (state == TR_PROBE_REVOKED || tr_version_compare(there, awaited.version)) return 1;
    }
    return !same_hands(source, &request);
}

int tr_request_answer(tr_source *source, const uint8_t *request, uint32_t *next, tr_outbox *out, size_t enough) {
    part part = {.source = source, .items = request + sizeof(tr_request), .out = out, .begin = out->used,
                 .first = *next, .next = *next};
    memcpy(&part.request, request, sizeof part.request);
    out->used += sizeof(tr_answer);
    if (!same_hands(source, &part.request)) tr_source_refresh(source); /* perhaps the link knows it before we do */
    if (same_hands(source, &part.request)) {
        if (part.request.kind == TR_SCAN || part.request.kind == TR_WAIT) scan(&part, enough);
        if (part.request.kind == TR_READ) read_ranges(&part, enough);
        if (part.request.kind == TR_MUTATE) mutate(&part);
        if (part.request.kind == TR_PING) tr_source_refresh(source);
    }
    int same = same_hands(source, &part.request);
    finish(&part, same ? TR_ANSWERED : TR_CHANGED_HANDS);
    *next = part.next;
    return !same || part.next == part.request.items;
}

void tr_request_refuse(const tr_source *source, tr_outbox *out) {
    part part = {.source = (tr_source *)source, .out = out, .begin = out->used};
    out->used += sizeof(tr_answer);
    finish(&part, TR_MALFORMED);
}
