/* Meshes: whatever the number of ranks, a grid of 1 x size, and of 2 x size / 2 where that is possible. */
#include <string.h>

#include "rows.h"

enum { COUNT_MAX = 16 };

static const char *const names[] = { "dp", "tp" };

static comm_mesh *grid(const struct place *p, int32_t *ret_columns)
{
    comm_mesh *mesh = NULL;
    const int32_t rows = p->size % 2 == 0 ? 2 : 1, shape[] = { rows, p->size / rows };
    OK(comm_mesh_create(p->world, NULL, 0, shape, names, 2, NULL, &mesh));
    *ret_columns = shape[1];
    return mesh;
}

static void mesh_create(const struct place *p)
{
    int32_t columns, backwards[COUNT_MAX], all[COUNT_MAX];
    comm_mesh *mesh = grid(p, &columns), *listed = NULL, *none = NULL;
    IS(comm_mesh_dims(mesh) == 2 && comm_mesh_size(mesh, 1) == columns && comm_mesh_rank_count(mesh) == p->size);
    OK(comm_mesh_destroy(mesh));
    for (int32_t r = 0; r < p->size; r++)
        backwards[r] = p->size - 1 - r;
    OK(comm_mesh_create(p->world, backwards, (size_t)p->size, &p->size, NULL, 1, NULL, &listed));
    OK(comm_mesh_ranks(listed, all));
    IS(memcmp(all, backwards, (size_t)p->size * sizeof *all) == 0);
    OK(comm_mesh_destroy(listed));
    const int32_t wrong[] = { p->size, 2 };
    GIVES(COMM_ERR_INVALID, comm_mesh_create(p->world, NULL, 0, wrong, names, 2, NULL, &none));
    SAYS("places, but there are");
    OK(comm_mesh_create(p->world, (int32_t[]){ 0 }, 1, (int32_t[]){ 1 }, NULL, 1, NULL, &none));
    IS((none != NULL) == (p->rank == 0)); /* others are not in it */
    OK(comm_mesh_destroy(none));
}

static void mesh_groups(const struct place *p)
{
    int32_t columns;
    comm_mesh *mesh = grid(p, &columns);
    comm_group *row = NULL, *both[2];
    OK(comm_mesh_group(mesh, 1, &row));
    OK(comm_mesh_groups(mesh, both));
    IS(both[1] == row && comm_group_size(row) == columns && comm_group_size(both[0]) == p->size / columns);
    IS(rows_sum(row, 1) == columns && rows_sum(both[0], 1) == p->size / columns);
    GIVES(COMM_ERR_NOT_FOUND, comm_mesh_group(mesh, 2, &row));
    OK(comm_mesh_destroy(mesh));
}

static void mesh_queries(const struct place *p)
{
    int32_t columns, dim = -1, at[2], rank = -1, all[COUNT_MAX];
    comm_mesh *mesh = grid(p, &columns);
    IS(strcmp(comm_mesh_dim_name(mesh, 0), "dp") == 0);
    OK(comm_mesh_dim(mesh, "tp", &dim));
    IS(dim == 1 && comm_mesh_local_rank(mesh, 1) == p->rank % columns);
    OK(comm_mesh_coordinates(mesh, at));
    IS(at[0] == p->rank / columns && at[1] == p->rank % columns);
    OK(comm_mesh_ranks(mesh, all));
    for (int32_t r = 0; r < p->size; r++) {
        IS(all[r] == r);
        OK(comm_mesh_coordinates_of(mesh, r, at));
        OK(comm_mesh_rank_at(mesh, at, &rank));
        IS(rank == r && at[1] == r % columns);
    }
    OK(comm_mesh_destroy(mesh));
}

static void mesh_sub(const struct place *p)
{
    int32_t columns;
    comm_mesh *mesh = grid(p, &columns), *row = NULL;
    comm_group *group;
    const char *const backwards[] = { "tp", "dp" };
    OK(comm_mesh_sub(mesh, &names[1], 1, &row));
    GIVES(COMM_ERR_INVALID, comm_mesh_sub(mesh, backwards, 2, &mesh));
    GIVES(COMM_ERR_NOT_FOUND, comm_mesh_sub(mesh, (const char *const[]){ "pp" }, 1, &mesh));
    OK(comm_mesh_destroy(mesh)); /* the view lives on */
    IS(comm_mesh_dims(row) == 1 && comm_mesh_rank_count(row) == columns);
    OK(comm_mesh_group(row, 0, &group));
    IS(rows_sum(group, 1) == columns);
    OK(comm_mesh_destroy(row));
}

static void mesh_flatten(const struct place *p)
{
    int32_t columns;
    comm_mesh *mesh = grid(p, &columns), *flat;
    comm_group *group;
    OK(comm_mesh_flatten(mesh, NULL, NULL, &flat));
    IS(comm_mesh_dims(flat) == 1 && strcmp(comm_mesh_dim_name(flat, 0), "dp_tp") == 0);
    OK(comm_mesh_group(flat, 0, &group));
    IS(comm_group_rank(group) == p->rank && rows_sum(group, 1) == p->size);
    OK(comm_mesh_destroy(mesh));
    OK(comm_mesh_destroy(flat));
}

static void mesh_from_groups(const struct place *p)
{
    comm_mesh *mesh;
    comm_group *found = NULL;
    OK(comm_mesh_from_groups(&p->world, names, 1, NULL, &mesh));
    OK(comm_mesh_group(mesh, 0, &found));
    IS(found == p->world && comm_mesh_local_rank(mesh, 0) == p->rank);
    OK(comm_mesh_destroy(mesh));
    OK(comm_group_status(p->world)); /* still open */
}

const struct row_case rows_meshes[] = {
    { "mesh_create", mesh_create },
    { "mesh_from_groups", mesh_from_groups },
    { "mesh_groups", mesh_groups },
    { "mesh_queries", mesh_queries },
    { "mesh_sub", mesh_sub },
    { "mesh_flatten", mesh_flatten },
    { NULL, NULL },
};
