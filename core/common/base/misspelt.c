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
           4 * distance(name, known) <= (int)length;
}

/* What the parameters of that scope begin with: "COMM_" for the core, "COMM_SHM_TCP_" for shm-tcp. The length, or 0 if
 * this name begins otherwise: it may be of a backend that is not loaded. */
static size_t prefix_of(const char *name, const char *scope)
{
    size_t i = 0;
    if (strcmp(scope, "core") == 0)
        return PREFIX_BYTES;
    for (; scope[i]; i++) {
        const char c = scope[i] == '-' ? '_' : scope[i];
        if (name[PREFIX_BYTES + i] != (c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c))
            return 0;
    }
    return name[PREFIX_BYTES + i] == '_' ? PREFIX_BYTES + i + 1 : 0;
}

static void check(const char *name)
{
    const char *meant = NULL, *backend = NULL;
    size_t longest = PREFIX_BYTES;
    for (size_t i = 0; i < comm__param_count(); i++) {
        const comm_param_info p = comm__param_listed(i);
        const size_t prefix = prefix_of(name, p.scope);
        if (strcmp(p.env, name) == 0)
            return;
        if (prefix && !meant && resembles(name + prefix, p.env + prefix))
            meant = p.env;
        if (prefix > longest) {
            longest = prefix;
            backend = p.scope;
        }
    }
    if (meant)
        comm__log(COMM_LOG_WARN, "%s is set, and is no variable of libcomm's; is %s meant?", name, meant);
    else if (backend)
        comm__log(COMM_LOG_WARN, "%s is set, but backend '%s' has no such parameter; comm-info lists them", name,
                  backend);
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
