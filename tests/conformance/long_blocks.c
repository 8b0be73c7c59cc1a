/* Blocks about the lengths from which on they are copied past the caches (core/exec/copy.h), on any alignment, in place
 * and not, every element checked. Usage: long_blocks BACKEND. */
#include <comm/comm.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { BLOCK_ELEMENTS = (2 << 20) / 4, RESULT_ELEMENTS = (8 << 20) / 4, ODD = 3, MOST = RESULT_ELEMENTS + ODD };

static uint32_t *allocate(size_t count)
{
    void *memory = malloc(count * sizeof(uint32_t));
    CHECK(memory);
    return memory;
}

/* Rank r's element i; sums of them, and the elements of different blocks, differ too. */
static uint32_t element(int r, size_t i)
{
    return (uint32_t)i * 2654435761u + (uint32_t)r * 40503u;
}

static void fill(uint32_t *data, int r, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = element(r, first + i);
}

static void expect(const uint32_t *data, int r, size_t first, size_t count)
{
    size_t i = 0;
    while (i < count && data[i] == element(r, first + i))
        i++;
    CHECK(i == count);
}

static void reduce(comm_group *world, int rank, int size, uint32_t *send, uint32_t *recv, size_t count)
{
    size_t i = 0;
    fill(send, rank, 0, count);
    CHECK_OK(comm_all_reduce(world, send, recv, count, COMM_DTYPE_U32, COMM_REDOP_SUM, NULL, NULL));
    for (uint32_t sum; i < count; i++) {
        sum = 0;
        for (int r = 0; r < size; r++)
            sum += element(r, i);
        if (recv[i] != sum)
            break;
    }
    CHECK(i == count);
    if (recv != send)
        expect(send, rank, 0, count);
}

static void move_blocks(comm_group *world, int rank, int size, uint32_t *send, uint32_t *recv, size_t count)
{
    fill(send, rank, 0, count);
    CHECK_OK(comm_all_gather(world, send, recv, count, COMM_DTYPE_U32, NULL, NULL));
    for (int r = 0; r < size; r++)
        expect(recv + (size_t)r * count, r, 0, count);
    for (int r = 0; r < size; r++)
        fill(send + (size_t)r * count, rank, (size_t)r * count, count);
    CHECK_OK(comm_all_to_all(world, send, recv, count, COMM_DTYPE_U32, NULL, NULL));
    for (int r = 0; r < size; r++)
        expect(recv + (size_t)r * count, r, (size_t)rank * count, count);
    fill(recv, rank, 0, count);
    CHECK_OK(comm_broadcast(world, recv, count, COMM_DTYPE_U32, size - 1, NULL, NULL));
    expect(recv, size - 1, 0, count);
    if (rank == 0)
        CHECK_OK(comm_send(world, send, count, COMM_DTYPE_U32, 1, NULL, NULL));
    if (rank == 1) {
        CHECK_OK(comm_recv(world, recv, count, COMM_DTYPE_U32, 0, NULL, NULL));
        expect(recv, 0, 0, count);
    }
}

static void long_blocks(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    size_t capacity = (size_t)size * (BLOCK_ELEMENTS + 1) > MOST ? (size_t)size * (BLOCK_ELEMENTS + 1) : MOST;
    uint32_t *send = allocate(capacity + ODD), *recv = allocate(capacity + ODD);
    for (size_t count = BLOCK_ELEMENTS - 1; count <= BLOCK_ELEMENTS + 1; count++)
        move_blocks(world, rank, size, send + rank, recv + count % ODD, count);
    static const size_t counts[] = { RESULT_ELEMENTS - 1, RESULT_ELEMENTS, RESULT_ELEMENTS + ODD };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        reduce(world, rank, size, send + i, recv + rank, counts[i]);
        reduce(world, rank, size, send + rank, send + rank, counts[i]);
    }
    CHECK_OK(comm_group_close(world));
    free(send);
    free(recv);
}

int main(int argc, char **argv)
{
    char *backend = argc > 1 ? argv[1] : "cpu:shm";
    for (int size = 2; size <= 3; size++)
        if (ranks_run(size, NULL, long_blocks, backend))
            return 1;
    return 0;
}
