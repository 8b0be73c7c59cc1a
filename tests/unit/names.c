/* Names and labels are kept whole or refused, never cut; what is made from them is cut between characters. */
#include <comm/comm.h>
#include <string.h>

#include "loopback.h"
#include "ranks.h"

/* `bytes` bytes of two-byte characters; an odd one begins with an x. */
static const char *accents(size_t bytes)
{
    static _Thread_local char text[16][2100]; /* of the latest calls */
    static _Thread_local int next;
    char *name = text[next++ % 16];
    size_t used = 0;
    if (bytes % 2)
        name[used++] = 'x';
    while (used < bytes) {
        name[used++] = '\xc3';
        name[used++] = '\xa9';
    }
    name[used] = '\0';
    return name;
}

/* Are all characters whole, in a text of ASCII and accents? */
static int is_whole(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 0x80 && ((unsigned char)*text != 0xc3 || (unsigned char)*++text != 0xa9))
            return 0;
    return 1;
}

static comm_status dup_called(comm_group *group, const char *name, comm_group **ret_group)
{
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.name = name;
    return comm_group_dup(group, &options, ret_group);
}

static void a_group_has_its_whole_name_or_none(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:loopback"), *named = NULL, *derived = NULL, *found = NULL, *none = NULL;
    CHECK_OK(dup_called(world, accents(95), &named));
    CHECK(strcmp(comm_group_name(named), accents(95)) == 0);
    CHECK_OK(comm_group_find(world, accents(95), &found));
    CHECK(found == named);
    const char *const wrong[] = { accents(96), accents(2000), "a\xff", "a\xc3", "a\nb", "a\033[31m" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        comm_group_options options = COMM_GROUP_OPTIONS_INIT;
        options.name = wrong[i];
        CHECK_STATUS(dup_called(world, wrong[i], &none), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS(i < 2 ? "bytes; it may have 95" : "must be UTF-8 without control characters");
        CHECK(!strpbrk(comm_last_error(), "\xff\n\033"));
        CHECK_STATUS(comm_group_round_robin(&world, 1, &options, &none), COMM_ERR_INVALID);
        CHECK_STATUS(comm_group_subgroups(world, 1, &options, &none), COMM_ERR_INVALID);
        CHECK(none == NULL && comm_group_count(world) == 2);
    }
    for (int i = 0; i < 4; i++) { /* what is made from it grows no longer, and stays text */
        CHECK_OK(comm_group_dup(i ? derived : named, NULL, &found));
        if (i)
            CHECK_OK(comm_group_close(derived));
        derived = found;
        CHECK(is_whole(comm_group_name(derived)) && strlen(comm_group_name(derived)) <= 95);
        CHECK(strstr(comm_group_name(derived), "..[0-2]") != NULL);
        CHECK_OK(comm_group_find(world, comm_group_name(derived), &found));
        CHECK(found == derived);
    }
    CHECK_OK(comm_group_close(derived));
    CHECK_OK(comm_group_round_robin(&named, 1, NULL, &derived));
    CHECK(is_whole(comm_group_name(derived)));
    CHECK_OK(comm_group_close(derived));
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.name = "w\xe2\x82";
    CHECK_STATUS(ranks_init(&options, &none), COMM_ERR_INVALID);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(named));
    CHECK_OK(comm_group_close(world));
    CHECK(rank < size);
}

static void a_mesh_has_whole_names_or_none(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("cpu:loopback"), *found = NULL;
    comm_mesh *mesh = NULL, *flat = NULL;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    const int32_t shape[] = { 1, size };
    const char *names[] = { "dp", accents(60) };
    char full[200];
    options.name = accents(35); /* one too long with the dot, for the second dimension */
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, shape, names, 2, &options, &mesh), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("bytes; it may have 95");
    CHECK(mesh == NULL && comm_group_count(world) == 1);
    options.name = accents(34);
    CHECK_OK(comm_mesh_create(world, NULL, 0, shape, names, 2, &options, &mesh));
    snprintf(full, sizeof full, "%s.%s", accents(34), accents(60));
    CHECK_OK(comm_group_find(world, full, &found));
    CHECK(strcmp(comm_group_name(found), full) == 0);
    snprintf(full, sizeof full, "mesh_%s", accents(60));
    CHECK_OK(comm_mesh_group(mesh, 1, &found));
    CHECK(comm_group_size(found) == size);
    CHECK_STATUS(comm_mesh_flatten(mesh, accents(96), NULL, &flat), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_flatten(mesh, accents(61), &options, &flat), COMM_ERR_INVALID);
    CHECK_OK(comm_mesh_flatten(mesh, NULL, NULL, &flat));
    CHECK_OK(comm_mesh_destroy(flat));
    CHECK_OK(comm_mesh_destroy(mesh));
    names[0] = accents(96);
    CHECK_STATUS(comm_mesh_create(world, NULL, 0, shape, names, 2, NULL, &mesh), COMM_ERR_INVALID);
    names[0] = accents(70), names[1] = accents(71);
    CHECK_OK(comm_mesh_create(world, NULL, 0, shape, names, 2, NULL, &mesh));
    CHECK(strcmp(comm_mesh_dim_name(mesh, 1), accents(71)) == 0);
    CHECK_STATUS(comm_mesh_flatten(mesh, NULL, NULL, &flat), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the joined name");
    CHECK_OK(comm_mesh_destroy(mesh));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void a_label_is_kept_or_refused(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:loopback");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_record records[4];
    size_t count = 0;
    const char *const wrong[] = { accents(96), "\xff", "a\tb" };
    for (size_t i = 0; i < 3; i++) {
        options.label = wrong[i];
        CHECK_STATUS(comm_barrier(world, &options, NULL), COMM_ERR_INVALID);
        CHECK(comm_group_seq(world) == 0);
    }
    options.label = accents(94);
    CHECK_OK(comm_barrier(world, &options, NULL));
    CHECK_OK(comm_group_records(world, records, sizeof(comm_record), 4, &count));
    CHECK(count == 1 && strcmp(records[0].label, accents(22)) == 0);
    CHECK_STATUS(comm_broadcast(world, NULL, 1, COMM_DTYPE_I8, 0, &options, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS(accents(94));
    CHECK_OK(comm_group_close(world));
}

/* A reason may be anything; the text that it becomes is cut between characters, and steers no terminal. */
static void a_reason_becomes_a_text(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    const char *const reasons[] = { accents(2000), accents(2001) };
    for (int i = 0; i < 2; i++) {
        comm_group *world = ranks_world("cpu:loopback");
        CHECK_OK(comm_group_abort(world, reasons[i]));
        CHECK_STATUS(comm_group_status(world), COMM_ERR_ABORTED);
        CHECK(is_whole(comm_last_error()) && strlen(comm_last_error()) > 1000);
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_ABORTED);
        CHECK(is_whole(comm_last_error()) && strlen(comm_last_error()) > 1000);
        CHECK_OK(comm_group_close(world));
    }
    comm_group *world = ranks_world("cpu:loopback");
    CHECK_OK(comm_group_abort(world, "a\xff\033[2Jb"));
    CHECK_STATUS(comm_group_status(world), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("a??[2Jb");
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "names" };
    if (comm_backend_register(loopback_entry) != COMM_OK)
        return 1;
    return ranks_run(3, &threads, a_group_has_its_whole_name_or_none, NULL) ||
           ranks_run(3, &threads, a_mesh_has_whole_names_or_none, NULL) ||
           ranks_run(1, &threads, a_label_is_kept_or_refused, NULL) ||
           ranks_run(1, &threads, a_reason_becomes_a_text, NULL);
}
