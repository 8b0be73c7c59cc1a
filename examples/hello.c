/* The smallest program: build/tools/commrun -n 4 build/examples/hello */
#include <comm/comm.h>
#include <stdio.h>

int main(void)
{
    comm_group *world;
    if (comm_init(NULL, &world) != COMM_OK) {
        fprintf(stderr, "%s\n", comm_last_error());
        return 1;
    }
    float value = (float)comm_group_rank(world);
    comm_status status = comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL);
    if (status == COMM_OK)
        printf("the ranks add up to %g\n", (double)value);
    else
        fprintf(stderr, "%s\n", comm_last_error());
    comm_group_close(world);
    return status != COMM_OK;
}
