#define _GNU_SOURCE
#include "cell_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "cell_index.h"
#include "cell_slab.h"
#include "cell_tombs.h"

enum {
    WATERMARK_PERCENT = 80, /* collecting begins here, so that a burst still finds room */
    LOAD_PERCENT = 50,      /* the index grows here: of five entries, 2.5 are taken, and few buckets overflow */
    EVICTIONS_PER_SET = 4,  /* above the watermark a set pays for itself and a little more, never for everything */
    EXPIRY_LOOKS_PER_SET = 8,
    CLASS_LOOKS = 64, /* how far to look for an old record of the right size before emptying a whole slab */
};

typedef struct {
    uint64_t offset, stamp; /* stamp: when it became the newest */
    uint32_t size;          /* 0: no record here */
    uint32_t expiry_s;
    uint32_t older, newer;
    uint32_t next; /* in its bucket's chain, or in the list of unused records */
    uint32_t chained;
} record;

struct tr_cell {
    int folder, file;
    tr_word *data, *head_page;
    tr_cell_head head;
    tr_index index;
    tr_slabs slabs;
    tr_tombs tombs;
    tr_cell_config config;
    record *records;
    uint32_t records_made, records_room, unused;
    uint32_t oldest, newest, cursor;
    uint64_t stamp, watermark_bytes, grow_above;
    tr_cell_stats stats;
};

/* ---- data entries, read by their own writer: nobody else writes, so plain copies are whole */

static const uint8_t *bytes_at(const tr_cell *cell, uint64_t offset) { return (const uint8_t *)cell->data + offset; }

static tr_data_header header_at(const tr_cell *cell, uint64_t offset) {
    tr_data_header header;
    memcpy(&header, bytes_at(cell, offset), sizeof header);
    return header;
}

static tr_version version_of(const tr_cell *cell, uint32_t id) {
    return header_at(cell, cell->records[id].offset).version;
}

static tr_index_entry entry_of(const tr_cell *cell, uint32_t id) {
    const record *it = &cell->records[id];
    tr_data_header header = header_at(cell, it->offset);
    return (tr_index_entry){header.hash, header.version, it->offset, it->size, it->expiry_s};
}

static void write_data(tr_cell *cell, uint64_t offset, tr_slice key, tr_slice value, tr_key_hash hash,
                       tr_version version, uint32_t expiry_s) {
    tr_data_header header = {.key_bytes = (uint32_t)key.count, .value_bytes = (uint32_t)value.count,
                             .expiry_s = expiry_s, .version = version, .hash = hash,
                             .instance = cell->head.instance, .offset = offset};
    header.sum = tr_data_sum(&header, key, value.at);
    tr_word *to = cell->data + offset / 8;
    /* The slot's former entry left the index before. Whoever sees a word written below, and fences, sees that too. */
    atomic_thread_fence(memory_order_release);
    tr_words_write(to, &header, sizeof header);
    tr_words_write(to + TR_DATA_HEADER_BYTES / 8, key.at, key.count);
    tr_words_write(to + (TR_DATA_HEADER_BYTES + tr_padded(key.count)) / 8, value.at, value.count);
}

/* ---- recency */

static void forget_order(tr_cell *cell, uint32_t id) {
    record *it = &cell->records[id];
    *(it->older == TR_NONE ? &cell->oldest : &cell->records[it->older].newer) = it->newer;
    *(it->newer == TR_NONE ? &cell->newest : &cell->records[it->newer].older) = it->older;
}

static void make_newest(tr_cell *cell, uint32_t id) {
    record *it = &cell->records[id];
    it->stamp = ++cell->stamp;
    it->older = cell->newest;
    it->newer = TR_NONE;
    *(cell->newest == TR_NONE ? &cell->oldest : &cell->records[cell->newest].newer) = id;
    cell->newest = id;
}

static void refresh(tr_cell *cell, uint32_t id) {
    forget_order(cell, id);
    make_newest(cell, id);
}

/* ---- records */

static uint32_t take_record(tr_cell *cell) {
    uint32_t id = cell->unused;
    if (id != TR_NONE) {
        cell->unused = cell->records[id].next;
        return id;
    }
    if (cell->records_made == cell->records_room) {
        uint32_t room = cell->records_room ? 2 * cell->records_room : 1024;
        record *more = room > 1u << 30 ? NULL : realloc(cell->records, room * sizeof *more);
        if (!more) return TR_NONE;
        cell->records = more;
        cell->records_room = room;
    }
    cell->records[cell->records_made] = (record){0};
    return cell->records_made++;
}

static void give_record(tr_cell *cell, uint32_t id) {
    cell->records[id].size = 0;
    cell->records[id].next = cell->unused;
    cell->unused = id;
}

/* ---- buckets and chains */

static int in_bucket(const tr_index *index, uint64_t bucket, tr_key_hash hash) {
    const uint32_t *owners = tr_owners_at(index, bucket);
    for (uint32_t i = 0; i < TR_BUCKET_ENTRIES; i++)
        if (owners[i] != TR_NONE && tr_hash_equal(tr_bucket_hash(index, bucket, i), hash)) return (int)i;
    return -1;
}

static int entry_owned_by(const tr_index *index, uint64_t bucket, uint32_t id) {
    const uint32_t *owners = tr_owners_at(index, bucket);
    for (uint32_t i = 0; i < TR_BUCKET_ENTRIES; i++)
        if (owners[i] == id) return (int)i;
    return -1;
}

static int same_key(const tr_cell *cell, uint32_t id, tr_key_hash hash, tr_slice key) {
    uint64_t offset = cell->records[id].offset;
    tr_data_header header = header_at(cell, offset);
    return tr_hash_equal(header.hash, hash) && header.key_bytes == key.count &&
           (!key.count || !memcmp(bytes_at(cell, offset + TR_DATA_HEADER_BYTES), key.at, key.count));
}

static uint32_t find(const tr_cell *cell, tr_key_hash hash, tr_slice key) {
    const tr_index *index = &cell->index;
    uint64_t bucket = tr_bucket_of(hash, index->buckets);
    int entry = in_bucket(index, bucket, hash);
    if (entry >= 0 && same_key(cell, tr_owners_at(index, bucket)[entry], hash, key))
        return tr_owners_at(index, bucket)[entry];
    for (uint32_t id = index->chains[bucket]; id != TR_NONE; id = cell->records[id].next)
        if (same_key(cell, id, hash, key)) return id;
    return TR_NONE;
}

static void put(tr_cell *cell, tr_index *index, uint64_t bucket, uint32_t entry, uint32_t id) {
    tr_index_entry content = entry_of(cell, id);
    tr_bucket_put(index, bucket, entry, &content);
    tr_owners_at(index, bucket)[entry] = id;
}

static void chain(tr_cell *cell, tr_index *index, uint64_t bucket, uint32_t id) {
    record *it = &cell->records[id];
    it->next = index->chains[bucket];
    it->chained = 1;
    index->chains[bucket] = id;
    cell->stats.chained++;
}

static void unchain(tr_cell *cell, tr_index *index, uint64_t bucket, uint32_t id) {
    uint32_t *link = &index->chains[bucket];
    while (*link != id) link = &cell->records[*link].next;
    *link = cell->records[id].next;
    cell->records[id].chained = 0;
    cell->stats.chained--;
}

/* A place in the bucket is free: the first chained key that may have it moves in. Within open and close. */
static void promote(tr_cell *cell, uint64_t bucket, uint32_t entry) {
    for (uint32_t id = cell->index.chains[bucket]; id != TR_NONE; id = cell->records[id].next) {
        tr_key_hash hash = header_at(cell, cell->records[id].offset).hash;
        if (in_bucket(&cell->index, bucket, hash) >= 0) continue; /* its twin is there already */
        unchain(cell, &cell->index, bucket, id);
        put(cell, &cell->index, bucket, entry, id);
        return;
    }
}

/* Take a record out of everything: first out of readers' sight, then out of memory. */
static void discard(tr_cell *cell, uint32_t id) {
    tr_index *index = &cell->index;
    uint64_t offset = cell->records[id].offset;
    uint64_t bucket = tr_bucket_of(header_at(cell, offset).hash, index->buckets);
    tr_bucket_open(index, bucket);
    if (cell->records[id].chained) {
        unchain(cell, index, bucket, id);
    } else {
        uint32_t entry = (uint32_t)entry_owned_by(index, bucket, id);
        tr_bucket_put(index, bucket, entry, NULL);
        tr_owners_at(index, bucket)[entry] = TR_NONE;
        promote(cell, bucket, entry);
    }
    tr_bucket_close(index, bucket);
    forget_order(cell, id);
    tr_slot_give(&cell->slabs, offset);
    give_record(cell, id);
    cell->stats.records--;
}

/* Without chains a bucket's newcomer takes the place of its hash's twin, or of the bucket's least recent entry. */
static uint32_t place_to_take(const tr_cell *cell, uint64_t bucket, tr_key_hash hash) {
    const uint32_t *owners = tr_owners_at(&cell->index, bucket);
    int twin = in_bucket(&cell->index, bucket, hash);
    uint32_t least = 0;
    if (twin >= 0) return (uint32_t)twin;
    for (uint32_t i = 1; i < TR_BUCKET_ENTRIES; i++)
        if (cell->records[owners[i]].stamp < cell->records[owners[least]].stamp) least = i;
    return least;
}

/* Give a record with a complete data entry its place. */
static void place(tr_cell *cell, tr_index *index, uint32_t id) {
    tr_key_hash hash = header_at(cell, cell->records[id].offset).hash;
    uint64_t bucket = tr_bucket_of(hash, index->buckets);
    int entry = entry_owned_by(index, bucket, TR_NONE);
    int fits = entry >= 0 && in_bucket(index, bucket, hash) < 0;
    tr_bucket_open(index, bucket);
    if (fits)
        put(cell, index, bucket, (uint32_t)entry, id);
    else
        chain(cell, index, bucket, id);
    tr_bucket_close(index, bucket);
}

/* A record takes over a data entry that is complete. */
static void own(tr_cell *cell, uint32_t id, uint64_t offset, uint32_t size, uint32_t expiry_s) {
    record *it = &cell->records[id];
    it->offset = offset;
    it->size = size;
    it->expiry_s = expiry_s;
    tr_slot_own(&cell->slabs, offset, id);
}

static void install_new(tr_cell *cell, uint32_t id, uint64_t offset, uint32_t size, uint32_t expiry_s) {
    tr_key_hash hash = header_at(cell, offset).hash;
    uint64_t bucket = tr_bucket_of(hash, cell->index.buckets);
    int full = entry_owned_by(&cell->index, bucket, TR_NONE) < 0 || in_bucket(&cell->index, bucket, hash) >= 0;
    if (full && !cell->config.chaining) {
        discard(cell, tr_owners_at(&cell->index, bucket)[place_to_take(cell, bucket, hash)]);
        cell->stats.evicted_associativity++;
    }
    cell->records[id].chained = 0;
    own(cell, id, offset, size, expiry_s);
    place(cell, &cell->index, id);
    make_newest(cell, id);
    cell->stats.records++;
}

/* The pointer moves from the old data entry to the new one in one step, which readers see as before or after. */
static void replace(tr_cell *cell, uint32_t id, uint64_t offset, uint32_t size, uint32_t expiry_s) {
    uint64_t old = cell->records[id].offset;
    own(cell, id, offset, size, expiry_s);
    if (!cell->records[id].chained) {
        uint64_t bucket = tr_bucket_of(header_at(cell, offset).hash, cell->index.buckets);
        tr_bucket_open(&cell->index, bucket);
        put(cell, &cell->index, bucket, (uint32_t)entry_owned_by(&cell->index, bucket, id), id);
        tr_bucket_close(&cell->index, bucket);
    }
    tr_slot_give(&cell->slabs, old);
    refresh(cell, id);
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

static void evict(tr_cell *cell, uint32_t id) {
    discard(cell, id);
    cell->stats.evicted_capacity++;
}

static uint32_t class_held(tr_cell *cell, uint32_t id) {
    return tr_slab_at(&cell->slabs, cell->records[id].offset)->class;
}

/* A slot, by evicting if it must be: an old record of the same class frees exactly one; otherwise the slab of the
 * oldest record is emptied, and changes class. Every round evicts, so it ends. */
static int make_room(tr_cell *cell, uint64_t size, uint64_t *offset) {
    uint32_t class = tr_class_of(size);
    while (!tr_slot_take(&cell->slabs, size, offset)) {
        uint32_t id = cell->oldest;
        if (id == TR_NONE) return 0;
        for (int looks = 0; id != TR_NONE && class_held(cell, id) != class; id = cell->records[id].newer)
            if (++looks == CLASS_LOOKS) break;
        if (id != TR_NONE && class_held(cell, id) == class) {
            evict(cell, id);
            continue;
        }
        const tr_slab *slab = tr_slab_at(&cell->slabs, cell->records[cell->oldest].offset);
        for (uint32_t slot = 0; (id = tr_slab_owner(slab, &slot)) != TR_NONE;) evict(cell, id);
    }
    return 1;
}

static uint64_t sweep_expired(tr_cell *cell, uint32_t now_s, uint64_t looks) {
    uint64_t gone = 0;
    if (looks > cell->records_made) looks = cell->records_made;
    for (; looks; looks--) {
        if (cell->cursor >= cell->records_made) cell->cursor = 0;
        const record *it = &cell->records[cell->cursor];
        if (it->size && tr_expired(it->expiry_s, now_s)) {
            discard(cell, cell->cursor);
            gone++;
        }
        cell->cursor++;
    }
    cell->stats.expired += gone;
    return gone;
}

static uint64_t evict_to_watermark(tr_cell *cell, uint64_t evictions_max) {
    uint64_t gone = 0;
    /* The newest is what somebody just set: it stays even if it alone is above the watermark. */
    while (gone < evictions_max && cell->slabs.used_bytes > cell->watermark_bytes && cell->oldest != cell->newest) {
        evict(cell, cell->oldest);
        gone++;
    }
    return gone;
}

uint64_t tr_cell_collect(tr_cell *cell, uint32_t now_s, uint64_t budget) {
    uint64_t gone = sweep_expired(cell, now_s, budget);
    gone += evict_to_watermark(cell, budget);
    publish_populated(cell);
    return gone;
}

/* The next generation: complete before the head names it. Only then do readers of the old one lose it. */
static void grow(tr_cell *cell) {
    tr_index next, old = cell->index;
    char name[TR_INDEX_NAME_BYTES];
    if (tr_index_make(&next, cell->folder, old.generation + 1, 2 * old.buckets, old.config_id)) {
        cell->stats.growths_failed++;
        cell->grow_above += cell->grow_above / 4 + 1; /* not again at the very next set */
        return;
    }
    cell->stats.chained = 0;
    for (uint32_t id = 0; id < cell->records_made; id++) {
        if (!cell->records[id].size) continue;
        cell->records[id].chained = 0;
        place(cell, &next, id); /* a bucket's keys go to its two halves, so without chaining nothing is chained here */
    }
    cell->index = next;
    publish_head(cell);
    tr_index_configure(&old, TR_CELL_REVOKED);
    tr_index_name(name, old.generation);
    unlinkat(cell->folder, name, 0); /* if it fails a file too many is left, which nobody reads */
    tr_index_drop(&old);
    cell->stats.growths++;
    cell->grow_above = next.buckets * TR_BUCKET_ENTRIES * LOAD_PERCENT / 100;
}

/* ---- operations */

static tr_version floor_of(const tr_cell *cell, uint32_t id, tr_key_hash hash) {
    return id != TR_NONE ? version_of(cell, id) : tr_tombs_floor(&cell->tombs, hash);
}

static int matches(const tr_cell *cell, uint32_t id, uint32_t now_s, const tr_version *expected) {
    static const tr_version nothing;
    int stored = id != TR_NONE && !tr_expired(cell->records[id].expiry_s, now_s);
    return !tr_version_compare(*expected, stored ? version_of(cell, id) : nothing);
}

tr_outcome tr_cell_set(tr_cell *cell, tr_slice key, tr_slice value, tr_version version, uint32_t expiry_s,
                       uint32_t now_s, const tr_version *expected) {
    tr_key_hash hash = tr_key_hash_of(key);
    uint32_t id = find(cell, hash, key);
    uint64_t size, offset;
    if (expected && !matches(cell, id, now_s, expected)) return TR_MISMATCH;
    if (tr_version_compare(version, floor_of(cell, id, hash)) <= 0) return TR_STALE;
    if (key.count > TR_SLAB_BYTES || value.count > TR_SLAB_BYTES) return TR_TOO_LARGE;
    if ((size = tr_entry_size(key.count, value.count)) > TR_SLAB_BYTES) return TR_TOO_LARGE;

    uint32_t fresh = id == TR_NONE ? take_record(cell) : TR_NONE;
    if ((id == TR_NONE && fresh == TR_NONE) || !make_room(cell, size, &offset)) {
        if (fresh != TR_NONE) give_record(cell, fresh);
        publish_populated(cell);
        return TR_NO_ROOM;
    }
    write_data(cell, offset, key, value, hash, version, expiry_s);
    /* Making room may have evicted the key itself: no loss, so not counted, and the record it left is there to take. */
    int stored = id != TR_NONE;
    id = find(cell, hash, key);
    if (stored && id == TR_NONE) cell->stats.evicted_capacity--;
    if (id != TR_NONE)
        replace(cell, id, offset, (uint32_t)size, expiry_s);
    else
        install_new(cell, fresh != TR_NONE ? fresh : take_record(cell), offset, (uint32_t)size, expiry_s);
    if (cell->slabs.used_bytes > cell->watermark_bytes) {
        sweep_expired(cell, now_s, EXPIRY_LOOKS_PER_SET);
        evict_to_watermark(cell, EVICTIONS_PER_SET);
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
    if (id != TR_NONE) discard(cell, id);
    publish_populated(cell);
    return TR_APPLIED;
}

int tr_cell_get(tr_cell *cell, tr_slice key, uint32_t now_s, tr_item *item) {
    uint32_t id = find(cell, tr_key_hash_of(key), key);
    if (id == TR_NONE || tr_expired(cell->records[id].expiry_s, now_s)) return 0;
    if (cell->config.by_use) refresh(cell, id);
    return tr_cell_item_at(cell, id, item);
}

void tr_cell_touch(tr_cell *cell, tr_key_hash hash) {
    uint64_t bucket = tr_bucket_of(hash, cell->index.buckets);
    int entry = in_bucket(&cell->index, bucket, hash);
    if (!cell->config.by_use || entry < 0) return; /* chained keys are read through the backend, which sees it itself */
    refresh(cell, tr_owners_at(&cell->index, bucket)[entry]);
    cell->stats.touched++;
}

void tr_cell_configure(tr_cell *cell, uint64_t config_id) {
    cell->index.config_id = config_id;
    publish_head(cell);
    tr_index_configure(&cell->index, config_id);
}

uint32_t tr_cell_records(const tr_cell *cell) { return cell->records_made; }

int tr_cell_item_at(tr_cell *cell, uint32_t number, tr_item *item) {
    if (number >= cell->records_made || !cell->records[number].size) return 0;
    uint64_t offset = cell->records[number].offset;
    tr_data_header header = header_at(cell, offset);
    const uint8_t *key = bytes_at(cell, offset + TR_DATA_HEADER_BYTES);
    *item = (tr_item){{key, header.key_bytes}, {key + tr_padded(header.key_bytes), header.value_bytes}, header.hash,
                      header.version, header.expiry_s};
    return 1;
}

tr_cell_stats tr_cell_look(const tr_cell *cell) {
    tr_cell_stats stats = cell->stats;
    stats.used_bytes = cell->slabs.used_bytes;
    stats.populated_bytes = (uint64_t)cell->slabs.populated * TR_SLAB_BYTES;
    stats.buckets = cell->index.buckets;
    stats.generation = cell->index.generation;
    stats.tombstones = cell->tombs.count;
    stats.summary = cell->tombs.summary;
    return stats;
}

/* ---- opening and closing */

static int failed_at(int error, const char *step, char *why) {
    snprintf(why, TR_WHY_BYTES, "%s", step);
    return error;
}

static int open_data(tr_cell *cell) {
    cell->file = openat(cell->folder, "data", O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0640);
    if (cell->file < 0) return errno;
    if (ftruncate(cell->file, (off_t)cell->config.reserve_bytes)) return errno;
    void *memory = mmap(NULL, cell->config.reserve_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        cell->file, 0);
    if (memory == MAP_FAILED) return errno;
    cell->data = memory;
    return tr_slabs_open(&cell->slabs, cell->file, cell->config.reserve_bytes, cell->config.capacity_bytes);
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
    if ((error = tr_tombs_open(&cell->tombs, config->tombstones)))
        return failed_at(error, "making room for tombstones", why);
    if ((error = tr_head_publish(cell->folder))) return failed_at(error, "publishing the head", why);
    return 0;
}

int tr_cell_open(tr_cell **opened, const char *folder, const tr_cell_config *config, char *why) {
    tr_cell *cell = calloc(1, sizeof *cell);
    if (!cell) return failed_at(ENOMEM, "opening a cell", why);
    cell->config = *config;
    cell->folder = cell->file = -1;
    cell->unused = cell->oldest = cell->newest = TR_NONE;
    cell->watermark_bytes = config->capacity_bytes / 100 * WATERMARK_PERCENT;
    cell->grow_above = config->buckets * TR_BUCKET_ENTRIES * LOAD_PERCENT / 100;
    int error = open_all(cell, folder, why);
    if (error)
        tr_cell_close(cell);
    else
        *opened = cell;
    return error;
}

void tr_cell_close(tr_cell *cell) {
    tr_tombs_close(&cell->tombs);
    tr_index_drop(&cell->index);
    tr_slabs_close(&cell->slabs);
    if (cell->data) munmap(cell->data, cell->config.reserve_bytes);
    if (cell->head_page) munmap(cell->head_page, TR_HEAD_BYTES);
    if (cell->file >= 0) close(cell->file);
    if (cell->folder >= 0) close(cell->folder);
    free(cell->records);
    free(cell);
}
