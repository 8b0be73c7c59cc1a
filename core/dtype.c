/* Names and sizes of element types, and reduce ops, and which op takes which type. All of it comes from
 * dtype.def and redop.def. */
#include <comm/comm.h>

#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum kind { INTEGER = 1, BOOL = 2, FLOAT = 4, COMPLEX = 8, RAW = 16 };

struct row {
    const char *name; /* NULL in the gaps of the numbering */
    size_t bytes;
    int32_t kinds;
};

static const struct row dtypes[COMM_DTYPE_END] = {
#define DTYPE(suffix, name, bytes, kind) [COMM_DTYPE_##suffix] = { name, bytes, kind },
#include "dtype.def"
#undef DTYPE
};

static const struct row redops[COMM_REDOP_END] = {
#define REDOP(value, name, kinds) [value] = { name, 0, kinds },
#include "redop.def"
#undef REDOP
};

#define COUNT_OF(table) (int32_t)(sizeof(table) / sizeof *(table))

static const struct row *row_of(const struct row *table, int32_t end, int32_t number)
{
    static const struct row none = { NULL, 0, 0 };
    return number >= 0 && number < end ? &table[number] : &none;
}

/* The number of the row with this name, or INVALID with the list of names. */
static comm_status parse_text(const struct row *table, int32_t end, const char *what, const char *name,
                              int32_t *ret_number)
{
    if (!name || !ret_number)
        return comm__fail(COMM_ERR_INVALID, "parsing a %s: %s is NULL", what, name ? "the result" : "the name");
    char names[256] = "";
    size_t used = 0;
    for (int32_t i = 0; i < end; i++) {
        if (!table[i].name)
            continue;
        if (strcmp(table[i].name, name) == 0) {
            *ret_number = i;
            return COMM_OK;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", table[i].name);
    }
    return comm__fail(COMM_ERR_INVALID, "there is no %s '%.64s'; the names are %s", what, name, names);
}

size_t comm_dtype_bytes(comm_dtype dtype)
{
    return row_of(dtypes, COUNT_OF(dtypes), dtype)->bytes;
}

const char *comm_dtype_name(comm_dtype dtype)
{
    return row_of(dtypes, COUNT_OF(dtypes), dtype)->name;
}

comm_status comm_dtype_parse(const char *name, comm_dtype *ret_dtype)
{
    return parse_text(dtypes, COUNT_OF(dtypes), "dtype", name, ret_dtype);
}

const char *comm_redop_name(comm_redop redop)
{
    return row_of(redops, COUNT_OF(redops), redop)->name;
}

comm_status comm_redop_parse(const char *name, comm_redop *ret_redop)
{
    return parse_text(redops, COUNT_OF(redops), "reduce op", name, ret_redop);
}

int32_t comm_redop_supports(comm_redop redop, comm_dtype dtype)
{
    int32_t takes = row_of(redops, COUNT_OF(redops), redop)->kinds;
    return (takes & row_of(dtypes, COUNT_OF(dtypes), dtype)->kinds) != 0;
}
