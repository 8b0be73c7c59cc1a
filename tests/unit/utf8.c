/* What others wrote becomes valid UTF-8 without control characters, and is never cut within a character. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"

static void assert_cleaned(const char *text, const char *expected)
{
    char *copy = strdup(text);
    utf8_clean_string(copy);
    assert_string_equal(copy, expected);
    free(copy);
}

static void what_is_well_formed_stays(void **state)
{
    (void)state;
    assert_cleaned("", "");
    assert_cleaned("rank 2 (node-b 10.0.0.7:40213)", "rank 2 (node-b 10.0.0.7:40213)");
    assert_cleaned("Gr\xc3\xbc\xc3\x9f"
                   "e \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf",
                   "Gr\xc3\xbc\xc3\x9f"
                   "e \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf");
}

static void control_characters_do_not(void **state)
{
    (void)state;
    assert_cleaned("a\033[2J\n\tb\177", "a?[2J??b?");
    assert_cleaned("\xc2\x80\xc2\x9b" "31m\xc2\xa0", "??31m\xc2\xa0");          /* C1; U+00A0 is none */
    /* overrides and isolates */
    assert_cleaned("\xe2\x80\xae" "evil\xe2\x80\xac\xe2\x81\xa6x\xe2\x81\xa9", "?evil??x?");
    assert_cleaned("\xe2\x80\xa8\xe2\x80\x8e\xd8\x9c\xef\xbb\xbf", "????");
}

static void what_is_no_utf8_does_not(void **state)
{
    (void)state;
    assert_cleaned("\xff\xfe x", "?? x");
    assert_cleaned("\x80y", "?y");
    assert_cleaned("\xc0\xaf", "??");             /* overlong */
    assert_cleaned("\xe0\x80\xaf", "???");
    assert_cleaned("\xed\xa0\x80", "???");        /* a surrogate */
    assert_cleaned("\xf4\x90\x80\x80", "????");   /* beyond U+10FFFF */
    assert_cleaned("\xe2\x82x", "??x");
}

static void a_character_that_is_cut_off_is_dropped(void **state)
{
    (void)state;
    assert_cleaned("ab\xe2\x82", "ab");
    assert_cleaned("ab\xc3", "ab");
    assert_cleaned("ab\xf0\x9f\x98", "ab");
    static const char euros[] = "\xe2\x82\xac\xe2\x82\xac";
    assert_int_equal(utf8_cut(euros, 5), 3);
    assert_int_equal(utf8_cut(euros, 3), 3);
    assert_int_equal(utf8_cut(euros, 2), 0);
    assert_int_equal(utf8_cut("abc", 2), 2);
}

/* Whatever the bytes: the result is clean, not longer, and cleaning it again changes nothing. */
static void any_bytes(void **state)
{
    (void)state;
    uint32_t random = 12345;
    for (int i = 0; i < 20000; i++) {
        char text[24], again[24];
        size_t bytes = (random >> 8) % sizeof text;
        for (size_t k = 0; k < bytes; k++) {
            random = random * 1664525u + 1013904223u;
            text[k] = (char)(random >> 24);
        }
        size_t left = utf8_clean(text, bytes);
        assert_true(left <= bytes);
        memcpy(again, text, left);
        assert_int_equal(utf8_clean(again, left), left);
        assert_memory_equal(again, text, left);
        for (size_t k = 0; k < left;) {
            uint32_t c;
            int length = utf8_length((const unsigned char *)text + k, left - k, &c);
            assert_true(length > 0 && !utf8_is_control(c));
            k += (size_t)length;
        }
    }
}

static char logged[COMM_ERROR_BYTES];

static void keep(int32_t level, const char *text, void *context)
{
    (void)level, (void)context;
    memcpy(logged, text, strlen(text) + 1);
}

static void errors_and_log_lines_are_clean(void **state)
{
    char long_text[2 * COMM_ERROR_BYTES + 1] = "";
    (void)state;
    comm__fail(COMM_ERR_INVALID, "the key '%s'", "a\nb\xff\xc2\x9b");
    assert_string_equal(comm_last_error(), "the key 'a?b?" "?'");
    for (size_t i = 0; i + 3 < sizeof long_text; i += 3)
        memcpy(long_text + i, "\xe2\x82\xac", 4);
    for (int offset = 0; offset < 3; offset++) {
        comm__fail(COMM_ERR_INVALID, "%.*s%s", offset, "ab", long_text);
        assert_true(strlen(comm_last_error()) > COMM_ERROR_BYTES - 5);
        assert_null(strchr(comm_last_error(), '?'));
        assert_int_equal((strlen(comm_last_error()) - (size_t)offset) % 3, 0);
    }
    comm_log_set(keep, NULL);
    comm__log(COMM_LOG_ERROR, "host '%s'", "\033[31m\xed\xa0\x80");
    comm_log_set(NULL, NULL);
    assert_string_equal(logged, "host '?[31m?" "?" "?'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_well_formed_stays),
        cmocka_unit_test(control_characters_do_not),
        cmocka_unit_test(what_is_no_utf8_does_not),
        cmocka_unit_test(a_character_that_is_cut_off_is_dropped),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(errors_and_log_lines_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
