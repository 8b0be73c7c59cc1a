/* Cards: what was noted is found again, among those of others; and whatever a store gives in their place, nothing is
 * read beyond it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cards.h"

static void check_found(struct cards *c, const char *backend, const char *key, const char *expected)
{
    void *data = NULL;
    size_t bytes = 0;
    comm_status status = comm__cards_find(c, backend, key, &data, &bytes);
    assert_int_equal(status, expected ? COMM_OK : COMM_ERR_NOT_FOUND);
    if (!expected)
        return;
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(data, expected, bytes + 1);
    free(data);
}

static void what_was_noted_is_found(void **state)
{
    struct cards ranks[3] = { 0 };
    char all[1000];
    size_t used = 0, bytes;
    (void)state;
    for (int r = 0; r < 3; r++) {
        char key[16], value[32];
        comm__cards_init(&ranks[r]);
        snprintf(key, sizeof key, "tcp/%d", r);
        snprintf(value, sizeof value, "host %d\n1 2 3\n", r);
        comm__cards_note(&ranks[r], "tcp", key, "an earlier value", 16);
        comm__cards_note(&ranks[r], "tcp", key, value, strlen(value));
        comm__cards_note(&ranks[r], "other", key, "", 0);
        const char *own = comm__cards_own(&ranks[r], &bytes);
        memcpy(all + used, own, bytes);
        used += bytes;
        comm__cards_note(&ranks[r], "tcp", "too late", "x", 1);
    }
    comm__cards_take(&ranks[1], all, used);
    check_found(&ranks[1], "tcp", "tcp/0", "host 0\n1 2 3\n");
    check_found(&ranks[1], "tcp", "tcp/2", "host 2\n1 2 3\n");
    check_found(&ranks[1], "other", "tcp/2", "");
    check_found(&ranks[1], "tcp", "tcp/3", NULL);
    check_found(&ranks[1], "tc", "p/tcp/2", NULL);
    check_found(&ranks[1], "tcp", "too late", NULL);
    check_found(&ranks[0], "tcp", "tcp/0", NULL); /* nothing was handed out to it */
    for (int r = 0; r < 3; r++)
        comm__cards_finish(&ranks[r]);
}

static void what_does_not_fit_is_left_out(void **state)
{
    struct cards c = { 0 };
    static char large[10000];
    size_t bytes;
    (void)state;
    comm__cards_init(&c);
    comm__cards_note(&c, "tcp", "large", large, sizeof large);
    comm__cards_note(&c, "tcp", "small", "x", 1);
    const char *own = comm__cards_own(&c, &bytes);
    assert_true(bytes < 40);
    comm__cards_take(&c, own, bytes);
    check_found(&c, "tcp", "large", NULL);
    check_found(&c, "tcp", "small", "x");
    comm__cards_finish(&c);
}

static void nonsense_is_not_read_beyond_its_end(void **state)
{
    static const char *const texts[] = { "",
                                         " ",
                                         "5",
                                         "5 ",
                                         "9 1 tcp/a",
                                         "5 99 tcp/ab",
                                         "-1 1 x",
                                         "5 -1 tcp/a",
                                         "99999999999999999999 1 tcp/a",
                                         "5 18446744073709551615 tcp/a",
                                         "x 1 tcp/a" };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct cards c = { 0 };
        comm__cards_init(&c);
        comm__cards_take(&c, texts[i], strlen(texts[i]));
        check_found(&c, "tcp", "a", NULL);
        comm__cards_finish(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_noted_is_found),
        cmocka_unit_test(what_does_not_fit_is_left_out),
        cmocka_unit_test(nonsense_is_not_read_beyond_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
