/* Where a rank is, in errors, when it has connected and this rank has not: where it says itself, for in a container of
 * its own it has another host name. */
#include <comm/comm.h>
#include <comm/store.h>
#include <signal.h>
#include <unistd.h>

#include "ranks.h"

static int own_rank;

/* In place of the C library's, also for libcomm. */
__attribute__((visibility("default"))) int gethostname(char *name, size_t capacity)
{
    snprintf(name, capacity, "pod%d", own_rank);
    return 0;
}

static void it_has_connected(int rank, int size, void *arg)
{
    static const char *const connected = "connected", *const received = "received";
    int32_t word = 1;
    (void)size, (void)arg;
    own_rank = rank;
    comm_store *store = ranks_store();
    comm_group *world = ranks_world("cpu:shm");
    if (rank == 1) {
        CHECK_OK(comm_send(world, &word, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK_OK(comm_store_set(store, connected, "", 0));
        CHECK_OK(comm_store_wait(store, &received, 1, 20000));
        raise(SIGKILL);
    }
    CHECK_OK(comm_store_wait(store, &connected, 1, 20000)); /* then this rank has no reason to connect itself */
    CHECK_OK(comm_recv(world, &word, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    CHECK_OK(comm_store_set(store, received, "", 0));
    CHECK_STATUS(comm_recv(world, &word, 1, COMM_DTYPE_I32, 1, NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1 (pod1 pid ");
    comm_group_close(world);
    comm_store_close(store);
}

int main(void)
{
    struct ranks_options options = { .limit_s = 40, .may_fail = 2 };
    setenv("COMM_HOST_ID", "one", 1);
    return ranks_run(2, &options, it_has_connected, NULL);
}
