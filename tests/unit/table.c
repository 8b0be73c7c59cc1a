/* The store's table beside a model: the same random calls on both, with few keys, so that they collide, are deleted and
 * come again, and the table grows. table [SEED]. */
#include "store/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "random.h"

enum { KEYS = 200, VALUE_MAX = 40, QUEUE_MAX = 8, STEPS = 20000 };

static uint64_t seed, state;
static int step;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: %s is not so, in step %d of seed %" PRIu64 "\n", __FILE__, __LINE__, #condition, step,      \
                   seed);                                                                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct value {
    char data[4096];
    size_t bytes;
};

/* What the table should hold. */
static struct {
    int there;
    struct value value;
    struct value queue[QUEUE_MAX];
    size_t queued;
} model[KEYS];

static struct table_bytes key_of(size_t k)
{
    static char text[32];
    return (struct table_bytes){ text, (size_t)snprintf(text, sizeof text, "key/%zu", k) };
}

static struct value random_value(void)
{
    struct value value = { .bytes = random_below(&state, VALUE_MAX) };
    for (size_t i = 0; i < value.bytes; i++)
        value.data[i] = (char)('0' + random_below(&state, 10));
    return value;
}

static struct table_bytes bytes_of(const struct value *value)
{
    return (struct table_bytes){ value->data, value->bytes };
}

static int same(struct table_bytes a, const struct value *b)
{
    return a.bytes == b->bytes && memcmp(a.data, b->data, b->bytes) == 0 && ((const char *)a.data)[a.bytes] == '\0';
}

static void check_key(const struct table *t, size_t k)
{
    struct table_bytes value;
    CHECK(table_get(t, key_of(k), &value) == model[k].there);
    CHECK(!model[k].there || same(value, &model[k].value));
    CHECK(table_queue_len(t, key_of(k)) == model[k].queued);
    CHECK(table_queue_first(t, key_of(k), &value) == (model[k].queued > 0));
    CHECK(!model[k].queued || same(value, &model[k].queue[0]));
}

/* All of it, and the walk over all keys finds each once. */
static void check_all(const struct table *t)
{
    size_t count = 0, walked = 0, cursor = 0;
    int seen[KEYS] = { 0 };
    struct table_bytes key, value;
    for (size_t k = 0; k < KEYS; k++) {
        check_key(t, k);
        count += model[k].there;
    }
    for (; table_next(t, &cursor, &key, &value); walked++) {
        char text[32];
        snprintf(text, sizeof text, "%.*s", (int)key.bytes, (const char *)key.data);
        size_t k = strtoul(text + strlen("key/"), NULL, 10);
        CHECK(k < KEYS && !seen[k]++ && model[k].there && same(value, &model[k].value));
    }
    CHECK(walked == count && table_count(t) == count);
}

static void try_set(struct table *t, size_t k)
{
    model[k].value = random_value();
    model[k].there = 1;
    CHECK(table_set(t, key_of(k), bytes_of(&model[k].value)) == COMM_OK);
}

static void try_append(struct table *t, size_t k)
{
    struct value more = random_value();
    if (!model[k].there)
        model[k].value.bytes = 0;
    if (model[k].value.bytes + more.bytes > sizeof model[k].value.data)
        return;
    memcpy(model[k].value.data + model[k].value.bytes, more.data, more.bytes);
    model[k].value.bytes += more.bytes;
    model[k].there = 1;
    CHECK(table_append(t, key_of(k), bytes_of(&more)) == COMM_OK);
}

static void try_add(struct table *t, size_t k)
{
    int64_t amount = (int64_t)random_below(&state, 2000) - 1000, now = 0, was = 0;
    char text[sizeof model[k].value.data + 1];
    snprintf(text, sizeof text, "%.*s", (int)model[k].value.bytes, model[k].value.data);
    if (model[k].there && (!*text || strlen(text) > 15))
        return; /* no number, or one near the limits: tests/store tries those */
    if (model[k].there)
        was = strtoll(text, NULL, 10);
    CHECK(table_add(t, key_of(k), amount, &now) == COMM_OK && now == was + amount);
    model[k].there = 1;
    model[k].value.bytes = (size_t)snprintf(model[k].value.data, sizeof model[k].value.data, "%" PRId64, now);
}

static void try_compare_set(struct table *t, size_t k)
{
    struct value expected = random_one_in(&state, 2) ? model[k].value : random_value(), desired = random_value();
    if (random_one_in(&state, 4))
        expected.bytes = 0;
    int equal = model[k].there ? expected.bytes == model[k].value.bytes &&
                                     memcmp(expected.data, model[k].value.data, expected.bytes) == 0
                               : expected.bytes == 0, changed = -1;
    struct table_bytes now;
    CHECK(table_compare_set(t, key_of(k), bytes_of(&expected), bytes_of(&desired), &now, &changed) == COMM_OK);
    CHECK(changed == equal);
    if (equal) {
        model[k].there = 1;
        model[k].value = desired;
    }
    const struct value *left = model[k].there ? &model[k].value : &expected;
    CHECK(now.bytes == left->bytes && memcmp(now.data, left->data, left->bytes) == 0);
}

static void try_push(struct table *t, size_t k)
{
    if (model[k].queued == QUEUE_MAX)
        return;
    struct value item = random_value();
    model[k].queue[model[k].queued++] = item;
    CHECK(table_queue_push(t, key_of(k), bytes_of(&item)) == COMM_OK);
}

static void try_pop(struct table *t, size_t k)
{
    void *data = NULL;
    size_t bytes = 0;
    int was_there = model[k].queued > 0;
    CHECK(table_queue_pop(t, key_of(k), &data, &bytes) == was_there);
    if (!was_there)
        return;
    CHECK(same((struct table_bytes){ data, bytes }, &model[k].queue[0]));
    memmove(&model[k].queue[0], &model[k].queue[1], --model[k].queued * sizeof model[k].queue[0]);
    free(data);
}

static void try_remove(struct table *t, size_t k)
{
    CHECK(table_remove(t, key_of(k)) == model[k].there);
    model[k].there = 0;
}

static void (*const calls[])(struct table *t, size_t k) = { try_set,  try_append, try_add,    try_compare_set,
                                                            try_push, try_pop,    try_remove, try_remove };

static void run(uint64_t of_seed)
{
    struct table *t;
    seed = state = of_seed;
    memset(model, 0, sizeof model);
    CHECK(table_create(&t) == COMM_OK);
    for (step = 0; step < STEPS; step++) {
        size_t keys = step % 4000 < 2000 ? 12 : KEYS; /* a table that is small, and one that has been larger */
        size_t k = random_below(&state, keys);
        calls[random_below(&state, sizeof calls / sizeof calls[0])](t, k);
        check_key(t, k);
        if (step % 50 == 0)
            check_all(t);
    }
    check_all(t);
    table_destroy(t);
}

int main(int argc, char **argv)
{
    for (uint64_t s = 1; argc < 2 && s <= 3; s++)
        run(s);
    uint64_t fresh = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %" PRIu64 "\n", fresh);
    run(fresh);
    return 0;
}
