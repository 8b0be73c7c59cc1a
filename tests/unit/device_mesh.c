/* Meshes on 1 to 8 ranks, which are processes on the tcp backend: every shape's groups, coordinates and views agree
 * with a model that is written down differently, and mistakes are refused before anything happens. */
#include <comm/comm.h>
#include <string.h>

#include "ranks.h"

static const char *const dp_tp[] = { "dp", "tp" }, *const three[] = { "dp", "cp", "tp" };

static int64_t sum_over(comm_group *group, int64_t value)
{
    int64_t sum = -7;
    CHECK_OK(comm_all_reduce(group, &value, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    return sum;
}

/* Ranks of a line: first, first + step, ... must be the group's. */
static void check_line(comm_group *group, int32_t first, int32_t step, int32_t count)
{
    int32_t ranks[8], sum = 0;
    CHECK(comm_group_size(group) == count);
    CHECK_OK(comm_group_ranks(group, ranks));
    for (int32_t i = 0; i < count; i++) {
        CHECK(ranks[i] == first + i * step);
        sum += first + i * step;
    }
    int32_t mine;
    CHECK_OK(comm_group_world_rank(group, comm_group_rank(group), &mine));
    CHECK(sum_over(group, mine) == sum);
}

/* Every factorisation of the size in two. */
static void two_dimensions_have_rows_and_columns(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(NULL), *group, *both[2];
    for (int32_t rows = 1; rows <= size; rows++) {
        if (size % rows)
            continue;
        comm_mesh *mesh = NULL;
        const int32_t shape[] = { rows, size / rows };
        const int32_t row = rank / shape[1], column = rank % shape[1];
        int32_t at[2] = { -7, -7 }, found = -7;
        CHECK_OK(comm_mesh_create(world, NULL, 0, shape, dp_tp, 2, NULL, &mesh));
        CHECK(comm_mesh_dims(mesh) == 2 && comm_mesh_rank_count(mesh) == size);
        CHECK(comm_mesh_size(mesh, 0) == rows && comm_mesh_size(mesh, 1) == shape[1]);
        CHECK(comm_mesh_size(mesh, 2) == -1 && comm_mesh_size(mesh, -1) == -1);
        CHECK(strcmp(comm_mesh_dim_name(mesh, 1), "tp") == 0 && strcmp(comm_mesh_dim_name(mesh, 2), "") == 0);
        CHECK_OK(comm_mesh_coordinates(mesh, at));
        CHECK(at[0] == row && at[1] == column);
        CHECK(comm_mesh_local_rank(mesh, 0) == row && comm_mesh_local_rank(mesh, 1) == column);
        CHECK(comm_mesh_local_rank(mesh, 2) == -1);
        CHECK_OK(comm_mesh_dim(mesh, "tp", &found));
        CHECK(found == 1);
        CHECK_OK(comm_mesh_group(mesh, 0, &group));
        check_line(group, column, shape[1], rows);
        CHECK(comm_group_rank(group) == row && strcmp(comm_group_description(group), "mesh_dp") == 0);
        CHECK_OK(comm_mesh_groups(mesh, both));
        CHECK(both[0] == group);
        check_line(both[1], row * shape[1], 1, shape[1]);
        int32_t all[8];
        CHECK_OK(comm_mesh_ranks(mesh, all));
        for (int32_t r = 0; r < size; r++) {
            CHECK(all[r] == r);
            CHECK_OK(comm_mesh_coordinates_of(mesh, r, at));
            CHECK(at[0] == r / shape[1] && at[1] == r % shape[1]);
            CHECK_OK(comm_mesh_rank_at(mesh, at, &found));
            CHECK(found == r);
        }
        at[1] = shape[1];
        found = 77;
        CHECK_STATUS(comm_mesh_rank_at(mesh, at, &found), COMM_ERR_NOT_FOUND);
        CHECK_STATUS(comm_mesh_coordinates_of(mesh, size, at), COMM_ERR_NOT_FOUND);
        CHECK_STATUS(comm_mesh_group(mesh, 2, &group), COMM_ERR_NOT_FOUND);
        CHECK_STATUS(comm_mesh_dim(mesh, "pp", &found), COMM_ERR_NOT_FOUND);
        CHECK_ERROR_SAYS("no dimension 'pp'; its dimensions are: dp, tp");
        CHECK(found == 77);
        CHECK_OK(comm_mesh_destroy(mesh));
    }
    CHECK(comm_group_count(world) == 1);
    CHECK_OK(comm_group_close(world));
}

/* 2 x 2 x 2: views of every pair and single, through the caller's place in the others. */
static void views_share_the_groups(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(NULL), *whole[3], *part[2];
    const int32_t shape[] = { 2, 2, 2 };
    const int32_t own[] = { rank / 4, rank / 2 % 2, rank % 2 }, step[] = { 4, 2, 1 };
    comm_mesh *mesh, *view, *line, *wrong = NULL;
    CHECK_OK(comm_mesh_create(world, NULL, 0, shape, three, 3, NULL, &mesh));
    CHECK_OK(comm_group_close(world)); /* its meshes live on */
    CHECK_OK(comm_mesh_groups(mesh, whole));
    for (int a = 0; a < 3; a++)
        for (int b = a + 1; b < 3; b++) {
            const char *const names[] = { three[a], three[b] };
            int32_t ranks[4], at[2], found = -1, other = 3 - a - b;
            CHECK_OK(comm_mesh_sub(mesh, names, 2, &view));
            CHECK(comm_mesh_dims(view) == 2 && comm_mesh_rank_count(view) == 4);
            CHECK_OK(comm_mesh_groups(view, part));
            CHECK(part[0] == whole[a] && part[1] == whole[b]);
            CHECK_OK(comm_mesh_coordinates(view, at));
            CHECK(at[0] == own[a] && at[1] == own[b]);
            CHECK_OK(comm_mesh_ranks(view, ranks));
            for (int32_t i = 0; i < 4; i++) {
                const int32_t expected = i / 2 * step[a] + i % 2 * step[b] + own[other] * step[other];
                const int32_t place[] = { i / 2, i % 2 };
                CHECK(ranks[i] == expected);
                CHECK_OK(comm_mesh_rank_at(view, place, &found));
                CHECK(found == expected);
            }
            CHECK_STATUS(comm_mesh_coordinates_of(view, rank ^ step[other], at), COMM_ERR_NOT_FOUND);
            CHECK_OK(comm_mesh_sub(view, names + 1, 1, &line)); /* a view of a view */
            CHECK_OK(comm_mesh_destroy(view));
            CHECK(strcmp(comm_mesh_dim_name(line, 0), three[b]) == 0 && comm_mesh_local_rank(line, 0) == own[b]);
            CHECK_OK(comm_mesh_destroy(line));
        }
    const char *const backwards[] = { "tp", "dp" }, *const twice[] = { "cp", "cp" }, *const unknown[] = { "pp" };
    CHECK_STATUS(comm_mesh_sub(mesh, backwards, 2, &wrong), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("'dp' comes after 'tp', but not in the mesh");
    CHECK_STATUS(comm_mesh_sub(mesh, twice, 2, &wrong), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_sub(mesh, unknown, 1, &wrong), COMM_ERR_NOT_FOUND);
    CHECK_ERROR_SAYS("its dimensions are: dp, cp, tp");
    CHECK_STATUS(comm_mesh_sub(mesh, three, 0, &wrong), COMM_ERR_INVALID);
    CHECK(wrong == NULL);
    CHECK_OK(comm_mesh_sub(mesh, three + 2, 1, &line));
    CHECK_OK(comm_mesh_destroy(mesh)); /* the last view keeps the groups open */
    CHECK_OK(comm_mesh_group(line, 0, &part[0]));
    CHECK(sum_over(part[0], 1) == 2);
    CHECK_OK(comm_mesh_destroy(line));
}

static void dimensions_are_flattened(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(NULL), *group, *again;
    const int32_t shape[] = { 2, 2, 2 };
    const char *const outer[] = { "dp", "tp" }, *const mixed[] = { "dp_cp", "tp" }, *const wrong[] = { "dp_tp", "tp" };
    comm_mesh *mesh, *view, *flat, *same, *none = NULL;
    CHECK_OK(comm_mesh_create(world, NULL, 0, shape, three, 3, NULL, &mesh));
    CHECK_OK(comm_group_close(world));
    CHECK_OK(comm_mesh_sub(mesh, outer, 2, &view)); /* dimensions that are not next to each other */
    CHECK_OK(comm_mesh_flatten(view, NULL, NULL, &flat));
    CHECK(comm_mesh_dims(flat) == 1 && comm_mesh_size(flat, 0) == 4);
    CHECK(strcmp(comm_mesh_dim_name(flat, 0), "dp_tp") == 0);
    CHECK(comm_mesh_local_rank(flat, 0) == rank / 4 * 2 + rank % 2);
    CHECK_OK(comm_mesh_group(flat, 0, &group));
    CHECK(comm_group_rank(group) == rank / 4 * 2 + rank % 2);
    CHECK(sum_over(group, rank) == 4 * (rank / 2 % 2) * 2 + 0 + 1 + 4 + 5);
    CHECK_OK(comm_mesh_flatten(view, "dp_tp", NULL, &same)); /* no second group */
    CHECK_OK(comm_mesh_group(same, 0, &again));
    CHECK(again == group);
    CHECK_OK(comm_mesh_destroy(same));
    CHECK_STATUS(comm_mesh_flatten(mesh, "dp_tp", NULL, &none), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_flatten(view, "cp", NULL, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("another dimension of this mesh is called 'cp'");
    CHECK_OK(comm_mesh_flatten(flat, NULL, NULL, &same)); /* flat already */
    CHECK_OK(comm_mesh_group(same, 0, &again));
    CHECK(again == group);
    CHECK_OK(comm_mesh_destroy(same));
    CHECK_OK(comm_mesh_destroy(view));
    CHECK_OK(comm_mesh_destroy(flat));
    /* A flattened name in a view, beside one that is not in it. */
    CHECK_OK(comm_mesh_sub(mesh, three, 2, &view));
    CHECK_OK(comm_mesh_flatten(view, NULL, NULL, &flat));
    CHECK_OK(comm_mesh_sub(mesh, mixed, 2, &same));
    int32_t at[2], all[8];
    CHECK(comm_mesh_size(same, 0) == 4 && comm_mesh_size(same, 1) == 2);
    CHECK_OK(comm_mesh_coordinates(same, at));
    CHECK(at[0] == rank / 2 && at[1] == rank % 2);
    CHECK_OK(comm_mesh_ranks(same, all));
    for (int32_t r = 0; r < 8; r++)
        CHECK(all[r] == r);
    CHECK_STATUS(comm_mesh_sub(mesh, wrong, 2, &none), COMM_ERR_INVALID);   /* they overlap */
    CHECK_STATUS(comm_mesh_sub(view, wrong, 1, &none), COMM_ERR_NOT_FOUND); /* tp is not in this view */
    CHECK(none == NULL);
    CHECK_OK(comm_mesh_destroy(same));
    CHECK_OK(comm_mesh_destroy(flat));
    CHECK_OK(comm_mesh_destroy(view));
    CHECK_OK(comm_mesh_destroy(mesh));
}

/* Some ranks, in an order of their own, of a parent that is not the world; the others get NULL. */
static void listed_ranks_of_a_subgroup_make_a_mesh(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(NULL), *parent, *group;
    const int32_t reversed[] = { 5, 4, 3, 2, 1, 0 }, shape[] = { 2, 2 }, listed[] = { 0, 5, 3, 2 };
    const int32_t expected[] = { 5, 0, 2, 3 }; /* world ranks */
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    comm_mesh *mesh = (comm_mesh *)&mesh;
    options.name = "grid";
    options.timeout_ms = 4321;
    CHECK_OK(comm_group_create(world, reversed, 6, NULL, &parent));
    CHECK_OK(comm_mesh_create(parent, listed, 4, shape, NULL, 2, &options, &mesh));
    CHECK((mesh == NULL) == (rank == 1 || rank == 4));
    if (mesh) {
        int32_t all[4], place = 0;
        CHECK_OK(comm_mesh_ranks(mesh, all));
        CHECK(memcmp(all, expected, sizeof all) == 0);
        while (expected[place] != rank)
            place++;
        CHECK(comm_mesh_local_rank(mesh, 0) == place / 2 && comm_mesh_local_rank(mesh, 1) == place % 2);
        CHECK_OK(comm_mesh_group(mesh, 1, &group));
        CHECK(sum_over(group, rank) == expected[place] + expected[place ^ 1]);
        CHECK(strcmp(comm_group_name(group), "grid.1") == 0 && comm_group_timeout(group) == 4321);
        CHECK(strcmp(comm_mesh_dim_name(mesh, 0), "") == 0);
        comm_mesh *flat = NULL;
        CHECK_STATUS(comm_mesh_flatten(mesh, NULL, NULL, &flat), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("give a name");
        CHECK_OK(comm_mesh_flatten(mesh, "all", NULL, &flat));
        CHECK_OK(comm_mesh_group(flat, 0, &group));
        CHECK(sum_over(group, rank) == 10 && comm_group_timeout(group) == 4321);
        CHECK_OK(comm_mesh_destroy(flat));
    }
    CHECK_OK(comm_mesh_destroy(mesh));
    CHECK_OK(comm_group_close(parent));
    CHECK_OK(comm_group_close(world));
}

static void groups_make_a_mesh(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(NULL), *groups[2], *found;
    const int32_t all[] = { 0, 1, 2, 3, 4, 5 }, wrong[] = { 5, 4, 3, 2, 1, 0 }, twice[] = { 0, 0, 2, 3, 4, 5 };
    const int32_t beyond[] = { 0, 1, 2, 3, 4, 6 };
    comm_mesh *mesh, *line, *flat, *none = NULL;
    CHECK_OK(comm_group_split(world, rank % 3, 0, NULL, &groups[0])); /* columns of 2 x 3 */
    CHECK_OK(comm_group_split(world, rank / 3, 0, NULL, &groups[1]));
    CHECK_OK(comm_mesh_from_groups(groups, dp_tp, 2, all, &mesh));
    CHECK(comm_mesh_size(mesh, 0) == 2 && comm_mesh_size(mesh, 1) == 3);
    CHECK_OK(comm_mesh_group(mesh, 1, &found));
    CHECK(found == groups[1] && comm_mesh_local_rank(mesh, 1) == rank % 3);
    CHECK_OK(comm_mesh_flatten(mesh, NULL, NULL, &flat));
    CHECK_OK(comm_mesh_group(flat, 0, &found));
    CHECK(sum_over(found, 1) == size);
    CHECK_OK(comm_mesh_destroy(flat));
    CHECK_OK(comm_mesh_from_groups(&groups[1], dp_tp + 1, 1, NULL, &line));
    CHECK(comm_mesh_dims(line) == 1 && comm_mesh_size(line, 0) == 3);
    CHECK_OK(comm_mesh_destroy(line));
    CHECK_STATUS(comm_mesh_from_groups(groups, dp_tp, 2, NULL, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("it must list the ranks of the mesh");
    CHECK_STATUS(comm_mesh_from_groups(groups, dp_tp, 2, wrong, &none), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_from_groups(groups, dp_tp, 2, twice, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("rank 0 is in the mesh twice");
    CHECK_STATUS(comm_mesh_from_groups(groups, dp_tp, 2, beyond, &none), COMM_ERR_INVALID);
    comm_group *same[] = { world, world };
    CHECK_STATUS(comm_mesh_from_groups(same, dp_tp, 2, all, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("a mesh of 6 x 6, but the world has 6 ranks");
    CHECK(none == NULL);
    CHECK_OK(comm_mesh_destroy(mesh));
    CHECK(sum_over(groups[0], 1) == 2); /* still the user's */
    CHECK_OK(comm_group_close(groups[0]));
    CHECK_OK(comm_group_close(groups[1]));
    CHECK_OK(comm_group_close(world));
}

/* The mesh keeps the groups, but their world has ended. */
static void groups_that_are_closed_make_no_more(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    comm_mesh *mesh, *none = NULL;
    (void)rank, (void)size, (void)arg;
    CHECK_OK(ranks_init(&options, &world));
    CHECK_OK(comm_mesh_from_groups(&world, dp_tp, 1, NULL, &mesh));
    CHECK_OK(comm_group_close(world));
    CHECK_STATUS(comm_mesh_flatten(mesh, "all", NULL, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the mesh's group 'world' has been closed");
    CHECK(none == NULL);
    CHECK_OK(comm_mesh_destroy(mesh));
}

static void mistakes_are_named(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(NULL);
    comm_mesh *mesh = NULL;
    const int32_t two_three[] = { 2, 3 }, zero[] = { 2, 0 }, huge[] = { 1 << 30, 1 << 30, 1 << 30 }, good[] = { 2, 2 };
    const char *const same[] = { "dp", "dp" }, *const empty[] = { "dp", "" }, *const half[] = { "dp", NULL };
    const int32_t twice[] = { 0, 1, 1, 2 }, beyond[] = { 0, 1, 2, 4 };
    CHECK_STATUS(comm_mesh_create(NULL, NULL, 0, good, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, dp_tp, 2, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, NULL, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, dp_tp, 0, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, dp_tp, 33, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, two_three, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the shape 2 x 3 has 6 places, but there are 4 ranks");
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, zero, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("dimension 1 of the shape 2 x 0 is 0");
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, huge, three, 3, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("has more than 2147483647 places");
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, same, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("dimensions 0 and 1 are both called 'dp'");
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, empty, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, half, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_create(world, twice, 4, good, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("rank 1 is in the mesh twice");
    CHECK_STATUS(comm_mesh_create(world, beyond, 4, good, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("ranks[3] is 4; the ranks are 0 to 3");
    CHECK_STATUS(comm_mesh_create(world, twice, 0, good, dp_tp, 2, NULL, &mesh), COMM_ERR_INVALID);
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.backend = "cpu:carrier-pigeon";
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, good, dp_tp, 2, &options, &mesh), COMM_ERR_NOT_FOUND);
    CHECK_ERROR_SAYS("carrier-pigeon");
    CHECK(mesh == NULL && comm_group_count(world) == 1);
    CHECK(comm_mesh_dims(NULL) == -1 && comm_mesh_size(NULL, 0) == -1 && comm_mesh_rank_count(NULL) == -1);
    CHECK_STATUS(comm_mesh_ranks(NULL, &(int32_t){ 0 }), COMM_ERR_INVALID);
    CHECK_OK(comm_mesh_destroy(NULL));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    for (int size = 1; size <= 8; size++)
        if (ranks_run(size, NULL, two_dimensions_have_rows_and_columns, NULL))
            return 1;
    return ranks_run(8, NULL, views_share_the_groups, NULL) || ranks_run(8, NULL, dimensions_are_flattened, NULL) ||
           ranks_run(6, NULL, listed_ranks_of_a_subgroup_make_a_mesh, NULL) ||
           ranks_run(6, NULL, groups_make_a_mesh, NULL) ||
           ranks_run(1, NULL, groups_that_are_closed_make_no_more, NULL) ||
           ranks_run(4, NULL, mistakes_are_named, NULL);
}
