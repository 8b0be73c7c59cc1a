/* Functions that a kind of store lacks, made from set, get, add, compare_set, check and remove. Each function here is
 * the kind's own if it has one; views and the public calls go through them.
 *
 * The keys that a fallback needs are in the same store as the user's: "KEY/num_members" and "KEY/last_member" of a
 * barrier (PyTorch's names), "KEY/appending" while a process appends, "KEY/queue/..." of a queue. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "store.h"

enum {
    PAUSE_FIRST_NS = 500000,
    PAUSE_MAX_NS = 10000000,
    MISSING_NAMED_MAX = 16, /* keys that a timeout looks at one by one */
    AT_ONCE_MS = 1000,      /* for a value that is there already */
};

/* ---- Waiting ---- */

/* Sleep a little, then longer each time, but not past the deadline. */
static void pause_until(int64_t *pause_ns, int64_t deadline_ns)
{
    int64_t left = deadline_ns == DEADLINE_NEVER ? PAUSE_MAX_NS : deadline_ns - clock_now_ns();
    struct timespec pause = { 0, *pause_ns < left ? *pause_ns : left > 0 ? left : 1 };
    nanosleep(&pause, NULL);
    *pause_ns = *pause_ns * 2 < PAUSE_MAX_NS ? *pause_ns * 2 : PAUSE_MAX_NS;
}

comm_status store_fail_missing(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                               const char *note)
{
    const char *missing[MISSING_NAMED_MAX];
    size_t missing_count = 0, looked_at = 0;
    char text[300];
    struct store_wait grace = store_grace(wait);
    for (; looked_at < count && missing_count < MISSING_NAMED_MAX; looked_at++) {
        int32_t there = 0;
        comm_status status = s->kind->check(s, &keys[looked_at], 1, &grace, &there);
        if (status == COMM_ERR_TIMEOUT)
            break;
        if (status == COMM_OK && !there)
            missing[missing_count++] = keys[looked_at];
    }
    if (missing_count == 0) /* they have come just now */
        return store_fail_timeout(wait, keys, count, note);
    if (looked_at < count) {
        snprintf(text, sizeof text, "%zu more were not checked%s%s", count - looked_at, note ? "; " : "",
                 note ? note : "");
        note = text;
    }
    return store_fail_timeout(wait, missing, missing_count, note);
}

static comm_status poll_for_keys(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    int64_t pause_ns = PAUSE_FIRST_NS;
    for (;;) {
        int32_t all = 0;
        comm_status status = s->kind->check(s, keys, count, wait, &all);
        if (status != COMM_OK || all)
            return status;
        if (store_wait_closed(wait))
            return store_fail_closed(wait);
        pause_until(&pause_ns, wait->deadline_ns);
        if (store_wait_over(wait))
            return store_fail_missing(s, keys, count, wait, NULL);
    }
}

comm_status store_call_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    if (count == 0)
        return COMM_OK;
    return s->kind->wait ? s->kind->wait(s, keys, count, wait) : poll_for_keys(s, keys, count, wait);
}

/* ---- Keys of our own ---- */

/* "KEY/suffix". Gives (free); NULL with a text if there is no memory or it is too long. */
static char *key_beside(const char *key, const char *suffix)
{
    size_t key_bytes = strlen(key), bytes = key_bytes + strlen(suffix);
    if (bytes > LIMIT_STORE_KEY_BYTES) {
        comm__fail(COMM_ERR_INVALID,
                   "the key '%.60s...' is too long here: with '%s' it has %zu B, the longest has %zu B", key, suffix,
                   bytes, LIMIT_STORE_KEY_BYTES);
        return NULL;
    }
    char *whole = malloc(bytes + 1);
    if (!whole) {
        comm__fail(COMM_ERR_NO_MEMORY, "no memory for a key");
        return NULL;
    }
    memcpy(whole, key, key_bytes);
    memcpy(whole + key_bytes, suffix, bytes - key_bytes + 1);
    return whole;
}

static comm_status status_of_key(const char *key, const char *suffix)
{
    return strlen(key) + strlen(suffix) > LIMIT_STORE_KEY_BYTES ? COMM_ERR_INVALID : COMM_ERR_NO_MEMORY;
}

void store_nonce(char nonce[STORE_NONCE_BYTES])
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = (uint64_t)clock_now_ns() ^ (uint64_t)(uintptr_t)nonce;
    snprintf(nonce, STORE_NONCE_BYTES, "%d %016" PRIx64 " %016" PRIx64, (int)getpid(), random,
             (uint64_t)clock_now_ns());
}

static int equals(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return a_bytes == b_bytes && (a_bytes == 0 || memcmp(a, b, a_bytes) == 0);
}

/* Make `key` if it is not there. *ret_ours says whether it holds `value` now. */
static comm_status claim(comm_store *s, const char *key, const char *value, const struct store_wait *wait,
                         int *ret_ours)
{
    void *now = NULL;
    size_t now_bytes = 0;
    comm_status status = s->kind->compare_set(s, key, "", 0, value, strlen(value), wait, &now, &now_bytes);
    *ret_ours = status == COMM_OK && equals(now, now_bytes, value, strlen(value));
    free(now);
    return status;
}

/* ---- Append ---- */

static struct store_wait at_once(const struct store_wait *wait)
{
    struct store_wait soon = { clock_now_ns(), clock_deadline_ns(AT_ONCE_MS), wait->handle };
    if (soon.deadline_ns > wait->deadline_ns)
        soon.deadline_ns = wait->deadline_ns;
    return soon;
}

/* One try, alone: *ret_done is 0 if another process set the value meanwhile. */
static comm_status append_once(comm_store *s, const char *key, const void *data, size_t bytes,
                               const struct store_wait *wait, int *ret_done)
{
    void *old = NULL, *now = NULL;
    size_t old_bytes = 0, now_bytes = 0;
    int32_t there = 0;
    struct store_wait soon = at_once(wait);
    *ret_done = 0;
    comm_status status = s->kind->check(s, &key, 1, wait, &there);
    if (status == COMM_OK && there) {
        status = s->kind->get(s, key, &soon, &old, &old_bytes);
        if (status == COMM_ERR_TIMEOUT && !store_wait_over(wait))
            return COMM_OK; /* deleted in between */
    }
    if (status == COMM_OK && bytes > LIMIT_STORE_VALUE_BYTES - old_bytes)
        status = comm__fail(COMM_ERR_INVALID, "append %zu B to '%s': its value would be %zu B; the limit is %zu B",
                            bytes, key, old_bytes + bytes, LIMIT_STORE_VALUE_BYTES);
    char *joined = status == COMM_OK ? malloc(old_bytes + bytes + 1) : NULL;
    if (status == COMM_OK && !joined)
        status = comm__fail(COMM_ERR_NO_MEMORY, "append to '%s': no memory for %zu B", key, old_bytes + bytes);
    if (joined) {
        if (old_bytes)
            memcpy(joined, old, old_bytes);
        if (bytes)
            memcpy(joined + old_bytes, data, bytes);
        status = s->kind->compare_set(s, key, old, old_bytes, joined, old_bytes + bytes, wait, &now,
                                      &now_bytes);
    }
    *ret_done = status == COMM_OK && equals(now, now_bytes, joined, old_bytes + bytes);
    free(old);
    free(now);
    free(joined);
    return status;
}

/* compare_set alone is not enough: if two clients appended the same bytes, both would find what they wanted, but only
 * the bytes of one would be there. So clients append one at a time, by a key that names the client whose turn it is. */
static comm_status append_in_turn(comm_store *s, const char *key, const void *data, size_t bytes,
                                  const struct store_wait *wait)
{
    char *turn = key_beside(key, "/appending"), nonce[STORE_NONCE_BYTES];
    if (!turn)
        return status_of_key(key, "/appending");
    store_nonce(nonce);
    int64_t pause_ns = PAUSE_FIRST_NS;
    int ours = 0, done = 0;
    comm_status status = claim(s, turn, nonce, wait, &ours);
    while (status == COMM_OK && !ours && !store_wait_over(wait)) {
        if (store_wait_closed(wait))
            status = store_fail_closed(wait);
        pause_until(&pause_ns, wait->deadline_ns);
        if (status == COMM_OK && !store_wait_over(wait))
            status = claim(s, turn, nonce, wait, &ours);
    }
    if (status == COMM_OK && !ours)
        status =
            comm__fail(COMM_ERR_TIMEOUT,
                       "append to '%s' in %s timed out: another process has been appending for %lld ms; if it has "
                       "died, delete '%s'",
                       key, s->url, store_wait_ms(wait), turn);
    while (status == COMM_OK && !done)
        status = append_once(s, key, data, bytes, wait, &done);
    struct store_wait grace = store_grace(wait);
    if (ours && status == COMM_OK) {
        status = s->kind->remove(s, turn, &grace, &(int32_t){ 0 });
    } else if (ours) {
        char text[COMM_ERROR_BYTES];
        snprintf(text, sizeof text, "%s", comm_last_error());
        s->kind->remove(s, turn, &grace, &(int32_t){ 0 });
        comm__fail(status, "%s", text);
    }
    free(turn);
    return status;
}

comm_status store_call_append(comm_store *s, const char *key, const void *data, size_t bytes,
                              const struct store_wait *wait)
{
    comm_status status = s->kind->append ? s->kind->append(s, key, data, bytes, wait) : COMM_ERR_UNSUPPORTED;
    return status == COMM_ERR_UNSUPPORTED ? append_in_turn(s, key, data, bytes, wait) : status;
}

/* ---- Looking at all keys: nothing can stand in ---- */

static comm_status lacks(const comm_store *s, const char *what)
{
    return comm__fail(COMM_ERR_UNSUPPORTED, "a store of kind '%s' has no %s", s->kind->name, what);
}

comm_status store_call_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count)
{
    if (s->kind->num_keys)
        return s->kind->num_keys(s, wait, ret_count);
    if (!s->kind->list_keys)
        return lacks(s, "num_keys");
    char **keys = NULL;
    size_t count = 0;
    comm_status status = s->kind->list_keys(s, wait, &keys, &count);
    free(keys);
    if (status == COMM_OK)
        *ret_count = (int64_t)count;
    return status;
}

comm_status store_call_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count)
{
    return s->kind->list_keys ? s->kind->list_keys(s, wait, ret_keys, ret_count) : lacks(s, "list_keys");
}

/* ---- Several at once ---- */

comm_status store_call_multi_get(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                                 void **data, size_t *bytes)
{
    if (s->kind->multi_get)
        return s->kind->multi_get(s, keys, count, wait, data, bytes);
    comm_status status = store_call_wait(s, keys, count, wait);
    size_t got = 0;
    while (status == COMM_OK && got < count) {
        status = s->kind->get(s, keys[got], wait, &data[got], &bytes[got]);
        got += status == COMM_OK;
    }
    while (status != COMM_OK && got > 0) {
        free(data[--got]);
        data[got] = NULL;
    }
    return status;
}

comm_status store_call_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                 const size_t *bytes, const struct store_wait *wait)
{
    if (s->kind->multi_set)
        return s->kind->multi_set(s, keys, count, data, bytes, wait);
    comm_status status = COMM_OK;
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        status = s->kind->set(s, keys[i], data[i], bytes[i], wait);
    return status;
}

/* ---- Queues ----
 *
 * Two counters give out numbers, "pushed" and "popped", and the n-th push and the n-th pop meet at the key of number n.
 * A pop that gives up leaves a mark there, and the push that finds it takes another number. */

#define QUEUE_PUSHED "/queue/pushed"
#define QUEUE_POPPED "/queue/popped"
static const char GIVEN_UP[] = "-"; /* an item is "+" and its value */

/* Count one up or look; the number before. */
static comm_status count_at(comm_store *s, const char *key, const char *suffix, int64_t amount,
                            const struct store_wait *wait, int64_t *ret_before)
{
    char *whole = key_beside(key, suffix);
    if (!whole)
        return status_of_key(key, suffix);
    int64_t after = 0;
    comm_status status = s->kind->add(s, whole, amount, wait, &after);
    free(whole);
    *ret_before = after - amount;
    return status;
}

static void item_suffix(char suffix[40], int64_t number)
{
    snprintf(suffix, 40, "/queue/%" PRId64, number);
}

static comm_status push_as(comm_store *s, const char *key, const char *item, size_t bytes,
                           const struct store_wait *wait, int *ret_done)
{
    int64_t number;
    char suffix[40];
    void *now = NULL;
    size_t now_bytes = 0;
    *ret_done = 0;
    comm_status status = count_at(s, key, QUEUE_PUSHED, 1, wait, &number);
    if (status != COMM_OK)
        return status;
    item_suffix(suffix, number);
    char *at = key_beside(key, suffix);
    if (!at)
        return status_of_key(key, suffix);
    struct store_wait grace = store_grace(wait); /* a number without an item holds up its pop */
    status = s->kind->compare_set(s, at, "", 0, item, bytes, &grace, &now, &now_bytes);
    *ret_done = status == COMM_OK && equals(now, now_bytes, item, bytes);
    if (status == COMM_OK && !*ret_done) /* given up: no process will look there again */
        status = s->kind->remove(s, at, &grace, &(int32_t){ 0 });
    free(now);
    free(at);
    return status;
}

comm_status store_call_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                                  const struct store_wait *wait)
{
    if (s->kind->queue_push)
        return s->kind->queue_push(s, key, data, bytes, wait);
    char *item = malloc(bytes + 1);
    if (!item)
        return comm__fail(COMM_ERR_NO_MEMORY, "queue_push to '%s': no memory for %zu B", key, bytes);
    item[0] = '+';
    if (bytes)
        memcpy(item + 1, data, bytes);
    int done = 0;
    comm_status status = COMM_OK;
    while (status == COMM_OK && !done)
        status = push_as(s, key, item, bytes + 1, wait, &done);
    free(item);
    return status;
}

/* The number `at` is ours. Wait for its item; on any failure give the number up, unless the item came meanwhile. */
static comm_status pop_at(comm_store *s, const char *at, const struct store_wait *wait, void **ret_data,
                          size_t *ret_bytes)
{
    void *data = NULL;
    size_t bytes = 0;
    struct store_wait grace = store_grace(wait);
    comm_status status = s->kind->get(s, at, wait, &data, &bytes);
    if (status != COMM_OK) {
        char text[COMM_ERROR_BYTES];
        snprintf(text, sizeof text, "%s", comm_last_error());
        comm_status marked = s->kind->compare_set(s, at, "", 0, GIVEN_UP, 1, &grace, &data, &bytes);
        if (marked != COMM_OK || equals(data, bytes, GIVEN_UP, 1)) {
            if (marked == COMM_OK)
                free(data);
            return comm__fail(status, "%s", text);
        }
    }
    memmove(data, (char *)data + 1, bytes); /* and the NUL */
    *ret_data = data;
    *ret_bytes = bytes - 1;
    s->kind->remove(s, at, &grace, &(int32_t){ 0 }); /* if that fails, a key is left over that is never read */
    return COMM_OK;
}

static comm_status queue_has(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    int64_t pushed = 0, popped = 0;
    comm_status status = count_at(s, key, QUEUE_POPPED, 0, wait, &popped);
    if (status == COMM_OK)
        status = count_at(s, key, QUEUE_PUSHED, 0, wait, &pushed);
    *ret_count = pushed > popped ? pushed - popped : 0;
    return status;
}

static comm_status pop_in_turn(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                               size_t *ret_bytes)
{
    int64_t number;
    char suffix[40];
    comm_status status = count_at(s, key, QUEUE_POPPED, 1, wait, &number);
    if (status != COMM_OK)
        return status;
    item_suffix(suffix, number);
    char *at = key_beside(key, suffix);
    if (!at)
        return status_of_key(key, suffix);
    status = pop_at(s, at, wait, ret_data, ret_bytes);
    free(at);
    return status == COMM_ERR_TIMEOUT ? store_fail_queue_timeout(wait, key, NULL) : status;
}

comm_status store_call_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                 void **ret_data, size_t *ret_bytes)
{
    if (s->kind->queue_pop)
        return s->kind->queue_pop(s, key, wait, may_wait, ret_data, ret_bytes);
    if (may_wait)
        return pop_in_turn(s, key, wait, ret_data, ret_bytes);
    int64_t count = 0;
    comm_status status = queue_has(s, key, wait, &count);
    struct store_wait soon = at_once(wait);
    if (status == COMM_OK && count > 0)
        status = pop_in_turn(s, key, &soon, ret_data, ret_bytes);
    if ((status == COMM_ERR_TIMEOUT && !store_wait_over(wait)) || (status == COMM_OK && count == 0))
        return comm__fail(COMM_ERR_NOT_FOUND, "queue_pop: the queue '%s' is empty", key);
    return status;
}

comm_status store_call_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    return s->kind->queue_len ? s->kind->queue_len(s, key, wait, ret_count) : queue_has(s, key, wait, ret_count);
}

/* ---- Barrier ---- */

comm_status store_call_barrier(comm_store *s, const char *key, int32_t world_size, const struct store_wait *wait)
{
    comm_status status = s->kind->barrier ? s->kind->barrier(s, key, world_size, wait) : COMM_ERR_UNSUPPORTED;
    if (status != COMM_ERR_UNSUPPORTED)
        return status;
    char *members = key_beside(key, "/num_members"), *last = members ? key_beside(key, "/last_member") : NULL;
    status = last ? COMM_OK : status_of_key(key, "/num_members");
    int64_t came = 0;
    struct store_wait grace = store_grace(wait);
    if (status == COMM_OK)
        status = s->kind->add(s, members, 1, wait, &came);
    if (status == COMM_OK && came >= world_size)
        status = s->kind->set(s, last, "1", 1, &grace);
    else if (status == COMM_OK)
        status = store_call_wait(s, (const char *const *)&last, 1, wait);
    if (status == COMM_ERR_TIMEOUT && s->kind->add(s, members, 0, &grace, &came) == COMM_OK)
        store_fail_barrier(wait, key, came, world_size);
    free(members);
    free(last);
    return status;
}
