/* Counts beyond 32 bits: 2^31 + 7 one-byte elements on two ranks, every byte checked. Needs 6 GiB; skips (77) where
 * they are not free. Usage: large BACKEND. */
#include <comm/comm.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

static const size_t count = ((size_t)1 << 31) + 7;
static const uint64_t needed_kb = (uint64_t)6 << 20;
enum { SKIP = 77 };

/* ---- Memory ---- */

static uint64_t read_number(const char *path, const char *format)
{
    char line[256];
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "r");
    while (file && value == UINT64_MAX && fgets(line, sizeof line, file))
        if (sscanf(line, format, &value) != 1)
            value = UINT64_MAX;
    if (file)
        fclose(file);
    return value;
}

static uint64_t available_kb(void)
{
    uint64_t machine = read_number("/proc/meminfo", "MemAvailable: %" SCNu64);
    uint64_t most = read_number("/sys/fs/cgroup/memory.max", "%" SCNu64);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "%" SCNu64);
    uint64_t allowed =
        most == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : (most - (used < most ? used : most)) / 1024;
    return machine < allowed ? machine : allowed;
}

/* ---- Data: eight bytes of `who` at a time ---- */

static uint64_t word(uint64_t who, uint64_t index)
{
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u + who * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 29) * 0x94d049bb133111ebu;
    return z ^ z >> 32;
}

/* Eight additions that do not carry into each other. */
static uint64_t sum_of_bytes(uint64_t a, uint64_t b)
{
    const uint64_t high = 0x8080808080808080u;
    return ((a & ~high) + (b & ~high)) ^ ((a ^ b) & high);
}

static void fill(uint8_t *data, uint64_t who)
{
    for (size_t i = 0; i < count; i += 8) {
        uint64_t w = word(who, i / 8);
        memcpy(data + i, &w, count - i < 8 ? count - i : 8);
    }
}

static void check(const char *what, const uint8_t *data, uint64_t who, int summed)
{
    for (size_t i = 0; i < count; i += 8) {
        size_t bytes = count - i < 8 ? count - i : 8;
        uint64_t w = summed ? sum_of_bytes(word(0, i / 8), word(1, i / 8)) : word(who, i / 8);
        if (memcmp(data + i, &w, bytes) != 0)
            ranks_fail(__FILE__, __LINE__, "%s: the bytes from %zu on are wrong", what, i);
    }
}

/* ---- Calls ---- */

static void rank_main(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    comm_work *work;
    (void)size;
    options.backend = arg;
    options.timeout_ms = 500000;
    CHECK_OK(ranks_init(&options, &world));
    uint8_t *data = malloc(count);
    CHECK(data != NULL);

    fill(data, (uint64_t)rank);
    CHECK_OK(comm_all_reduce(world, data, data, count, COMM_DTYPE_I8, COMM_REDOP_SUM, NULL, NULL));
    check("all_reduce", data, 0, 1);

    fill(data, (uint64_t)rank);
    CHECK_OK(comm_broadcast(world, data, count, COMM_DTYPE_BYTE, 1, NULL, NULL));
    check("broadcast", data, 1, 0);

    if (rank == 1) {
        fill(data, 2);
        CHECK_OK(comm_send(world, data, count, COMM_DTYPE_U8, 0, NULL, NULL));
    } else {
        CHECK_OK(comm_recv(world, data, count, COMM_DTYPE_U8, 1, NULL, &work));
        CHECK_OK(comm_work_wait(work, 0));
        CHECK(comm_work_received_count(work) == count);
        comm_work_release(work);
        check("recv", data, 2, 0);
    }
    free(data);
    CHECK_OK(comm_group_close(world));
}

int main(int argc, char **argv)
{
    static const struct ranks_options options = { .limit_s = 500, .name = "large" };
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND\n", argv[0]);
        return 2;
    }
    uint64_t kb = available_kb();
    if (kb < needed_kb) {
        printf("only %" PRIu64 " MiB are free, of the %" PRIu64 " that this needs\n", kb / 1024, needed_kb / 1024);
        return SKIP;
    }
    return ranks_run(2, &options, rank_main, argv[1]);
}
