/* Names, sizes and legal pairs, as comm.h gives them and as docs/reduce.md shows them. Usage: dtype DOCS_REDUCE_MD. */
#include <comm/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *page_path;

static const struct {
    comm_dtype dtype;
    const char *name;
    size_t bytes;
} dtypes[] = {
    { COMM_DTYPE_I8, "i8", 1 },   { COMM_DTYPE_U8, "u8", 1 },         { COMM_DTYPE_I16, "i16", 2 },
    { COMM_DTYPE_U16, "u16", 2 }, { COMM_DTYPE_I32, "i32", 4 },       { COMM_DTYPE_U32, "u32", 4 },
    { COMM_DTYPE_I64, "i64", 8 }, { COMM_DTYPE_U64, "u64", 8 },       { COMM_DTYPE_BOOL, "bool", 1 },
    { COMM_DTYPE_F16, "f16", 2 }, { COMM_DTYPE_BF16, "bf16", 2 },     { COMM_DTYPE_F32, "f32", 4 },
    { COMM_DTYPE_F64, "f64", 8 }, { COMM_DTYPE_F8E4M3, "f8e4m3", 1 }, { COMM_DTYPE_F8E5M2, "f8e5m2", 1 },
    { COMM_DTYPE_C64, "c64", 8 }, { COMM_DTYPE_C128, "c128", 16 },    { COMM_DTYPE_BYTE, "byte", 1 },
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static const char *const redops[] = {
    "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "user"
};
enum { REDOPS = sizeof redops / sizeof *redops };

static void names_and_sizes_are_those_of_the_header(void **state)
{
    (void)state;
    for (size_t i = 0; i < DTYPES; i++) {
        comm_dtype parsed = -1;
        assert_string_equal(comm_dtype_name(dtypes[i].dtype), dtypes[i].name);
        assert_int_equal(comm_dtype_bytes(dtypes[i].dtype), dtypes[i].bytes);
        assert_int_equal(comm_dtype_parse(dtypes[i].name, &parsed), COMM_OK);
        assert_int_equal(parsed, dtypes[i].dtype);
    }
    for (int32_t i = 0; i < REDOPS; i++) {
        comm_redop parsed = -1;
        assert_string_equal(comm_redop_name(i), redops[i]);
        assert_int_equal(comm_redop_parse(redops[i], &parsed), COMM_OK);
        assert_int_equal(parsed, i);
    }
}

static void unknown_numbers_have_no_name(void **state)
{
    (void)state;
    static const int32_t unknown[] = { INT32_MIN, -1, 0, DTYPES + 1, 99, INT32_MAX };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_null(comm_dtype_name(unknown[i]));
        assert_int_equal(comm_dtype_bytes(unknown[i]), 0);
        assert_false(comm_redop_supports(COMM_REDOP_SUM, unknown[i]));
        if (unknown[i] != 0) {
            assert_null(comm_redop_name(unknown[i]));
            assert_false(comm_redop_supports(unknown[i], COMM_DTYPE_F32));
        }
    }
}

static void unknown_names_are_answered_with_the_list(void **state)
{
    (void)state;
    comm_dtype dtype = 77;
    comm_redop redop = 77;
    static const char *const wrong[] = { "", "f", "f321", "F32", "float", "f32 " };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(comm_dtype_parse(wrong[i], &dtype), COMM_ERR_INVALID);
        for (size_t d = 0; d < DTYPES; d++)
            assert_non_null(strstr(comm_last_error(), dtypes[d].name));
        assert_int_equal(comm_redop_parse(wrong[i], &redop), COMM_ERR_INVALID);
        for (size_t r = 0; r < REDOPS; r++)
            assert_non_null(strstr(comm_last_error(), redops[r]));
    }
    assert_int_equal(dtype, 77);
    assert_int_equal(redop, 77);
    assert_int_equal(comm_dtype_parse(NULL, &dtype), COMM_ERR_INVALID);
    assert_int_equal(comm_dtype_parse("f32", NULL), COMM_ERR_INVALID);
    assert_int_equal(comm_redop_parse(NULL, &redop), COMM_ERR_INVALID);
    assert_int_equal(comm_redop_parse("sum", NULL), COMM_ERR_INVALID);
    static char endless[100000];
    memset(endless, 'x', sizeof endless - 1);
    assert_int_equal(comm_dtype_parse(endless, &dtype), COMM_ERR_INVALID);
}

/* comm.h, section 2, in other words. */
static void pairs_are_those_of_the_header(void **state)
{
    (void)state;
    for (comm_redop redop = 0; redop < REDOPS; redop++)
        for (comm_dtype dtype = 1; dtype < COMM_DTYPE_END; dtype++) {
            int boolean = dtype == COMM_DTYPE_BOOL, complex = dtype == COMM_DTYPE_C64 || dtype == COMM_DTYPE_C128;
            int integer = dtype <= COMM_DTYPE_U64, takes = 1;
            if (redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM)
                takes = !boolean;
            else if (redop == COMM_REDOP_MIN || redop == COMM_REDOP_MAX)
                takes = !complex;
            else if (redop == COMM_REDOP_BAND || redop == COMM_REDOP_BOR || redop == COMM_REDOP_BXOR)
                takes = integer || boolean;
            takes = takes && (dtype != COMM_DTYPE_BYTE || redop == COMM_REDOP_USER);
            if (comm_redop_supports(redop, dtype) != takes)
                fail_msg("%s of %s is %staken", redops[redop], comm_dtype_name(dtype), takes ? "not " : "");
        }
}

/* The rows of the page's table: "| `f32` | 4 | yes | ..." in the order of the redops. */
static int write_row(size_t i, char *row, size_t capacity)
{
    int used = snprintf(row, capacity, "| `%s` | %zu |", dtypes[i].name, dtypes[i].bytes);
    for (comm_redop redop = 0; redop < REDOPS; redop++)
        used += snprintf(row + used, capacity - (size_t)used, " %s |",
                         comm_redop_supports(redop, dtypes[i].dtype) ? "yes" : "–");
    return used;
}

static void the_page_shows_these_pairs(void **state)
{
    (void)state;
    static char page[1 << 16];
    char row[400] = "| dtype | bytes |";
    FILE *file = fopen(page_path, "r");
    assert_non_null(file);
    size_t length = fread(page, 1, sizeof page - 1, file);
    fclose(file);
    assert_true(length < sizeof page - 1);
    for (size_t r = 0; r < REDOPS; r++)
        snprintf(row + strlen(row), sizeof row - strlen(row), " %s |", redops[r]);
    for (size_t i = 0; i <= DTYPES; i++) {
        if (!strstr(page, row))
            fail_msg("%s lacks the row\n%s", page_path, row);
        if (i < DTYPES)
            write_row(i, row, sizeof row);
    }
    size_t rows = 0;
    for (const char *at = page; (at = strstr(at, "\n| `")); at++)
        rows++;
    assert_int_equal(rows, DTYPES);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s DOCS_REDUCE_MD\n", argv[0]);
        return 2;
    }
    page_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes_are_those_of_the_header),
        cmocka_unit_test(unknown_numbers_have_no_name),
        cmocka_unit_test(unknown_names_are_answered_with_the_list),
        cmocka_unit_test(pairs_are_those_of_the_header),
        cmocka_unit_test(the_page_shows_these_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
