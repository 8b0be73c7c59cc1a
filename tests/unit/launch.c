/* comm_launch_query under the environments that launchers leave. Each test starts from an empty environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <comm/comm.h>
#include <stdlib.h>
#include <string.h>

#include "core/launch.h"

/* Set "NAME=value" pairs; the strings must live on, as putenv keeps them. */
static void environment(const char *const *pairs)
{
    clearenv();
    for (; *pairs; pairs++)
        assert_int_equal(putenv((char *)*pairs), 0);
}
#define ENVIRONMENT(...) environment((const char *const[]){ __VA_ARGS__, NULL })

static void assert_launch(const char *launcher, int32_t rank, int32_t world_size, int32_t local_rank,
                          int32_t local_world_size)
{
    comm_launch_info info = { .struct_bytes = sizeof info };
    memset(&info, 0x5a, sizeof info);
    info.struct_bytes = sizeof info;
    comm_status status = comm_launch_query(&info);
    if (status != COMM_OK)
        fail_msg("comm_launch_query: %s", comm_last_error());
    assert_string_equal(info.launcher, launcher);
    assert_int_equal(info.rank, rank);
    assert_int_equal(info.world_size, world_size);
    assert_int_equal(info.local_rank, local_rank);
    assert_int_equal(info.local_world_size, local_world_size);
}

static void assert_refused(const char *first_word, const char *second_word)
{
    comm_launch_info info = { .struct_bytes = sizeof info };
    assert_int_equal(comm_launch_query(&info), COMM_ERR_INVALID);
    if (!strstr(comm_last_error(), first_word) || !strstr(comm_last_error(), second_word))
        fail_msg("'%s' should name %s and %s", comm_last_error(), first_word, second_word);
}

static void an_empty_environment_is_no_launcher(void **state)
{
    (void)state;
    clearenv();
    assert_launch("none", -1, -1, -1, -1);
}

static void torchrun_is_found_by_its_run_id(void **state)
{
    (void)state;
    ENVIRONMENT("TORCHELASTIC_RUN_ID=none", "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4",
                "GROUP_RANK=1", "ROLE_RANK=5");
    assert_launch("torchrun", 5, 8, 1, 4);
}

static void torchrun_wins_over_the_mpirun_that_started_it(void **state)
{
    (void)state;
    ENVIRONMENT("TORCHELASTIC_RUN_ID=x", "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
                "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2");
    assert_launch("torchrun", 3, 4, 1, 2);
}

static void openmpi_is_found_and_its_job_named(void **state)
{
    (void)state;
    struct comm__launch launch;
    ENVIRONMENT("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=2",
                "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_MCA_ess_base_jobid=1080360961");
    assert_launch("openmpi", 2, 4, 2, 4);
    assert_int_equal(comm__launch_find(&launch), COMM_OK);
    assert_int_equal(launch.hosts, 1);
    assert_string_equal(launch.job, "openmpi-1080360961");
}

static void mpich_is_found_by_hydra_and_by_plain_pmi(void **state)
{
    (void)state;
    ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=6", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=3");
    assert_launch("mpich", 1, 6, 1, 3);
    ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=6");
    assert_launch("mpich", 1, 6, -1, -1);
}

static void a_numbered_slurm_step_is_a_launcher(void **state)
{
    (void)state;
    struct comm__launch launch;
    ENVIRONMENT("SLURM_PROCID=4", "SLURM_NTASKS=7", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_JOB_ID=123",
                "SLURM_STEP_ID=2", "SLURM_STEP_NUM_NODES=3", "SLURM_STEP_TASKS_PER_NODE=3,2(x2)", "PMI_RANK=4",
                "PMI_SIZE=7");
    assert_launch("slurm", 4, 7, 1, 2);
    assert_int_equal(comm__launch_find(&launch), COMM_OK);
    assert_int_equal(launch.hosts, 3);
    assert_string_equal(launch.job, "slurm-123.2");
}

static void a_slurm_batch_script_or_shell_is_none(void **state)
{
    (void)state;
    ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=7", "SLURM_LOCALID=0", "SLURM_JOB_ID=123");
    assert_launch("none", -1, -1, -1, -1);
    ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=7", "SLURM_JOB_ID=123", "SLURM_STEP_ID=4294967290");
    assert_launch("none", -1, -1, -1, -1);
}

static void hydra_inside_a_slurm_step_wins(void **state)
{
    (void)state;
    ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_STEP_ID=0", "SLURM_JOB_ID=9", "PMI_RANK=3", "PMI_SIZE=4",
                "MPI_LOCALRANKID=3", "MPI_LOCALNRANKS=4");
    assert_launch("mpich", 3, 4, 3, 4);
}

static void commrun_is_found_by_its_name(void **state)
{
    (void)state;
    ENVIRONMENT("COMM_LAUNCHER=commrun", "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2");
    assert_launch("commrun", 0, 2, 0, 2);
}

static void mpirun_inside_commrun_wins(void **state)
{
    (void)state;
    ENVIRONMENT("COMM_LAUNCHER=commrun", "RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4");
    assert_launch("openmpi", 3, 4, -1, -1);
}

static void plain_variables_may_be_incomplete(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2");
    assert_launch("env", 1, 2, -1, -1);
    ENVIRONMENT("WORLD_SIZE=2");
    assert_launch("env", -1, 2, -1, -1);
    ENVIRONMENT("RANK=", "WORLD_SIZE=");
    assert_launch("none", -1, -1, -1, -1);
}

static void nonsense_is_refused_by_name(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=one", "WORLD_SIZE=2");
    assert_refused("RANK", "'one'");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=0");
    assert_refused("WORLD_SIZE", "'0'");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=99999999999");
    assert_refused("WORLD_SIZE", "99999999999");
    ENVIRONMENT("RANK=-1", "WORLD_SIZE=2");
    assert_refused("RANK", "'-1'");
    ENVIRONMENT("RANK=4", "WORLD_SIZE=4");
    assert_refused("RANK is 4", "WORLD_SIZE is 4");
    ENVIRONMENT("OMPI_COMM_WORLD_RANK=0");
    assert_refused("openmpi", "OMPI_COMM_WORLD_SIZE is not set");
}

static void leftover_rank_and_world_size_under_mpirun_are_refused(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4");
    assert_refused("RANK and WORLD_SIZE say rank 0 of 1", "openmpi started this process as rank 2 of 4");
}

static void rank_and_world_size_that_agree_with_mpirun_are_fine(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=2", "WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4");
    assert_launch("openmpi", 2, 4, -1, -1);
}

static void a_larger_world_started_inside_a_task_wins(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=6", "WORLD_SIZE=8", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_JOB_ID=1");
    assert_launch("env", 6, 8, -1, -1);
}

static void the_first_host_of_a_slurm_list_is_read(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "node1", "node1" },
        { "node1,node2", "node1" },
        { "node[007-012,20],login1", "node007" },
        { "n[3]", "n3" },
        { "n[3,5]-ib.cluster", "n3-ib.cluster" },
        { "a-b-[10-11]", "a-b-10" },
        { "rack[1-2]n[1-8]", "" },
        { "n[", "" },
        { "n[]", "" },
        { "n[1-2", "" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char host[64];
        memset(host, 0x5a, sizeof host);
        comm__slurm_first_host(cases[i][0], host, sizeof host);
        assert_string_equal(host, cases[i][1]);
    }
    char little[4];
    comm__slurm_first_host("node1", little, sizeof little);
    assert_string_equal(little, "");
}

static void the_tasks_of_a_slurm_node_are_read(void **state)
{
    (void)state;
    assert_int_equal(comm__slurm_tasks_on("2(x3),1", 0), 2);
    assert_int_equal(comm__slurm_tasks_on("2(x3),1", 2), 2);
    assert_int_equal(comm__slurm_tasks_on("2(x3),1", 3), 1);
    assert_int_equal(comm__slurm_tasks_on("2(x3),1", 4), -1);
    assert_int_equal(comm__slurm_tasks_on("4", 0), 4);
    assert_int_equal(comm__slurm_tasks_on("", 0), -1);
    assert_int_equal(comm__slurm_tasks_on("4(x", 0), -1);
    assert_int_equal(comm__slurm_tasks_on("x", 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_environment_is_no_launcher),
        cmocka_unit_test(torchrun_is_found_by_its_run_id),
        cmocka_unit_test(torchrun_wins_over_the_mpirun_that_started_it),
        cmocka_unit_test(openmpi_is_found_and_its_job_named),
        cmocka_unit_test(mpich_is_found_by_hydra_and_by_plain_pmi),
        cmocka_unit_test(a_numbered_slurm_step_is_a_launcher),
        cmocka_unit_test(a_slurm_batch_script_or_shell_is_none),
        cmocka_unit_test(hydra_inside_a_slurm_step_wins),
        cmocka_unit_test(commrun_is_found_by_its_name),
        cmocka_unit_test(mpirun_inside_commrun_wins),
        cmocka_unit_test(plain_variables_may_be_incomplete),
        cmocka_unit_test(nonsense_is_refused_by_name),
        cmocka_unit_test(leftover_rank_and_world_size_under_mpirun_are_refused),
        cmocka_unit_test(rank_and_world_size_that_agree_with_mpirun_are_fine),
        cmocka_unit_test(a_larger_world_started_inside_a_task_wins),
        cmocka_unit_test(the_first_host_of_a_slurm_list_is_read),
        cmocka_unit_test(the_tasks_of_a_slurm_node_are_read),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
