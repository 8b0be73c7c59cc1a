/* What a rank that closes its world tells the others by the store: how many collectives it has done in each group. A
 * collective among those does not miss it, however long the other ranks take.
 *
 *   left.RANK        lines "group.ID COUNT", the first one empty; RANK is the world's */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum { READ_MS = 300 };

void note_group(struct group *g)
{
    char line[KEY_BYTES];
    struct world *w = g->world;
    if (atomic_load(&g->ended) || g->pending || g->info->size == 1)
        return;
    size_t bytes = (size_t)snprintf(line, sizeof line, "group.%" PRIx64 " %" PRIu64 "\n", g->info->id, g->collectives);
    pthread_mutex_lock(&w->lock);
    char *note = realloc(w->note, w->note_bytes + bytes + 1); /* NULL: the others will miss this rank */
    if (note) {
        memcpy(note + w->note_bytes, line, bytes + 1);
        w->note = note;
        w->note_bytes += bytes;
    }
    pthread_mutex_unlock(&w->lock);
}

void note_leave(struct world *w)
{
    char key[KEY_BYTES];
    char *text = w->note ? malloc(w->note_bytes + 1) : NULL;
    if (!text)
        return;
    text[0] = '\n';
    memcpy(text + 1, w->note, w->note_bytes);
    snprintf(key, sizeof key, "left.%d", w->info->rank);
    host->store_set(w->info->store, key, text, w->note_bytes + 1);
    free(text);
}

/* It lives as long as the world. The poller's. */
static const char *note_of(struct world *w, int32_t world_rank)
{
    char key[KEY_BYTES];
    void *data;
    size_t bytes;
    if (!w->left)
        w->left = calloc((size_t)w->info->size, sizeof *w->left);
    if (!w->left || w->left[world_rank])
        return w->left ? w->left[world_rank] : NULL;
    snprintf(key, sizeof key, "left.%d", world_rank);
    if (host->store_get(w->info->store, NULL, key, READ_MS, &data, &bytes) != COMM_OK)
        return NULL;
    w->left[world_rank] = strndup(data, bytes);
    host->free_memory(data);
    return w->left[world_rank];
}

int note_read(struct group *g, int rank, uint64_t *ret_count)
{
    char line[KEY_BYTES];
    const char *note = note_of(g->world, g->info->world_ranks[rank]);
    snprintf(line, sizeof line, "\ngroup.%" PRIx64 " ", g->info->id);
    const char *at = note ? strstr(note, line) : NULL;
    if (at)
        *ret_count = strtoull(at + strlen(line), NULL, 10);
    return at != NULL;
}

void notes_free(struct world *w)
{
    for (int32_t rank = 0; w->left && rank < w->info->size; rank++)
        free(w->left[rank]);
    free(w->left);
    free(w->note);
}
