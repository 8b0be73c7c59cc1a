/* Two mistakes, made on purpose, to see what libcomm says: the texts in the README.
 *
 *     commrun -n 3 ./mistakes deadline     rank 2 waits for a message that no rank sends
 *     commrun -n 3 ./mistakes mismatch     rank 2 gives another count than the others */
#include <comm/comm.h>
#include <stdio.h>
#include <string.h>

static const comm_op_options without_limit = { .struct_bytes = sizeof without_limit,
                                               .timeout_ms = COMM_TIMEOUT_INFINITE };

int main(int argc, char **argv)
{
    int deadline = argc == 2 && strcmp(argv[1], "deadline") == 0;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world = NULL;
    float values[16] = { 0 };

    options.timeout_ms = 3000; /* of each operation */
    comm_status status = comm_init(&options, &world);
    int wrong = status == COMM_OK && comm_group_rank(world) == 2;
    if (status == COMM_OK)
        status = comm_barrier(world, NULL, NULL);
    if (status == COMM_OK && wrong && deadline)
        status = comm_recv(world, values, 16, COMM_DTYPE_F32, 0, &without_limit, NULL);
    else if (status == COMM_OK)
        status = comm_all_reduce(world, values, values, wrong ? 8 : 16, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL);
    fprintf(stderr, "%s: %s\n", comm_status_name(status), comm_last_error());
    comm_group_close(world);
    return status != COMM_OK;
}
