/* Where this process runs, as the environment of its launcher says. Reads the environment only; no I/O. */
#ifndef COMM_CORE_LAUNCH_H
#define COMM_CORE_LAUNCH_H

#include <comm/comm.h>

enum { LAUNCH_JOB_BYTES = 128 };

struct comm__launch {
    const char *launcher;                                   /* as in comm_launch_info; "none" */
    int32_t rank, world_size, local_rank, local_world_size; /* -1: not said */
    int32_t hosts;                                          /* 1 if all ranks share a host, more, or -1: not said */
    char job[LAUNCH_JOB_BYTES]; /* tells this job from all others of its launcher on these hosts; "" if nothing does */
};

/* Find the launcher. No launcher at all is not an error ("none"). Plain RANK and WORLD_SIZE ("env") may be incomplete;
 * the ranks of a real launcher are complete.  Errors  INVALID (names the variable that makes no sense, or two that
 * contradict each other). */
comm_status comm__launch_find(struct comm__launch *ret_launch);

/* What Slurm writes into its variables. The first host of a list such as "node[007-012,20],login1"; empty if it makes
 * no sense. The number of tasks on node `index` of "2(x3),1"; -1 if it makes no sense. */
void comm__slurm_first_host(const char *list, char *host, size_t capacity);
int32_t comm__slurm_tasks_on(const char *tasks_per_node, int32_t index);

#endif
