/* Errors, and looking inside. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "rows.h"

/* Each class of error that the C interface standard names. */
static void errors(const struct place *p)
{
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    comm_group *none = NULL;
    comm_store *store = NULL;
    int32_t rank = -1, value = 0;
    options.backend = "cpu:unheard-of";
    GIVES(COMM_ERR_NOT_FOUND, comm_group_dup(p->world, &options, &none));      /* the backend */
    GIVES(COMM_ERR_INVALID, comm_store_open("tcp://", NULL, &store));          /* the root's address */
    GIVES(COMM_ERR_NOT_FOUND, comm_group_find(p->world, "unheard-of", &none)); /* the group */
    GIVES(COMM_ERR_NOT_FOUND, comm_group_rank_of(p->world, p->size, &rank));   /* the rank */
    GIVES(COMM_ERR_INVALID, comm_broadcast(p->world, &value, 1, 12345, 0, NULL, NULL));
    GIVES(COMM_ERR_INVALID, comm_barrier(NULL, NULL, NULL));
    IS(comm_last_error()[0] != '\0');
    IS(strcmp(comm_status_name(COMM_ERR_PEER_LOST), "COMM_ERR_PEER_LOST") == 0 && comm_status_name(-99) != NULL);
    IS(comm_status_scope(COMM_OK) == COMM_SCOPE_NONE && comm_status_scope(COMM_ERR_INVALID) == COMM_SCOPE_CALL);
    IS(comm_status_scope(COMM_ERR_ABORTED) == COMM_SCOPE_OBJECT &&
       comm_status_scope(COMM_ERR_BUG) == COMM_SCOPE_PROCESS);
    OK(comm_group_status(p->world));
}

/* Ranks that call different things are told what each called. */
static void mismatch(const struct place *p)
{
    comm_group *group;
    int64_t value = 1;
    OK(comm_group_dup(p->world, NULL, &group));
    if (p->size > 1) {
        comm_redop redop = p->rank == 0 ? COMM_REDOP_MAX : COMM_REDOP_SUM;
        GIVES(COMM_ERR_MISMATCH, comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_I64, redop, NULL, NULL));
        SAYS("max");
        SAYS("sum");
    }
    OK(comm_barrier(p->world, NULL, NULL));
    OK(comm_group_close(group));
}

/* A deadline names the rank that has not come. */
static void deadline(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_group *group;
    OK(comm_group_dup(p->world, NULL, &group));
    options.timeout_ms = 200;
    if (p->rank == 0 && p->size > 1) {
        GIVES(COMM_ERR_DEADLINE, comm_barrier(group, &options, NULL));
        SAYS("rank 1"); /* which has not come */
    }
    OK(comm_barrier(p->world, NULL, NULL));
    OK(comm_group_close(group));
}

static void records(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_record list[8];
    comm_group *group;
    size_t count = 0;
    float value = 1;
    OK(comm_group_dup(p->world, NULL, &group));
    options.label = "gradients";
    OK(comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, &options, NULL));
    OK(comm_group_records(group, list, sizeof(comm_record), 8, &count));
    IS(count == 1 && list[0].seq == 1 && strcmp(list[0].op, "all_reduce") == 0);
    IS(strcmp(list[0].label, "gradients") == 0 && list[0].status == COMM_OK && list[0].dtype == COMM_DTYPE_F32);
    IS(list[0].completed_ns >= list[0].submitted_ns);
    OK(comm_group_close(group));
}

static void parameters(const struct place *p)
{
    int found = 0;
    (void)p;
    for (size_t i = 0; i < comm_param_count(); i++) {
        comm_param_info info = { .struct_bytes = sizeof info };
        OK(comm_param_query(i, &info));
        IS(info.name && info.env && info.help && info.value && info.initial);
        found |= strcmp(info.env, "COMM_TCP_LANES") == 0;
    }
    IS(found);
    GIVES(COMM_ERR_INVALID, comm_param_query(0, NULL));
    GIVES(COMM_ERR_INVALID, comm_param_query(0, &(comm_param_info){ .struct_bytes = 0 }));
    GIVES(COMM_ERR_NOT_FOUND, comm_param_query(comm_param_count(), &(comm_param_info){ .struct_bytes = 64 }));
}

static void keep_line(int32_t level, const char *text, void *context)
{
    if (level == COMM_LOG_WARN && strstr(text, "COMM_"))
        atomic_fetch_add((atomic_int *)context, 1);
}

static void logging(const struct place *p)
{
    atomic_int lines = 0;
    (void)p;
    comm_log_set(keep_line, &lines);
    comm_log_set_level(COMM_LOG_DEBUG);
    comm_log_set_level(COMM_LOG_WARN);
    comm_log_set(NULL, NULL);
}

static void version(const struct place *p)
{
    char text[32];
    (void)p;
    snprintf(text, sizeof text, "%d.%d.%d", COMM_VERSION_MAJOR, COMM_VERSION_MINOR, COMM_VERSION_PATCH);
    IS(strcmp(comm_version(), text) == 0);
    IS(comm_kernels() && *comm_kernels());
    IS(comm_version_number() == COMM_VERSION_MAJOR * 10000 + COMM_VERSION_MINOR * 100 + COMM_VERSION_PATCH);
}

const struct row_case rows_looking[] = {
    { "errors", errors },         { "mismatch", mismatch }, { "deadline", deadline }, { "records", records },
    { "parameters", parameters }, { "logging", logging },   { "version", version },   { NULL, NULL },
};
