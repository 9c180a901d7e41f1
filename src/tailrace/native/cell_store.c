#define _GNU_SOURCE
#include "cell_store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "cell_folder.h"
#include "cell_index.h"
#include "cell_slab.h"
#include "cell_sum.h"
#include "cell_view.h"

#ifndef MADV_COLLAPSE /* Linux 6.1; older ones do not know it, and say so */
#define MADV_COLLAPSE 25
#endif

enum {
    WATERMARK_PERCENT = 80, /* collecting begins here, so that a burst still finds room */
    LOAD_PERCENT = 94,      /* the index grows here: two buckets of six still have a place for nearly every key */
    GROWTH_PERCENT = 120,   /* little by little, so that the places not taken are few right after it, too */
    EVICTIONS_PER_SET = 4,  /* above the watermark a set pays for itself and a little more, never for everything */
    EXPIRY_LOOKS_PER_SET = 8,
    CLASS_LOOKS = 64, /* how far to look for an old record of the right size before emptying a whole slab */
    RECORDS_MAX = 1 << 30,
};

struct tr_cell {
    pthread_mutex_t lock;
    int shut;
    int folder, file;
    tr_word *data, *head_page;
    tr_cell_head head;
    tr_cell_config config;
    tr_index index;
    tr_slabs slabs;
    tr_tombs tombs;
    tr_version fence;
    tr_recency recency;
    tr_column units; /* by record: its data entry's unit; of an unused one, the next unused */
    uint32_t records_made, unused;
    uint32_t replacing; /* the record that a set is about to replace: no loss if it is evicted for that */
    tr_spot swept;      /* the next place to look at for something expired */
    uint64_t watermark_bytes, grow_above;
    tr_cell_stats stats;
};

/* ---- data entries, read by the backend itself: nobody else writes, so plain copies are whole */

static uint32_t unit_of(const tr_cell *cell, uint32_t id) { return *tr_column_at(&cell->units, id); }

static uint64_t offset_of(const tr_cell *cell, uint32_t id) {
    return (uint64_t)unit_of(cell, id) * TR_DATA_ALIGNMENT;
}

static const uint8_t *entry_at(const tr_cell *cell, uint32_t id) {
    return (const uint8_t *)cell->data + offset_of(cell, id);
}

static tr_data_header header_of(const tr_cell *cell, uint32_t id) {
    tr_data_header header;
    memcpy(&header, entry_at(cell, id), sizeof header);
    return header;
}

static tr_version version_of(const tr_cell *cell, uint32_t id) { return header_of(cell, id).version; }

static tr_slice key_of(const tr_cell *cell, uint32_t id) {
    return (tr_slice){entry_at(cell, id) + TR_DATA_HEADER_BYTES, header_of(cell, id).key_bytes};
}

static tr_key_hash hash_of(const tr_cell *cell, uint32_t id) { return tr_key_hash_of(key_of(cell, id)); }

static void write_data(tr_cell *cell, uint64_t offset, tr_slice key, tr_slice value, tr_version version,
                       uint32_t expiry_s) {
    static const uint8_t zeros[8];
    tr_data_header header = {.key_bytes = (uint32_t)key.count, .value_bytes = (uint32_t)value.count,
                             .expiry_s = expiry_s, .version = version};
    tr_word *to = cell->data + offset / 8;
    /* The slot's former entry left the index before. Whoever sees a word written below, and fences, sees that too. */
    atomic_thread_fence(memory_order_release);
    header.sum = tr_entry_sum_stored(cell->head.instance, offset, &header, key,
                                     to + tr_entry_size(key.count, 0) / 8, value.count ? value.at : zeros);
    tr_words_write(to, &header, sizeof header);
    tr_words_write(to + TR_DATA_HEADER_BYTES / 8, key.count ? key.at : zeros, key.count);
}

/* ---- records */

static uint32_t take_record(tr_cell *cell) {
    uint32_t id = cell->unused;
    if (id != TR_NONE) {
        cell->unused = unit_of(cell, id);
        return id;
    }
    uint32_t count = cell->records_made + 1;
    if (count >= RECORDS_MAX || tr_column_reach(&cell->units, count) || tr_recency_reach(&cell->recency, count))
        return TR_NONE;
    return cell->records_made++;
}

static void give_record(tr_cell *cell, uint32_t id) {
    *tr_column_at(&cell->units, id) = cell->unused;
    cell->unused = id;
}

/* ---- places and chains */

static int same_key(const tr_cell *cell, uint32_t id, tr_slice key) {
    tr_slice held = key_of(cell, id);
    return held.count == key.count && (!key.count || !memcmp(held.at, key.at, key.count));
}

static uint32_t owner_of(const tr_cell *cell, tr_spot spot) {
    return tr_slot_owner(&cell->slabs, (uint64_t)tr_spot_read(&cell->index, spot).unit * TR_DATA_ALIGNMENT);
}

static uint32_t find(const tr_cell *cell, tr_key_hash hash, tr_slice key) {
    const tr_index *index = &cell->index;
    tr_spot spot;
    if (tr_spot_of(index, hash, &spot)) {
        uint32_t id = owner_of(cell, spot);
        if (same_key(cell, id, key)) return id;
    }
    const tr_chained *link = tr_chain_begin(index, tr_bucket_first(hash.high, index->buckets));
    for (; link; link = tr_chain_next(index, link))
        if (same_key(cell, link->id, key)) return link->id;
    return TR_NONE;
}

static void put(tr_cell *cell, tr_index *index, tr_spot spot, uint32_t id, tr_key_hash hash) {
    tr_data_header header = header_of(cell, id);
    tr_place place = {header.version, (uint32_t)hash.low, unit_of(cell, id),
                      (uint32_t)tr_entry_size(header.key_bytes, header.value_bytes), header.expiry_s};
    tr_spot_write(index, spot, hash.high, &place);
}

/* Give a record with a complete data entry a place, if its tag has none yet and one can be made. */
static int place(tr_cell *cell, tr_index *index, uint32_t id, tr_key_hash hash) {
    tr_spot spot;
    if (tr_spot_of(index, hash, &spot) || !tr_spot_make(index, hash.high, &spot)) return 0;
    put(cell, index, spot, id, hash);
    return 1;
}

/* Something left this bucket: chained keys move in, into the index first and out of the chain after. */
static void promote(tr_cell *cell, uint64_t bucket) {
    tr_index *index = &cell->index;
    const tr_chained *link = tr_chain_begin(index, bucket);
    while (link) {
        uint32_t id = link->id;
        tr_key_hash hash = hash_of(cell, id);
        tr_spot twin;
        link = tr_chain_next(index, link);
        if (tr_spot_of(index, hash, &twin)) continue;
        if (!place(cell, index, id, hash)) return;
        tr_chain_remove(index, bucket, id);
    }
}

/* Take a record out of everything but the order of recency: first out of others' sight, then out of memory. */
static void discard(tr_cell *cell, uint32_t id, tr_key_hash hash) {
    tr_index *index = &cell->index;
    uint64_t first = tr_bucket_first(hash.high, index->buckets), second = tr_bucket_second(hash.high, index->buckets);
    tr_spot spot;
    if (tr_spot_of_unit(index, hash.high, unit_of(cell, id), &spot))
        tr_spot_empty(index, spot);
    else
        tr_chain_remove(index, first, id);
    tr_slot_give(&cell->slabs, offset_of(cell, id));
    give_record(cell, id);
    cell->stats.records--;
    promote(cell, first);
    if (second != first) promote(cell, second);
}

/* Dropped without a tombstone: whatever else knows this key must not bring an older version back. */
static void expire(tr_cell *cell, uint32_t id) {
    tr_tombs_raise(&cell->tombs, version_of(cell, id));
    tr_recency_forgotten(&cell->recency, id);
    discard(cell, id, hash_of(cell, id));
    cell->stats.expired++;
}

static void evict(tr_cell *cell, uint32_t id, uint64_t *counter) {
    tr_key_hash hash = hash_of(cell, id);
    if (id == cell->replacing) { /* its successor follows at once, so nothing is lost */
        cell->replacing = TR_NONE;
        tr_recency_forgotten(&cell->recency, id);
    } else {
        tr_tombs_raise(&cell->tombs, version_of(cell, id));
        tr_recency_evicted(&cell->recency, id, hash);
        ++*counter;
    }
    discard(cell, id, hash);
}

/* Without chains a newcomer takes the place of its tag's twin, or of the least recent in its two buckets. */
static uint32_t whose_place(const tr_cell *cell, tr_key_hash hash) {
    const tr_index *index = &cell->index;
    uint64_t buckets[2] = {tr_bucket_first(hash.high, index->buckets), tr_bucket_second(hash.high, index->buckets)};
    uint32_t least = TR_NONE;
    tr_spot spot;
    if (tr_spot_of(index, hash, &spot)) return owner_of(cell, spot);
    for (int i = 0; i < 2; i++)
        for (uint32_t at = 0; at < TR_BUCKET_ENTRIES; at++) {
            uint32_t id = owner_of(cell, (tr_spot){buckets[i], at});
            if (least == TR_NONE || tr_recency_older(&cell->recency, id, least)) least = id;
        }
    return least;
}

/* A record takes over a data entry that is complete. */
static void own(tr_cell *cell, uint32_t id, uint64_t offset) {
    *tr_column_at(&cell->units, id) = (uint32_t)(offset / TR_DATA_ALIGNMENT);
    tr_slot_own(&cell->slabs, offset, id);
}

static void install_new(tr_cell *cell, uint32_t id, uint64_t offset, tr_key_hash hash) {
    tr_index *index = &cell->index;
    own(cell, id, offset);
    if (!place(cell, index, id, hash)) {
        if (cell->config.chaining) {
            tr_chain_add(index, tr_bucket_first(hash.high, index->buckets), id);
        } else {
            evict(cell, whose_place(cell, hash), &cell->stats.evicted_associativity);
            place(cell, index, id, hash);
        }
    }
    tr_recency_added(&cell->recency, id, hash);
    cell->stats.records++;
}

/* The pointer moves from the old data entry to the new one in one step, which is seen as before or after. */
static void replace(tr_cell *cell, uint32_t id, uint64_t offset, tr_key_hash hash) {
    uint64_t old = offset_of(cell, id);
    tr_spot spot;
    int placed = tr_spot_of_unit(&cell->index, hash.high, unit_of(cell, id), &spot);
    own(cell, id, offset);
    if (placed) put(cell, &cell->index, spot, id, hash);
    tr_slot_give(&cell->slabs, old);
    tr_recency_modified(&cell->recency, id);
}

/* ---- memory */

static void publish_head(tr_cell *cell) {
    cell->head.config_id = cell->index.config_id;
    cell->head.generation = cell->index.generation;
    cell->head.buckets = cell->index.buckets;
    cell->head.populated = (uint64_t)cell->slabs.populated * TR_SLAB_BYTES;
    tr_head_write(cell->head_page, &cell->head);
}

static void publish_populated(tr_cell *cell) {
    if (cell->head.populated != (uint64_t)cell->slabs.populated * TR_SLAB_BYTES) publish_head(cell);
}

static uint32_t class_held(const tr_cell *cell, uint32_t id) {
    return tr_slab_at(&cell->slabs, offset_of(cell, id))->class;
}

/* A slot, by evicting if it must be: an old record of the same class frees exactly one; otherwise the slab of the
 * first to go is emptied, and changes class. Every round evicts, so it ends. */
static int make_room(tr_cell *cell, uint64_t size, uint64_t *offset) {
    uint32_t class = tr_class_of(size);
    while (!tr_slot_take(&cell->slabs, size, offset)) {
        uint32_t first = tr_recency_next(&cell->recency, TR_NONE), id = first;
        if (first == TR_NONE) return 0;
        for (int looks = 1; looks < CLASS_LOOKS && id != TR_NONE && class_held(cell, id) != class; looks++)
            id = tr_recency_after(&cell->recency, id);
        if (id != TR_NONE && class_held(cell, id) == class) {
            evict(cell, id, &cell->stats.evicted_capacity);
            continue;
        }
        const tr_slab *slab = tr_slab_at(&cell->slabs, offset_of(cell, first));
        for (uint32_t slot = 0; (id = tr_slab_owner(slab, &slot)) != TR_NONE;)
            evict(cell, id, &cell->stats.evicted_capacity);
    }
    return 1;
}

/* The chain is looked through from its beginning after each that goes, since others may have moved into the index. */
static uint64_t sweep_chain(tr_cell *cell, uint64_t bucket, uint32_t now_s) {
    const tr_index *index = &cell->index;
    uint64_t gone = 0;
    for (const tr_chained *link = tr_chain_begin(index, bucket); link;) {
        if (tr_expired(header_of(cell, link->id).expiry_s, now_s)) {
            expire(cell, link->id);
            gone++;
            link = tr_chain_begin(index, bucket);
        } else {
            link = tr_chain_next(index, link);
        }
    }
    return gone;
}

/* Along the index, which says when its keys expire, so that nothing else is touched for those that do not. */
static uint64_t sweep_expired(tr_cell *cell, uint32_t now_s, uint64_t looks) {
    uint64_t gone = 0, visits = looks < cell->index.buckets ? looks : cell->index.buckets;
    tr_spot *at = &cell->swept;
    while (looks) {
        if (at->at == TR_BUCKET_ENTRIES) {
            gone += sweep_chain(cell, at->bucket, now_s);
            *at = (tr_spot){at->bucket + 1 < cell->index.buckets ? at->bucket + 1 : 0, 0};
            if (!visits--) break;
            continue;
        }
        tr_place place = tr_spot_read(&cell->index, *at);
        if (place.size && tr_expired(place.expiry_s, now_s)) {
            expire(cell, owner_of(cell, *at)); /* a chained key may have moved in: this place is looked at again */
            gone++;
        } else {
            at->at++;
        }
        if (place.size) looks--;
    }
    return gone;
}

/* `spared` is what somebody just set: it stays even if it alone is above the watermark. */
static uint64_t evict_to_watermark(tr_cell *cell, uint64_t evictions_max, uint32_t spared) {
    uint64_t gone = 0;
    while (gone < evictions_max && cell->slabs.used_bytes > cell->watermark_bytes && cell->stats.records > 1) {
        uint32_t id = tr_recency_next(&cell->recency, spared);
        if (id == TR_NONE) break;
        evict(cell, id, &cell->stats.evicted_capacity);
        gone++;
    }
    return gone;
}

uint64_t tr_cell_collect(tr_cell *cell, uint32_t now_s, uint64_t budget) {
    uint64_t gone = sweep_expired(cell, now_s, budget);
    gone += evict_to_watermark(cell, budget, TR_NONE);
    publish_populated(cell);
    return gone;
}

/* The kernel copies a whole page and looks for all who have it mapped, which takes milliseconds: nobody waits for that.
 * It does so under the eyes of all who read and write there, unless parts of it are on their way to somebody. */
int tr_cell_join(tr_cell *cell) {
    if (!tr_cell_lock(cell)) return 0;
    uint8_t *page = tr_slabs_to_join(&cell->slabs);
    tr_cell_unlock(cell);
    if (!page) return 0;
    if (madvise(page, TR_HUGE_BYTES, MADV_COLLAPSE)) return errno == EAGAIN; /* else there are none, or no more of them */
    if (!tr_cell_lock(cell)) return 0;
    tr_slabs_joined(&cell->slabs, page);
    tr_cell_unlock(cell);
    return 1;
}

/* ---- growing */

static int move_in(tr_cell *cell, tr_index *next, uint32_t id, tr_key_hash hash) {
    if (place(cell, next, id, hash)) return 1;
    if (tr_chain_reserve(next)) return 0;
    tr_chain_add(next, tr_bucket_first(hash.high, next->buckets), id);
    return 1;
}

/* All that is in the old index into the next one. What has a place brings all that is needed along; chained keys and
 * those that find no place are looked up in the data. */
static int move_all(tr_cell *cell, tr_index *next) {
    const tr_index *old = &cell->index;
    for (uint64_t bucket = 0; bucket < old->buckets; bucket++) {
        for (uint32_t at = 0; at < TR_BUCKET_ENTRIES; at++) {
            tr_spot from = {bucket, at}, to;
            tr_place place = tr_spot_read(old, from);
            uint64_t high = tr_spot_high(old, from);
            if (!place.size) continue;
            if (tr_spot_make(next, high, &to))
                tr_spot_write(next, to, high, &place);
            else if (!move_in(cell, next, owner_of(cell, from), hash_of(cell, owner_of(cell, from))))
                return 0;
        }
    }
    if (!old->chained) return 1;
    for (uint64_t bucket = 0; bucket < old->buckets; bucket++)
        for (const tr_chained *link = tr_chain_begin(old, bucket); link; link = tr_chain_next(old, link))
            if (!move_in(cell, next, link->id, hash_of(cell, link->id))) return 0;
    return 1;
}

/* Where chains are not wanted, what found no place in a grown index goes, as it would have for a newcomer. */
static void evict_chained(tr_cell *cell) {
    const tr_index *index = &cell->index;
    for (uint64_t bucket = 0; index->chained && bucket < index->buckets; bucket++)
        for (const tr_chained *link; (link = tr_chain_begin(index, bucket));)
            evict(cell, link->id, &cell->stats.evicted_associativity);
}

static void plan_growth(tr_cell *cell) {
    cell->grow_above = cell->index.buckets * TR_BUCKET_ENTRIES * LOAD_PERCENT / 100;
}

/* The next generation: complete before the head names it. Only then do views of the old one lose it. */
static void grow(tr_cell *cell) {
    tr_index next, old = cell->index;
    char name[TR_INDEX_NAME_BYTES];
    uint64_t buckets = old.buckets * GROWTH_PERCENT / 100 + 1;
    int made = !tr_index_make(&next, cell->folder, old.generation + 1, buckets, old.config_id);
    if (!made || !move_all(cell, &next)) {
        if (made) {
            tr_index_name(name, next.generation);
            unlinkat(cell->folder, name, 0);
            tr_index_drop(&next);
        }
        cell->stats.growths_failed++;
        cell->grow_above += cell->grow_above / 4 + 1; /* not again at the very next set */
        return;
    }
    cell->index = next;
    publish_head(cell);
    tr_index_configure(&old, TR_CELL_REVOKED);
    tr_index_name(name, old.generation);
    unlinkat(cell->folder, name, 0); /* if it fails a file too many is left, which nobody reads */
    cell->swept = (tr_spot){cell->swept.bucket * next.buckets / old.buckets, 0};
    cell->stats.growths++;
    cell->stats.moved += old.moved;
    tr_index_drop(&old);
    plan_growth(cell);
    if (!cell->config.chaining) evict_chained(cell);
}

/* ---- operations */

static tr_version floor_of(const tr_cell *cell, uint32_t id, tr_key_hash hash) {
    return id != TR_NONE ? version_of(cell, id) : tr_tombs_floor(&cell->tombs, hash);
}

tr_version tr_cell_floor(const tr_cell *cell, tr_slice key) {
    tr_key_hash hash = tr_key_hash_of(key);
    return floor_of(cell, find(cell, hash, key), hash);
}

static int matches(const tr_cell *cell, uint32_t id, uint32_t now_s, const tr_version *expected) {
    static const tr_version nothing;
    int stored = id != TR_NONE && !tr_expired(header_of(cell, id).expiry_s, now_s);
    return !tr_version_compare(*expected, stored ? version_of(cell, id) : nothing);
}

tr_outcome tr_cell_set(tr_cell *cell, tr_slice key, tr_slice value, tr_version version, uint32_t expiry_s,
                       uint32_t now_s, const tr_version *expected) {
    tr_key_hash hash = tr_key_hash_of(key);
    uint32_t id = find(cell, hash, key);
    uint64_t size, offset;
    if (expected && !matches(cell, id, now_s, expected)) return TR_MISMATCH;
    tr_version floor = floor_of(cell, id, hash);
    if (tr_version_compare(version, floor) <= 0) return TR_STALE;
    if (key.count > TR_SLAB_BYTES || value.count > TR_SLAB_BYTES) return TR_TOO_LARGE;
    if ((size = tr_entry_size(key.count, value.count)) > TR_SLAB_BYTES) return TR_TOO_LARGE;

    uint32_t fresh = id == TR_NONE ? take_record(cell) : TR_NONE;
    int able = (id != TR_NONE || fresh != TR_NONE) && !tr_chain_reserve(&cell->index);
    cell->replacing = id;
    if (!able || !make_room(cell, size, &offset)) {
        if (fresh != TR_NONE) give_record(cell, fresh);
        if (cell->replacing != id) { /* evicted for a successor that does not come: it is a loss after all */
            tr_tombs_raise(&cell->tombs, floor);
            cell->stats.evicted_capacity++;
        }
        cell->replacing = TR_NONE;
        publish_populated(cell);
        return TR_NO_ROOM;
    }
    write_data(cell, offset, key, value, version, expiry_s);
    if (id != TR_NONE && cell->replacing == id) {
        replace(cell, id, offset, hash);
    } else {
        id = fresh != TR_NONE ? fresh : take_record(cell); /* if it was evicted, the record it left is there to take */
        install_new(cell, id, offset, hash);
    }
    cell->replacing = TR_NONE;
    if (cell->slabs.used_bytes > cell->watermark_bytes) {
        sweep_expired(cell, now_s, EXPIRY_LOOKS_PER_SET);
        evict_to_watermark(cell, EVICTIONS_PER_SET, id);
    }
    if (cell->stats.records > cell->grow_above) grow(cell);
    publish_populated(cell);
    return TR_APPLIED;
}

tr_outcome tr_cell_erase(tr_cell *cell, tr_slice key, tr_version version) {
    tr_key_hash hash = tr_key_hash_of(key);
    uint32_t id = find(cell, hash, key);
    if (tr_version_compare(version, floor_of(cell, id, hash)) <= 0) return TR_STALE;
    tr_tombs_add(&cell->tombs, hash, version);
    if (id != TR_NONE) {
        tr_recency_forgotten(&cell->recency, id);
        discard(cell, id, hash);
    }
    publish_populated(cell);
    return TR_APPLIED;
}

int tr_cell_get(tr_cell *cell, tr_slice key, uint32_t now_s, tr_item *item) {
    uint32_t id = find(cell, tr_key_hash_of(key), key);
    if (id == TR_NONE || tr_expired(header_of(cell, id).expiry_s, now_s)) return 0;
    tr_recency_used(&cell->recency, id);
    return tr_cell_item_at(cell, id, item);
}

void tr_cell_touch(tr_cell *cell, tr_key_hash hash) {
    tr_spot spot;
    /* Chained keys are read through the backend, which sees it itself. */
    if (cell->config.policy == TR_LRM || !tr_spot_of(&cell->index, hash, &spot)) return;
    tr_recency_used(&cell->recency, owner_of(cell, spot));
    cell->stats.touched++;
}

void tr_cell_configure(tr_cell *cell, uint64_t config_id) {
    cell->index.config_id = config_id;
    publish_head(cell);
    tr_index_configure(&cell->index, config_id);
}

uint32_t tr_cell_records(const tr_cell *cell) { return cell->records_made; }

int tr_cell_item_at(const tr_cell *cell, uint32_t number, tr_item *item) {
    if (number >= cell->records_made || !tr_recency_has(&cell->recency, number)) return 0;
    tr_data_header header = header_of(cell, number);
    tr_slice key = key_of(cell, number);
    *item = (tr_item){key, {key.at + tr_padded(key.count), header.value_bytes}, tr_key_hash_of(key), header.version,
                      header.expiry_s};
    return 1;
}

int tr_cell_item_of(const tr_cell *cell, tr_key_hash hash, tr_item *item) {
    const tr_index *index = &cell->index;
    tr_spot spot;
    if (tr_spot_of(index, hash, &spot) && tr_cell_item_at(cell, owner_of(cell, spot), item) &&
        tr_hash_equal(item->hash, hash)) /* of which the index has only a part */
        return 1;
    const tr_chained *link = tr_chain_begin(index, tr_bucket_first(hash.high, index->buckets));
    for (; link; link = tr_chain_next(index, link))
        if (tr_cell_item_at(cell, link->id, item) && tr_hash_equal(item->hash, hash)) return 1;
    return 0;
}

void tr_cell_fence(tr_cell *cell, tr_version version) {
    if (tr_version_compare(version, cell->fence) > 0) cell->fence = version;
}

tr_version tr_cell_fenced(const tr_cell *cell) { return cell->fence; }

uint64_t tr_cell_instance(const tr_cell *cell) { return cell->head.instance; }

tr_gone tr_cell_gone_at(const tr_cell *cell, uint32_t number) { return tr_tombs_at(&cell->tombs, number); }

tr_cell_stats tr_cell_look(const tr_cell *cell) {
    tr_cell_stats stats = cell->stats;
    stats.chained = cell->index.chained;
    stats.moved += cell->index.moved;
    stats.used_bytes = cell->slabs.used_bytes;
    stats.populated_bytes = (uint64_t)cell->slabs.populated * TR_SLAB_BYTES;
    stats.joined_bytes = (uint64_t)cell->slabs.joined * TR_SLAB_BYTES;
    stats.index_bytes = (cell->index.buckets * TR_BUCKET_BYTES + TR_PAGE_BYTES - 1) / TR_PAGE_BYTES * TR_PAGE_BYTES;
    stats.heap_bytes = sizeof *cell + tr_column_bytes(&cell->units) + tr_recency_heap_bytes(&cell->recency) +
                       tr_slabs_heap_bytes(&cell->slabs) + tr_index_heap_bytes(&cell->index) +
                       tr_tombs_heap_bytes(&cell->tombs);
    stats.buckets = cell->index.buckets;
    stats.generation = cell->index.generation;
    stats.tombstones = cell->tombs.count;
    stats.summary = cell->tombs.summary;
    return stats;
}

/* ---- turns */

int tr_cell_lock(tr_cell *cell) {
    pthread_mutex_lock(&cell->lock);
    if (!cell->shut) return 1;
    pthread_mutex_unlock(&cell->lock);
    return 0;
}

int tr_cell_try_lock(tr_cell *cell) {
    if (pthread_mutex_trylock(&cell->lock)) return 0;
    if (!cell->shut) return 1;
    pthread_mutex_unlock(&cell->lock);
    return -1;
}

void tr_cell_unlock(tr_cell *cell) { pthread_mutex_unlock(&cell->lock); }

/* ---- opening and closing */

static int failed_at(int error, const char *step, char *why) {
    snprintf(why, TR_WHY_BYTES, "%s", step);
    return error;
}

static int open_data(tr_cell *cell) {
    cell->file = openat(cell->folder, "data", O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0640);
    if (cell->file < 0) return errno;
    if (ftruncate(cell->file, (off_t)cell->config.reserve_bytes)) return errno;
    void *memory = tr_data_map(cell->file, cell->config.reserve_bytes, PROT_READ | PROT_WRITE);
    if (memory == MAP_FAILED) return errno;
    cell->data = memory;
    tr_slabs_open(&cell->slabs, cell->file, memory, cell->config.reserve_bytes, cell->config.capacity_bytes);
    return 0;
}

static int open_all(tr_cell *cell, const char *folder, char *why) {
    const tr_cell_config *config = &cell->config;
    int error;
    cell->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cell->folder < 0) return failed_at(errno, "opening the folder", why);
    if (flock(cell->folder, LOCK_EX | LOCK_NB))
        return failed_at(errno, "locking the folder; does a backend serve it", why);
    if ((error = tr_folder_clear(cell->folder)))
        return failed_at(error, "clearing the folder of an earlier cell; is its head a cell's", why);
    cell->head = (tr_cell_head){.magic = TR_CELL_MAGIC, .layout = TR_CELL_LAYOUT, .config_id = config->config_id,
                                .generation = 1, .buckets = config->buckets, .reserved = config->reserve_bytes};
    if (getrandom(&cell->head.instance, 8, 0) != 8) return failed_at(errno, "drawing an instance id", why);
    if ((error = tr_head_make(&cell->head_page, cell->folder, &cell->head)))
        return failed_at(error, "making the head", why);
    if ((error = open_data(cell))) return failed_at(error, "making the data file", why);
    if ((error = tr_index_make(&cell->index, cell->folder, 1, config->buckets, config->config_id)))
        return failed_at(error, "making the index", why);
    if ((error = tr_head_publish(cell->folder))) return failed_at(error, "publishing the head", why);
    plan_growth(cell);
    return 0;
}

int tr_cell_open(tr_cell **opened, const char *folder, const tr_cell_config *config, char *why) {
    tr_cell *cell = calloc(1, sizeof *cell);
    if (!cell) return failed_at(ENOMEM, "opening a cell", why);
    pthread_mutex_init(&cell->lock, NULL);
    cell->config = *config;
    cell->folder = cell->file = -1;
    cell->unused = cell->replacing = TR_NONE;
    cell->units.width = 1;
    cell->watermark_bytes = config->capacity_bytes / 100 * WATERMARK_PERCENT;
    tr_tombs_open(&cell->tombs, config->tombstones);
    tr_recency_open(&cell->recency, config->policy, !config->chaining);
    int error = open_all(cell, folder, why);
    if (error)
        tr_cell_free(cell);
    else
        *opened = cell;
    return error;
}

static void shut(tr_cell *cell, int remove) {
    if (!tr_cell_lock(cell)) return;
    cell->shut = 1;
    if (remove && cell->folder >= 0) (void)tr_folder_clear(cell->folder); /* what stays is the next one's to clear */
    tr_tombs_close(&cell->tombs);
    tr_recency_close(&cell->recency);
    tr_column_close(&cell->units);
    tr_index_drop(&cell->index);
    tr_slabs_close(&cell->slabs);
    if (cell->data) munmap(cell->data, cell->config.reserve_bytes);
    if (cell->head_page) munmap(cell->head_page, TR_HEAD_BYTES);
    if (cell->file >= 0) close(cell->file);
    if (cell->folder >= 0) close(cell->folder);
    tr_cell_unlock(cell);
}

void tr_cell_close(tr_cell *cell) { shut(cell, 0); }

void tr_cell_remove(tr_cell *cell) { shut(cell, 1); }

void tr_cell_free(tr_cell *cell) {
    tr_cell_close(cell);
    pthread_mutex_destroy(&cell->lock);
    free(cell);
}
