/* Variables in the environment that look like libcomm's, and are not: a setting with such a name has no effect. */
#include "base/misspelt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"

enum { NAME_BYTES = 64, PREFIX_BYTES = 5 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* So many letters must be put in, left out or replaced to make one name of the other. */
static int distance(const char *a, const char *b)
{
    int row[NAME_BYTES + 1];
    const int length = (int)strlen(b);
    for (int j = 0; j <= length; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= length; j++) {
            const int above = row[j];
            row[j] = least(diagonal + (a[i] != b[j - 1]), 1 + least(above, row[j - 1]));
            diagonal = above;
        }
    }
    return row[length];
}

/* May `known` be what was meant? One letter in four may be wrong, or its last words be left out. */
static int resembles(const char *name, const char *known)
{
    const size_t length = strlen(name);
    if (strlen(known) > NAME_BYTES)
        return 0;
    return (strncmp(name, known, length) == 0 && known[length] == '_') ||
           4 * distance(name + PREFIX_BYTES, known + PREFIX_BYTES) <= (int)length - PREFIX_BYTES;
}

/* The backend whose parameters begin as this name does: COMM_SHM_TCP_ALGO is of shm-tcp. "": none. */
static const char *scope_of(const char *name, const char *scope, const char *best)
{
    size_t i = 0;
    for (; scope[i]; i++) {
        const char c = scope[i] == '-' ? '_' : scope[i];
        if (name[PREFIX_BYTES + i] != (c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c))
            return best;
    }
    return name[PREFIX_BYTES + i] == '_' && i > strlen(best) ? scope : best;
}

static void check(const char *name)
{
    const char *meant = NULL, *scope = "";
    for (size_t i = 0; i < comm__param_count(); i++) {
        const comm_param_info p = comm__param_listed(i);
        if (strcmp(p.env, name) == 0)
            return;
        if (!meant && resembles(name, p.env))
            meant = p.env;
        scope = scope_of(name, p.scope, scope);
    }
    if (meant)
        comm__log(COMM_LOG_WARN, "%s is set, and is no variable of libcomm's; is %s meant?", name, meant);
    else if (*scope)
        comm__log(COMM_LOG_WARN, "%s is set, but backend '%s' has no such parameter; comm-info lists them", name,
                  scope);
}

void comm__misspelt_warn(void)
{
    if (!comm__log_wanted(COMM_LOG_WARN)) /* says what is wrong with COMM_LOG, too */
        return;
    for (char **variable = environ; variable && *variable; variable++) {
        char name[NAME_BYTES];
        const size_t length = strcspn(*variable, "=");
        if (strncmp(*variable, "COMM_", PREFIX_BYTES) != 0 || length >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length, *variable);
        check(name);
    }
}
