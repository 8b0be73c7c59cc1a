#include "registered.h"

#include <stdlib.h>

#include "region.h"
#include "say.h"

/* Memory of the user's is read through the kernel, as all memory is: nothing to be done for it. */
struct registered {
    struct region *region; /* NULL: the user's */
};

comm_status registered_open(struct fabric *f, comm_memory_info *info, void **ret_handle)
{
    struct registered *m = calloc(1, sizeof *m);
    if (!m)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    if (!info->data && !(m->region = region_create(f, info->bytes))) {
        free(m);
        return COMM_ERR_NO_MEMORY;
    }
    if (m->region) {
        f->driver->enter(f->domain);
        region_enter(f, m->region);
        f->driver->leave(f->domain);
        info->data = region_data(m->region);
    }
    exec_log(COMM_LOG_INFO, "rank %d: %zu bytes registered: peers read them %s", (int)f->domain->peers.rank,
             info->bytes, m->region ? "in shared memory" : "by cross-memory attach, where the kernel allows it");
    *ret_handle = m;
    return COMM_OK;
}

void registered_close(struct fabric *f, void *handle)
{
    struct registered *m = handle;
    if (m->region) {
        f->driver->enter(f->domain);
        region_leave(f, m->region);
        f->driver->leave(f->domain);
        region_destroy(m->region);
    }
    free(m);
}
