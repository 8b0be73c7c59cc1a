/* A table in memory: keys and values of any bytes, counters, and queues in a name space of their own. The hash store
 * and the tcp server keep their data in one.
 *
 * It does no locking and no waiting: its owner (the hash store's lock, the server's loop) does. All calls are O(1) on
 * average, whatever the number of keys; keys are hashed with a random seed of each table, so that no client can choose
 * keys that collide. What a call *lends* is valid until the next call that changes the table. */
#ifndef COMM_STORE_TABLE_H
#define COMM_STORE_TABLE_H

#include <comm/comm.h>

struct table;

/* Some bytes: a key or a value. Values in the table have a NUL byte after them, not counted. */
struct table_bytes {
    const void *data;
    size_t bytes;
};

comm_status table_create(struct table **ret_table); /* gives; table_destroy */
void table_destroy(struct table *t);                /* NULL is fine */

/* Put; overwrites. INVALID if longer than LIMIT_STORE_VALUE_BYTES (all calls that store). */
comm_status table_set(struct table *t, struct table_bytes key, struct table_bytes value);

/* 1 and lends the value (ret_value may be NULL), or 0: there is no such key. */
int table_get(const struct table *t, struct table_bytes key, struct table_bytes *ret_value);

/* Add to a decimal number, by stoll's rules: leading blanks and a sign are taken, what follows the digits is ignored; a
 * missing key counts as 0 and is made, even by amount 0. INVALID if it is no number or would overflow; nothing
 * changes. */
comm_status table_add(struct table *t, struct table_bytes key, int64_t amount, int64_t *ret_value);

/* c10d's rule: replace if the value equals `expected`; if there is no such key, make it if `expected` is empty. Lends
 * the value that is there afterwards, or gives back `expected` if there is none. *ret_changed (may be NULL) is 1 if
 * `desired` was stored: only then is there anything to wake a waiter for. */
comm_status table_compare_set(struct table *t, struct table_bytes key, struct table_bytes expected,
                              struct table_bytes desired, struct table_bytes *ret_value, int *ret_changed);

/* Put at the end of the value; a missing key is made. */
comm_status table_append(struct table *t, struct table_bytes key, struct table_bytes value);

/* 1 if it was there. Queues stay. */
int table_remove(struct table *t, struct table_bytes key);

/* Keys, without queues. */
size_t table_count(const struct table *t);

/* Walk over all keys in no order: begin with *cursor 0; 0 at the end. Lends. Do not change the table on the way. */
int table_next(const struct table *t, size_t *cursor, struct table_bytes *ret_key, struct table_bytes *ret_value);

/* All keys: *gives* an array and its strings in one block (free), as comm_store_list_keys does. */
comm_status table_list(const struct table *t, char ***ret_keys, size_t *ret_count);

/* A copy of `value` with a NUL behind it. Gives *ret_data (free). */
comm_status table_copy(struct table_bytes value, void **ret_data, size_t *ret_bytes);

/* Queues. Pop *gives* the value (free; it too has a NUL after it), or says 0: empty. A queue lives as long as it holds
 * something. */
comm_status table_queue_push(struct table *t, struct table_bytes key, struct table_bytes value);
int table_queue_pop(struct table *t, struct table_bytes key, void **ret_data, size_t *ret_bytes);
/* lends; 0: empty */
int table_queue_first(const struct table *t, struct table_bytes key, struct table_bytes *ret_value);
size_t table_queue_len(const struct table *t, struct table_bytes key);

#endif
