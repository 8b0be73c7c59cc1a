/* A rank on a host of hosts.py: host_rank URL RANK SIZE [LIMIT_MS]. Says on stdout when its world is open, sums until
 * that fails, each time within the limit, and says why. */
#include <comm/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    float value = 0;
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    if (count < 4)
        return 2;
    limit.timeout_ms = count > 4 ? atoi(arguments[4]) : COMM_TIMEOUT_DEFAULT;
    options.rendezvous = arguments[1];
    options.rank = atoi(arguments[2]);
    options.world_size = atoi(arguments[3]);
    options.timeout_ms = 60000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    comm_status status = comm_init(&options, &world);
    if (status != COMM_OK) {
        printf("%s %s\n", comm_status_name(status), comm_last_error());
        return 1;
    }
    puts("open");
    for (int turn = 0; status == COMM_OK; turn++) {
        status = comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, &limit, NULL);
        if (turn == 0 && status == COMM_OK)
            puts("connected");
    }
    printf("%s %s\n", comm_status_name(status), comm_last_error());
    comm_group_close(world);
    return 0;
}
