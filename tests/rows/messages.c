/* Point-to-point, and byte strings of unequal length. Everything goes around a ring; with one rank, to oneself. */
#include <string.h>

#include "rows.h"

enum { COUNT_MAX = 16 };

static int next_of(const struct place *p)
{
    return (p->rank + 1) % p->size;
}

static int before(const struct place *p)
{
    return (p->rank + p->size - 1) % p->size;
}

static void send_recv(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *send, *recv;
    int32_t in[3] = { p->rank, 2, 3 }, out[4] = { -1, -1, -1, -1 };
    options.tag = 9;
    OK(comm_send(p->world, in, 3, COMM_DTYPE_I32, next_of(p), &options, &send));
    OK(comm_recv(p->world, out, 4, COMM_DTYPE_I32, before(p), &options, &recv));
    rows_finish(send);
    OK(comm_work_wait(recv, 0));
    IS(out[0] == before(p) && out[2] == 3 && out[3] == -1);
    IS(comm_work_received_count(recv) == 3 && comm_work_tag(recv) == 9);
    comm_work_release(recv);
    /* And waiting, in pairs: even ranks begin. */
    for (int turn = 0; p->size > 1 && turn < 2; turn++) {
        int peer = p->rank ^ 1;
        if (peer < p->size && p->rank % 2 == turn)
            OK(comm_send(p->world, in, 3, COMM_DTYPE_I32, peer, NULL, NULL));
        else if (peer < p->size)
            OK(comm_recv(p->world, out, 3, COMM_DTYPE_I32, peer, NULL, NULL));
    }
    GIVES(COMM_ERR_INVALID, comm_send(p->world, in, 3, COMM_DTYPE_I32, p->size, NULL, NULL));
}

static void any_source(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *send = NULL, *recv;
    int32_t sum = 0;
    options.tag = p->rank + 5;
    OK(comm_send(p->world, &p->rank, 1, COMM_DTYPE_I32, 0, &options, &send));
    options.tag = COMM_ANY_TAG;
    for (int i = 0; p->rank == 0 && i < p->size; i++) {
        int32_t got = -1;
        OK(comm_recv(p->world, &got, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, &options, &recv));
        OK(comm_work_wait(recv, 0));
        IS(comm_work_source_rank(recv) == got && comm_work_tag(recv) == got + 5);
        comm_work_release(recv);
        sum += got;
    }
    IS(p->rank != 0 || sum == p->size * (p->size - 1) / 2);
    rows_finish(send);
}

static void self_send(const struct place *p)
{
    comm_work *work;
    int32_t in = 77, out = -1;
    OK(comm_send(p->world, &in, 1, COMM_DTYPE_I32, p->rank, NULL, &work));
    OK(comm_recv(p->world, &out, 1, COMM_DTYPE_I32, p->rank, NULL, NULL));
    rows_finish(work);
    IS(out == 77);
}

static void truncation(const struct place *p)
{
    comm_work *work;
    int32_t in[4] = { 1, 2, 3, 4 }, out[4] = { 9, 9, 9, 9 };
    OK(comm_send(p->world, in, 4, COMM_DTYPE_I32, next_of(p), NULL, &work));
    GIVES(COMM_ERR_TRUNCATED, comm_recv(p->world, out, 2, COMM_DTYPE_I32, before(p), NULL, NULL));
    IS(out[1] == 2 && out[2] == 9);
    rows_finish(work);
    OK(comm_barrier(p->world, NULL, NULL)); /* the group goes on */
}

static void batch_p2p(const struct place *p)
{
    comm_work *work;
    int32_t in[COUNT_MAX], out[COUNT_MAX];
    OK(comm_coalesce_begin(p->world));
    for (int r = 0; r < p->size; r++) {
        in[r] = p->rank * 100 + r;
        OK(comm_send(p->world, &in[r], 1, COMM_DTYPE_I32, r, NULL, NULL));
        OK(comm_recv(p->world, &out[r], 1, COMM_DTYPE_I32, r, NULL, NULL));
    }
    OK(comm_coalesce_end(p->world, NULL, &work));
    rows_finish(work);
    for (int r = 0; r < p->size; r++)
        IS(out[r] == r * 100 + p->rank);
}

/* What rank r says: r letters. */
static size_t say(int rank, char *text)
{
    memset(text, 'a' + rank, (size_t)rank);
    return (size_t)rank;
}

static void check_said(const struct place *p, const char *data, const size_t *lengths)
{
    char text[COUNT_MAX];
    for (int r = 0; r < p->size; r++) {
        IS(lengths[r] == say(r, text) && memcmp(data, text, lengths[r]) == 0);
        data += lengths[r];
    }
}

static void all_gather_bytes(const struct place *p)
{
    char text[COUNT_MAX];
    void *data;
    size_t *lengths, bytes = say(p->rank, text);
    OK(comm_all_gather_bytes(p->world, text, bytes, NULL, &data, &lengths));
    check_said(p, data, lengths);
    comm_free(data);
    comm_free(lengths);
}

static void gather_bytes(const struct place *p)
{
    char text[COUNT_MAX];
    void *data;
    size_t *lengths, bytes = say(p->rank, text);
    for (int root = 0; root < p->size; root++) {
        OK(comm_gather_bytes(p->world, text, bytes, root, NULL, &data, &lengths));
        IS((data != NULL) == (p->rank == root));
        if (data)
            check_said(p, data, lengths);
        comm_free(data);
        comm_free(lengths);
    }
}

static void broadcast_bytes(const struct place *p)
{
    for (int root = 0; root < p->size; root++) {
        char text[COUNT_MAX];
        void *data;
        size_t bytes, mine = say(root, text);
        OK(comm_broadcast_bytes(p->world, p->rank == root ? text : NULL, p->rank == root ? mine : 0, root, NULL, &data,
                                &bytes));
        IS(bytes == mine && memcmp(data, text, bytes) == 0);
        comm_free(data);
    }
}

static void scatter_bytes(const struct place *p)
{
    char texts[COUNT_MAX][COUNT_MAX];
    const void *parts[COUNT_MAX];
    size_t lengths[COUNT_MAX], bytes;
    void *data;
    for (int r = 0; r < p->size; r++) {
        lengths[r] = say(r, texts[r]);
        parts[r] = texts[r];
    }
    OK(comm_scatter_bytes(p->world, p->rank == 0 ? parts : NULL, p->rank == 0 ? lengths : NULL, 0, NULL, &data,
                          &bytes));
    IS(bytes == lengths[p->rank] && memcmp(data, texts[p->rank], bytes) == 0);
    comm_free(data);
}

static void send_bytes(const struct place *p)
{
    void *data;
    size_t bytes;
    int32_t source = -1;
    if (p->size == 1)
        return; /* both calls wait */
    if (p->rank == 1)
        OK(comm_send_bytes(p->world, "a letter", 8, 0, NULL));
    if (p->rank != 0)
        return;
    OK(comm_recv_bytes(p->world, COMM_ANY_SOURCE, NULL, &data, &bytes, &source));
    IS(source == 1 && bytes == 8 && memcmp(data, "a letter", 8) == 0);
    comm_free(data);
}

const struct row_case rows_messages[] = {
    { "send_recv", send_recv },
    { "any_source", any_source },
    { "self_send", self_send },
    { "truncation", truncation },
    { "batch_p2p", batch_p2p },
    { "all_gather_bytes", all_gather_bytes },
    { "gather_bytes", gather_bytes },
    { "broadcast_bytes", broadcast_bytes },
    { "scatter_bytes", scatter_bytes },
    { "send_bytes", send_bytes },
    { NULL, NULL },
};
