/* Does a backend do what comm.h says? Usage: collectives BACKEND [SEED|fresh [CASES [SIZE]]].
 *
 * Cases are drawn at random from all operations, dtypes, reduce ops, counts, roots, forms (plain, _v, _list), in and
 * out of place, waiting, asynchronous and coalesced, on the world and on groups made from it. All ranks draw the same
 * sequence. The seed is printed; give it again to repeat a failure. Every result is compared with values.c, and every
 * output is poisoned first, with a margin behind it that must stay poisoned. */
#include <comm/comm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "ranks.h"
#include "suite.h"
#include "waves.h"

struct suite {
    struct waves waves;
    bool threads;
};

static void rank_main(int rank, int size, void *arg)
{
    waves_run(rank, size, &((const struct suite *)arg)->waves);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [CASES [SIZE]]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .waves.backend = argv[1],
        .waves.seed = suite_seed(argc, argv),
        .waves.count = argc > 3 ? atoi(argv[3]) : 100,
        .threads = suite_has_threads(argv[1]),
    };
    struct ranks_options options = { .threads = suite.threads, .limit_s = 100, .name = "collectives" };
    int least = argc > 4 ? atoi(argv[4]) : 1, most = argc > 4 ? least : gpu_in(suite.waves.backend) ? 8 : 9;
    for (int size = least; size <= most; size++)
        if (ranks_run(size, &options, rank_main, &suite) != 0)
            return 1;
    return 0;
}
