/* The table of table.h: two open-addressed maps from bytes to entries, one for values and one for queues.
 *
 * A map is an array of (hash, entry) with linear probing, at most three quarters full. Removing moves later entries of
 * the run back instead of leaving a tombstone, so a store in which keys come and go for days does not get slower. */
#include "table.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/limits.h"

struct queue_item {
    struct queue_item *next;
    void *data;
    size_t bytes;
};

/* A key with its value (data, bytes, capacity) or with its queue (first, last, count). */
struct entry {
    void *data;
    size_t bytes, capacity; /* capacity counts the NUL */
    struct queue_item *first, *last;
    size_t count;
    size_t key_bytes;
    char key[];
};

struct slot {
    uint64_t hash;
    struct entry *entry; /* NULL: free */
};

struct map {
    struct slot *slots;
    size_t slot_count; /* a power of two, or 0 */
    size_t used;
};

struct table {
    uint64_t seed;
    struct map values, queues;
};

enum { SLOTS_AT_FIRST = 16, KEY_SHOWN = 200 };

/* ---- Maps ---- */

static uint64_t hash_of(const struct table *t, struct table_bytes key)
{
    return XXH3_64bits_withSeed(key.data, key.bytes, t->seed);
}

/* The slot that holds `key`, or the free one where it belongs. There is always a free one. */
static struct slot *map_probe(const struct map *m, struct table_bytes key, uint64_t hash)
{
    size_t mask = m->slot_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct slot *slot = &m->slots[i];
        if (!slot->entry)
            return slot;
        if (slot->hash == hash && slot->entry->key_bytes == key.bytes &&
            memcmp(slot->entry->key, key.data, key.bytes) == 0)
            return slot;
    }
}

static struct entry *map_find(const struct table *t, const struct map *m, struct table_bytes key)
{
    return m->used == 0 ? NULL : map_probe(m, key, hash_of(t, key))->entry;
}

static comm_status map_grow(struct map *m)
{
    size_t slot_count = m->slot_count ? m->slot_count * 2 : SLOTS_AT_FIRST;
    struct slot *slots = calloc(slot_count, sizeof *slots);
    if (!slots)
        return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for a table of %zu slots", slot_count);
    for (size_t i = 0; i < m->slot_count; i++) {
        if (!m->slots[i].entry)
            continue;
        size_t at = m->slots[i].hash & (slot_count - 1);
        while (slots[at].entry)
            at = (at + 1) & (slot_count - 1);
        slots[at] = m->slots[i];
    }
    free(m->slots);
    m->slots = slots;
    m->slot_count = slot_count;
    return COMM_OK;
}

/* The entry of `key`, made if it is not there. */
static comm_status map_make(const struct table *t, struct map *m, struct table_bytes key, struct entry **ret_entry)
{
    if ((m->used + 1) * 4 > m->slot_count * 3) {
        comm_status status = map_grow(m);
        if (status != COMM_OK)
            return status;
    }
    uint64_t hash = hash_of(t, key);
    struct slot *slot = map_probe(m, key, hash);
    if (!slot->entry) {
        struct entry *entry = calloc(1, sizeof *entry + key.bytes);
        if (!entry)
            return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for a key of %zu B", key.bytes);
        memcpy(entry->key, key.data, key.bytes);
        entry->key_bytes = key.bytes;
        *slot = (struct slot){ hash, entry };
        m->used++;
    }
    *ret_entry = slot->entry;
    return COMM_OK;
}

static void entry_destroy(struct entry *entry)
{
    while (entry->first) {
        struct queue_item *item = entry->first;
        entry->first = item->next;
        free(item->data);
        free(item);
    }
    free(entry->data);
    free(entry);
}

static int map_remove(const struct table *t, struct map *m, struct table_bytes key)
{
    if (m->used == 0)
        return 0;
    struct slot *hole = map_probe(m, key, hash_of(t, key));
    if (!hole->entry)
        return 0;
    entry_destroy(hole->entry);
    assert(m->used > 0);
    m->used--;

    /* Move back each later entry of the run whose home is not between the hole and itself. */
    size_t mask = m->slot_count - 1, at_hole = (size_t)(hole - m->slots);
    for (size_t i = (at_hole + 1) & mask; m->slots[i].entry; i = (i + 1) & mask) {
        size_t home = m->slots[i].hash & mask;
        if (((i - home) & mask) >= ((i - at_hole) & mask)) {
            m->slots[at_hole] = m->slots[i];
            at_hole = i;
        }
    }
    m->slots[at_hole] = (struct slot){ 0, NULL };
    return 1;
}

static void map_finish(struct map *m)
{
    for (size_t i = 0; i < m->slot_count; i++)
        if (m->slots[i].entry)
            entry_destroy(m->slots[i].entry);
    free(m->slots);
}

/* ---- Values ---- */

comm_status table_create(struct table **ret_table)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for a table");
    /* Without the kernel's random numbers the seed is still not a constant. */
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t)sizeof t->seed)
        t->seed = (uint64_t)(uintptr_t)t;
    *ret_table = t;
    return COMM_OK;
}

void table_destroy(struct table *t)
{
    if (!t)
        return;
    map_finish(&t->values);
    map_finish(&t->queues);
    free(t);
}

static comm_status check_bytes(struct table_bytes key, size_t bytes)
{
    if (bytes <= LIMIT_STORE_VALUE_BYTES)
        return COMM_OK;
    return comm__fail(COMM_ERR_INVALID, "store: the value of '%.*s' would be %zu B; the limit is %zu B",
                      key.bytes < KEY_SHOWN ? (int)key.bytes : KEY_SHOWN, (const char *)key.data, bytes,
                      LIMIT_STORE_VALUE_BYTES);
}

/* A copy with a NUL after it. */
static comm_status copy_bytes(struct table_bytes value, void **ret_data)
{
    char *data = malloc(value.bytes + 1);
    if (!data)
        return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for a value of %zu B", value.bytes);
    if (value.bytes)
        memcpy(data, value.data, value.bytes);
    data[value.bytes] = '\0';
    *ret_data = data;
    return COMM_OK;
}

comm_status table_set(struct table *t, struct table_bytes key, struct table_bytes value)
{
    void *data = NULL;
    struct entry *entry;
    comm_status status = check_bytes(key, value.bytes);
    if (status == COMM_OK)
        status = copy_bytes(value, &data); /* before the key is made, so that a failure leaves none without a value */
    if (status == COMM_OK)
        status = map_make(t, &t->values, key, &entry);
    if (status != COMM_OK) {
        free(data);
        return status;
    }
    free(entry->data);
    entry->data = data;
    entry->bytes = value.bytes;
    entry->capacity = value.bytes + 1;
    return COMM_OK;
}

int table_get(const struct table *t, struct table_bytes key, struct table_bytes *ret_value)
{
    const struct entry *entry = map_find(t, &t->values, key);
    if (entry && ret_value)
        *ret_value = (struct table_bytes){ entry->data, entry->bytes };
    return entry != NULL;
}

/* `text` ends with a NUL; a NUL inside ends the number like any other character that is no digit. */
static comm_status parse_number(struct table_bytes key, const char *text, int64_t *ret_number)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno == ERANGE)
        return comm__fail(COMM_ERR_INVALID, "store: add to '%.*s': its value '%.40s' is %s",
                          key.bytes < KEY_SHOWN ? (int)key.bytes : KEY_SHOWN, (const char *)key.data, text,
                          end == text ? "not a number" : "not within 64 bits");
    *ret_number = number;
    return COMM_OK;
}

comm_status table_add(struct table *t, struct table_bytes key, int64_t amount, int64_t *ret_value)
{
    const struct entry *entry = map_find(t, &t->values, key);
    int64_t number = 0;
    if (entry) {
        comm_status status = parse_number(key, entry->data, &number);
        if (status != COMM_OK)
            return status;
    }
    int64_t sum;
    if (__builtin_add_overflow(number, amount, &sum))
        return comm__fail(COMM_ERR_INVALID, "store: add %" PRId64 " to '%.*s': its value %" PRId64 " would overflow",
                          amount, key.bytes < KEY_SHOWN ? (int)key.bytes : KEY_SHOWN, (const char *)key.data, number);
    char text[24];
    int bytes = snprintf(text, sizeof text, "%" PRId64, sum);
    comm_status status = table_set(t, key, (struct table_bytes){ text, (size_t)bytes });
    if (status == COMM_OK)
        *ret_value = sum;
    return status;
}

static int bytes_equal(struct table_bytes a, struct table_bytes b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

comm_status table_compare_set(struct table *t, struct table_bytes key, struct table_bytes expected,
                              struct table_bytes desired, struct table_bytes *ret_value, int *ret_changed)
{
    struct table_bytes value = expected;
    int there = table_get(t, key, &value);
    int change = there ? bytes_equal(value, expected) : expected.bytes == 0;
    if (change) {
        comm_status status = table_set(t, key, desired);
        if (status != COMM_OK)
            return status;
        table_get(t, key, &value);
    }
    *ret_value = value;
    if (ret_changed)
        *ret_changed = change;
    return COMM_OK;
}

comm_status table_append(struct table *t, struct table_bytes key, struct table_bytes value)
{
    struct entry *entry = map_find(t, &t->values, key);
    if (!entry)
        return table_set(t, key, value);
    size_t bytes = entry->bytes + value.bytes;
    comm_status status = check_bytes(key, bytes);
    if (status != COMM_OK)
        return status;
    if (bytes + 1 > entry->capacity) {
        size_t capacity = bytes + 1 > entry->capacity * 2 ? bytes + 1 : entry->capacity * 2;
        void *data = realloc(entry->data, capacity);
        if (!data)
            return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for a value of %zu B", bytes);
        entry->data = data;
        entry->capacity = capacity;
    }
    if (value.bytes)
        memcpy((char *)entry->data + entry->bytes, value.data, value.bytes);
    entry->bytes = bytes;
    ((char *)entry->data)[bytes] = '\0';
    return COMM_OK;
}

int table_remove(struct table *t, struct table_bytes key)
{
    return map_remove(t, &t->values, key);
}

size_t table_count(const struct table *t)
{
    return t->values.used;
}

int table_next(const struct table *t, size_t *cursor, struct table_bytes *ret_key, struct table_bytes *ret_value)
{
    const struct map *m = &t->values;
    while (*cursor < m->slot_count) {
        const struct entry *entry = m->slots[(*cursor)++].entry;
        if (!entry)
            continue;
        *ret_key = (struct table_bytes){ entry->key, entry->key_bytes };
        if (ret_value)
            *ret_value = (struct table_bytes){ entry->data, entry->bytes };
        return 1;
    }
    return 0;
}

comm_status table_list(const struct table *t, char ***ret_keys, size_t *ret_count)
{
    size_t count = table_count(t), bytes = 0, i = 0;
    struct table_bytes key;
    for (size_t cursor = 0; table_next(t, &cursor, &key, NULL);)
        bytes += key.bytes + 1;
    char **keys = malloc(count * sizeof *keys + bytes + 1);
    if (!keys)
        return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for %zu keys", count);
    char *at = (char *)(keys + count);
    for (size_t cursor = 0; table_next(t, &cursor, &key, NULL); i++) {
        keys[i] = at;
        memcpy(at, key.data, key.bytes);
        at[key.bytes] = '\0';
        at += key.bytes + 1;
    }
    *ret_keys = keys;
    *ret_count = count;
    return COMM_OK;
}

comm_status table_copy(struct table_bytes value, void **ret_data, size_t *ret_bytes)
{
    comm_status status = copy_bytes(value, ret_data);
    if (status == COMM_OK)
        *ret_bytes = value.bytes;
    return status;
}

/* ---- Queues ---- */

comm_status table_queue_push(struct table *t, struct table_bytes key, struct table_bytes value)
{
    comm_status status = check_bytes(key, value.bytes);
    if (status != COMM_OK)
        return status;
    struct entry *entry;
    struct queue_item *item = calloc(1, sizeof *item);
    if (!item)
        return comm__fail(COMM_ERR_NO_MEMORY, "store: no memory for an entry of a queue");
    status = copy_bytes(value, &item->data);
    if (status == COMM_OK)
        status = map_make(t, &t->queues, key, &entry);
    if (status != COMM_OK) {
        free(item->data);
        free(item);
        return status;
    }
    item->bytes = value.bytes;
    if (entry->last)
        entry->last->next = item;
    else
        entry->first = item;
    entry->last = item;
    entry->count++;
    return COMM_OK;
}

int table_queue_pop(struct table *t, struct table_bytes key, void **ret_data, size_t *ret_bytes)
{
    struct entry *entry = map_find(t, &t->queues, key);
    if (!entry)
        return 0;
    struct queue_item *item = entry->first;
    assert(item); /* an empty queue is removed at once */
    *ret_data = item->data;
    *ret_bytes = item->bytes;
    entry->first = item->next;
    free(item);
    assert(entry->count > 0);
    if (--entry->count == 0)
        map_remove(t, &t->queues, key);
    return 1;
}

int table_queue_first(const struct table *t, struct table_bytes key, struct table_bytes *ret_value)
{
    const struct entry *entry = map_find(t, &t->queues, key);
    if (entry)
        *ret_value = (struct table_bytes){ entry->first->data, entry->first->bytes };
    return entry != NULL;
}

size_t table_queue_len(const struct table *t, struct table_bytes key)
{
    const struct entry *entry = map_find(t, &t->queues, key);
    return entry ? entry->count : 0;
}
