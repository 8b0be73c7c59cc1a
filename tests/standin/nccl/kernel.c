/* What runs in a stream: the operations of one group on one communicator. Collectives run in their order, then all
 * sends and receives at once. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum { SMALL_BYTES = 8192, PART_BYTES = 65536 };

static bool are_eager(void)
{
    const char *eager = getenv("STANDIN_EAGER");
    return eager && !strcmp(eager, "1");
}

static struct transfer transfer_of(const struct task *task, bool is_send, int peer, const void *at, size_t bytes)
{
    bool is_eager = bytes <= EXCHANGE_BYTES && (are_eager() || standin_random(4) == 1);
    return (struct transfer){
        .what = task->what, .is_send = is_send, .is_eager = is_eager, .peer = peer, .at = (char *)at, .bytes = bytes};
}

static void *scratch(struct ncclComm *comm, size_t bytes)
{
    if (comm->scratch_bytes < bytes) {
        free(comm->scratch);
        comm->scratch = malloc(bytes);
        comm->scratch_bytes = bytes;
    }
    return comm->scratch;
}

struct span {
    size_t start, count; /* elements */
};

static struct span part_of(size_t count, int parts, int part)
{
    size_t each = (count + (size_t)parts - 1) / (size_t)parts, start = each * (size_t)part;
    start = start < count ? start : count;
    return (struct span){start, each < count - start ? each : count - start};
}

/* All spans are as long as the first, and short: the ranks can exchange them. */
static bool are_exchanged(const struct ncclComm *comm, const struct span *spans, size_t width)
{
    bool are_equal = spans[0].count && spans[0].count * width <= EXCHANGE_BYTES;
    for (int rank = 1; rank < comm->size; rank++)
        are_equal &= spans[rank].count == spans[0].count;
    return are_equal;
}

/* Every rank gets, from each other rank, the elements of its own span, and reduces them in the order of the ranks.
 * `from` and `into` are where the part begins that the spans divide. */
static bool reduce_spans(struct ncclComm *comm, const struct task *task, const char *from, const struct span *spans,
                         size_t part_count, char *into)
{
    size_t width = type_bytes(task->what.type), own = spans[comm->rank].count * width, part = part_count * width;
    struct transfer transfers[2 * RANKS_MAX];
    int count = 0;
    char *input = scratch(comm, part + (size_t)comm->size * own + own + 1), *others = input + part;
    char *sum = others + (size_t)comm->size * own;
    reduce_begin(task, comm->size, input, from, part_count);
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer != comm->rank && spans[peer].count)
            transfers[count++] =
                transfer_of(task, true, peer, input + spans[peer].start * width, spans[peer].count * width);
        if (peer != comm->rank && own)
            transfers[count++] = transfer_of(task, false, peer, others + (size_t)peer * own, own);
    }
    memcpy(others + (size_t)comm->rank * own, input + spans[comm->rank].start * width, own);
    bool exchanged = are_exchanged(comm, spans, width);
    if (!(exchanged ? transfers_exchange : transfers_run)(comm, transfers, count))
        return false;
    memcpy(sum, others, own);
    for (int rank = 1; rank < comm->size; rank++)
        reduce_step(task, sum, others + (size_t)rank * own, spans[comm->rank].count);
    reduce_end(task, comm->size, sum, spans[comm->rank].count);
    if (own) /* else `into` may be NULL */
        memcpy(into, sum, own);
    return true;
}

/* Every rank shows its span to all others. */
static bool gather_spans(struct ncclComm *comm, const struct task *task, const struct span *spans, char *at)
{
    size_t width = type_bytes(task->what.type);
    struct transfer transfers[2 * RANKS_MAX];
    int count = 0;
    struct span own = spans[comm->rank];
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer != comm->rank && own.count)
            transfers[count++] = transfer_of(task, true, peer, at + own.start * width, own.count * width);
        if (peer != comm->rank && spans[peer].count)
            transfers[count++] =
                transfer_of(task, false, peer, at + spans[peer].start * width, spans[peer].count * width);
    }
    return transfers_run(comm, transfers, count);
}

static bool run_all_reduce(struct ncclComm *comm, const struct task *task)
{
    size_t width = type_bytes(task->what.type), part = (size_t)comm->size * PART_BYTES / width;
    const char *from = standin_view(task->send);
    char *into = standin_view(task->recv);
    bool small = task->what.count * width <= SMALL_BYTES;
    for (size_t start = 0; start < task->what.count; start += part) {
        size_t count = task->what.count - start < part ? task->what.count - start : part;
        struct span spans[RANKS_MAX];
        for (int rank = 0; rank < comm->size; rank++)
            spans[rank] = small ? (struct span){0, count} : part_of(count, comm->size, rank);
        char *at = into + start * width;
        if (!reduce_spans(comm, task, from + start * width, spans, count, at + spans[comm->rank].start * width))
            return false;
        if (!small && !gather_spans(comm, task, spans, at))
            return false;
    }
    return true;
}

static bool run_reduce(struct ncclComm *comm, const struct task *task)
{
    size_t width = type_bytes(task->what.type), part = PART_BYTES / width;
    const char *from = standin_view(task->send);
    char *into = standin_view(task->recv);
    for (size_t start = 0; start < task->what.count; start += part) {
        struct span spans[RANKS_MAX] = {{0, 0}};
        size_t count = task->what.count - start < part ? task->what.count - start : part;
        spans[task->what.root] = (struct span){0, count};
        if (!reduce_spans(comm, task, from + start * width, spans, count, into ? into + start * width : NULL))
            return false;
    }
    return true;
}

static bool run_reduce_scatter(struct ncclComm *comm, const struct task *task)
{
    size_t width = type_bytes(task->what.type), part = PART_BYTES / width, size = (size_t)comm->size;
    const char *from = standin_view(task->send);
    char *into = standin_view(task->recv), *packed = malloc(size * part * width);
    bool goes_on = true;
    for (size_t start = 0; start < task->what.count && goes_on; start += part) {
        struct span spans[RANKS_MAX];
        size_t count = task->what.count - start < part ? task->what.count - start : part;
        for (size_t rank = 0; rank < size; rank++) {
            spans[rank] = (struct span){rank * count, count};
            memcpy(packed + rank * count * width, from + (rank * task->what.count + start) * width, count * width);
        }
        goes_on = reduce_spans(comm, task, packed, spans, size * count, into + start * width);
    }
    free(packed);
    return goes_on;
}

/* The operations that move blocks: which of them go out and come in at this rank. `out` and `in` are NULL where nothing
 * does. */
static bool run_blocks(struct ncclComm *comm, const struct task *task)
{
    enum kind kind = task->what.kind;
    size_t bytes = task->what.count * type_bytes(task->what.type);
    const char *from = standin_view(task->send);
    char *into = standin_view(task->recv);
    bool is_root = task->what.root == comm->rank;
    bool sends_all = kind == ALL_GATHER || kind == ALL_TO_ALL || (is_root && (kind == BROADCAST || kind == SCATTER));
    bool recvs_all = kind == ALL_GATHER || kind == ALL_TO_ALL || (is_root && kind == GATHER);
    struct transfer transfers[2 * RANKS_MAX];
    int count = 0;
    for (int peer = 0; peer < comm->size; peer++) {
        bool sends = sends_all || (kind == GATHER && peer == task->what.root);
        bool recvs = recvs_all || ((kind == BROADCAST || kind == SCATTER) && peer == task->what.root);
        const char *out = sends && (kind == ALL_TO_ALL || kind == SCATTER) ? from + (size_t)peer * bytes : from;
        char *in = recvs && kind != BROADCAST && kind != SCATTER ? into + (size_t)peer * bytes : into;
        if (peer == comm->rank && sends && recvs && in != out)
            memmove(in, out, bytes);
        if (peer != comm->rank && sends)
            transfers[count++] = transfer_of(task, true, peer, out, bytes);
        if (peer != comm->rank && recvs)
            transfers[count++] = transfer_of(task, false, peer, in, bytes);
    }
    bool exchanged = (kind == ALL_GATHER || kind == ALL_TO_ALL) && bytes <= EXCHANGE_BYTES;
    return (exchanged ? transfers_exchange : transfers_run)(comm, transfers, count);
}

/* Show the signature of the next collective to the others, and look at theirs. */
static void check_signature(struct ncclComm *comm, const struct task *task)
{
    uint64_t number = ++comm->collectives, words[3];
    memcpy(words, &task->what, sizeof words);
    struct seat *seats = comm->segment->seats;
    int entry = (int)(number % LOG_ENTRIES);
    atomic_store(&seats[comm->rank].log[entry].number, 0);
    for (int i = 0; i < 3; i++)
        atomic_store(&seats[comm->rank].log[entry].words[i], words[i]);
    atomic_store(&seats[comm->rank].log[entry].number, number);
    for (int rank = 0; rank < comm->size; rank++) {
        uint64_t other[3];
        if (atomic_load(&seats[rank].log[entry].number) != number)
            continue;
        for (int i = 0; i < 3; i++)
            other[i] = atomic_load(&seats[rank].log[entry].words[i]);
        if (!memcmp(words, other, sizeof words) || atomic_load(&seats[rank].log[entry].number) != number)
            continue;
        struct signature what;
        char own[TEXT_BYTES], theirs[TEXT_BYTES];
        memcpy(&what, other, sizeof what);
        standin_rule("let all ranks make the same calls in the same order, with the same arguments",
                     "collective %llu of a communicator: rank %d calls %s, and rank %d calls %s",
                     (unsigned long long)number, comm->rank, describe(&task->what, own, sizeof own), rank,
                     describe(&what, theirs, sizeof theirs));
        comm_fail(comm, NCCL_INTERNAL_ERROR);
    }
}

static bool run_collective(struct ncclComm *comm, const struct task *task)
{
    check_signature(comm, task);
    switch (task->what.kind) {
    case ALL_REDUCE:
        return run_all_reduce(comm, task);
    case REDUCE:
        return run_reduce(comm, task);
    case REDUCE_SCATTER:
        return run_reduce_scatter(comm, task);
    default:
        return run_blocks(comm, task);
    }
}

static bool run_messages(struct kernel *kernel)
{
    struct transfer *transfers = malloc((size_t)kernel->count * sizeof *transfers);
    int count = 0;
    for (int i = 0; i < kernel->count; i++) {
        const struct task *task = &kernel->tasks[i];
        size_t bytes = task->what.count * type_bytes(task->what.type);
        if (task->what.kind == SEND || task->what.kind == RECV)
            transfers[count++] = transfer_of(task, task->what.kind == SEND, task->peer,
                                             standin_view(task->what.kind == SEND ? task->send : task->recv), bytes);
    }
    bool goes_on = !count || transfers_run(kernel->comm, transfers, count);
    free(transfers);
    return goes_on;
}

static void run_tasks(struct kernel *kernel)
{
    if (kernel->fault) {
        failed(kernel->fault, "STANDIN_ASYNC: %s fails", kernel->text);
        comm_fail(kernel->comm, kernel->fault);
    }
    for (int i = 0; i < kernel->count; i++)
        if (kernel->tasks[i].what.kind < SEND && !run_collective(kernel->comm, &kernel->tasks[i]))
            return;
    run_messages(kernel);
}

void kernel_run(void *argument)
{
    struct kernel *kernel = argument;
    struct ncclComm *comm = kernel->comm;
    pthread_mutex_lock(&comm->lock);
    bool runs = !atomic_load(&comm->flag->aborted);
    if (runs && atomic_load(&comm->gone)) {
        standin_rule("launch graphs while their communicators live",
                     "a graph launches %s after the communicator was destroyed", kernel->text);
        runs = false;
    }
    comm->running += runs;
    pthread_mutex_unlock(&comm->lock);
    if (!runs)
        return;
    run_tasks(kernel);
    pthread_mutex_lock(&comm->lock);
    comm->running--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

void kernel_release(void *argument)
{
    struct kernel *kernel = argument;
    comm_release(kernel->comm);
    free(kernel);
}
