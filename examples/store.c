/* The store alone, without a group: rank 0 leaves an address, the others wait for it.
 *
 *     commrun -n 4 ./store */
#include <comm/store.h>
#include <stdio.h>

int main(void)
{
    comm_store *store = NULL;
    int32_t rank, ranks;
    void *address = NULL;
    comm_status status = comm_rendezvous("env://", -1, 0, COMM_TIMEOUT_DEFAULT, &store, &rank, &ranks);

    if (status == COMM_OK && rank == 0)
        status = comm_store_set(store, "address", "10.0.0.1:7000", 13);
    if (status == COMM_OK)
        status = comm_store_get(store, "address", COMM_TIMEOUT_DEFAULT, &address, NULL);
    if (status == COMM_OK)
        printf("rank %d of %d: rank 0 is at %s\n", (int)rank, (int)ranks, (char *)address);
    else
        fprintf(stderr, "%s\n", comm_last_error());
    comm_free(address);
    comm_store_close(store);
    return status != COMM_OK;
}
