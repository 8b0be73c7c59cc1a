/* Gradients that travel while the next ones are computed: four operations under way at the same time.
 *
 *     commrun -n 4 ./async */
#include <comm/comm.h>
#include <stdio.h>

int main(void)
{
    static float gradients[4][65536];
    comm_work *works[4] = { NULL };
    comm_group *world = NULL;
    comm_status status = comm_init(NULL, &world);

    for (int layer = 3; layer >= 0 && status == COMM_OK; layer--) {
        gradients[layer][0] = (float)layer; /* compute this layer; the ones after it are on their way */
        status = comm_all_reduce(world, gradients[layer], gradients[layer], 65536, COMM_DTYPE_F32, COMM_REDOP_AVG,
                                 NULL, &works[layer]);
    }
    if (status == COMM_OK)
        status = comm_work_wait_all(works, 4, COMM_TIMEOUT_DEFAULT);
    if (status == COMM_OK)
        printf("layer 3 has the average %g\n", (double)gradients[3][0]);
    else
        fprintf(stderr, "%s\n", comm_last_error());
    for (int layer = 0; layer < 4; layer++)
        comm_work_release(works[layer]);
    comm_group_close(world);
    return status != COMM_OK;
}
