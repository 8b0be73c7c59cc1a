/* A rank for launchers.py: finds its place, meets the others in a store, and says where it is. */
#include <comm/store.h>
#include <stdio.h>

int main(void)
{
    comm_launch_info info = { .struct_bytes = sizeof info };
    comm_store *store;
    int32_t rank, world_size;
    if (comm_launch_query(&info) != COMM_OK ||
        comm_rendezvous("env://", 0, 0, 20000, &store, &rank, &world_size) != COMM_OK ||
        comm_store_barrier(store, "all/here", world_size, 20000) != COMM_OK) {
        fprintf(stderr, "%s\n", comm_last_error());
        return 1;
    }
    printf("%s %d/%d\n", info.launcher, rank, world_size);
    /* Rank 0 may be serving, so it is the last to leave. */
    int64_t left;
    comm_status status = comm_store_add(store, "all/left", 1, &left);
    while (status == COMM_OK && rank == 0 && left < world_size)
        status = comm_store_add(store, "all/left", 0, &left);
    comm_store_close(store);
    return status == COMM_OK ? 0 : 1;
}
