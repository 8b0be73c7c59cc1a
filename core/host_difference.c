#include "host_difference.h"

#include <comm/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "host_id.h"
#include "join.h"

/* What a rank of the world has said of its host in its claim (join.c); free() it. NULL: it cannot be told. */
static char *parts_of(const struct world *world, int32_t rank)
{
    char key[32];
    void *claim;
    snprintf(key, sizeof key, "rank/%d", rank);
    if (comm_store_get(world->store, key, JOIN_LOOK_MS, &claim, NULL) != COMM_OK)
        return NULL;
    const char *at = strchr(claim, '\n');
    for (int i = 0; at && i < 2; i++) /* the identity and the cores go before it */
        at = strpbrk(at + 1, " \n");
    char *parts = at && *at == ' ' ? strndup(at + 1, strcspn(at + 1, "\n")) : NULL;
    comm_free(claim);
    return parts;
}

void comm__host_difference(const comm_group *group, char *text, size_t capacity)
{
    const struct world *world = group->world;
    const int32_t *of = group->world_ranks;
    char error[COMM_ERROR_BYTES], difference[HOST_DIFFERENCE_TEXT] = "";
    int32_t r = 1;
    *text = '\0';
    while (r < group->size && world->hosts[of[r]] == world->hosts[of[0]])
        r++;
    if (r == group->size)
        return;
    comm__error_before(error);
    char *one = parts_of(world, of[0]), *other = one ? parts_of(world, of[r]) : NULL;
    if (other)
        comm__host_parts_differ(one, other, difference, sizeof difference);
    if (*difference)
        snprintf(text, capacity, "ranks 0 and %d %s", r, difference);
    free(one);
    free(other);
    comm__error_after(COMM_OK, error);
}
