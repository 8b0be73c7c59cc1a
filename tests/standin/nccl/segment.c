/* The memory that the ranks of a communicator share. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

enum { SLEEP_MS = 20, CONNECTION_BYTES = 4096 };
static const char magic[8] = "standin";

static uint64_t hash(const char *text)
{
    uint64_t value = 1469598103934665603u;
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 1099511628211u;
    return value;
}

nccl_status segment_create(struct segment_id *id)
{
    memset(id, 0, sizeof *id);
    memcpy(id->magic, magic, sizeof magic);
    int fd = memfd_create("standin-nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct segment)) ||
        getrandom(id->nonce, sizeof id->nonce, 0) != sizeof id->nonce ||
        pwrite(fd, id->nonce, sizeof id->nonce, 0) != sizeof id->nonce)
        return failed(NCCL_SYSTEM_ERROR, "a segment cannot be made: %s", strerror(errno));
    id->pid = getpid();
    id->fd = fd;
    return NCCL_OK;
}

nccl_status segment_attach(struct ncclComm *comm, const struct segment_id *id)
{
    if (memcmp(id->magic, magic, sizeof magic))
        return failed(NCCL_INVALID_ARGUMENT, "the unique id is not one of ncclGetUniqueId");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return failed(NCCL_SYSTEM_ERROR, "process %d, which made the unique id, cannot be reached: %s", id->pid,
                      strerror(errno));
    void *at = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return failed(NCCL_SYSTEM_ERROR, "a segment cannot be mapped: %s", strerror(errno));
    struct segment *segment = at;
    if (memcmp(segment->nonce, id->nonce, sizeof id->nonce)) {
        munmap(at, sizeof(struct segment));
        return failed(NCCL_SYSTEM_ERROR, "the unique id is not valid any more");
    }
    struct seat *seat = &segment->seats[comm->rank];
    uint32_t empty = SEAT_EMPTY;
    if (!atomic_compare_exchange_strong(&seat->state, &empty, SEAT_COMING)) {
        standin_rule("give each rank its own number, and use a unique id for one communicator only",
                     "rank %d of a communicator is there already", comm->rank);
        munmap(at, sizeof(struct segment));
        return failed(NCCL_INVALID_ARGUMENT, "rank %d of a communicator is there already", comm->rank);
    }
    const char *host = getenv("NCCL_HOSTID");
    seat->pid = getpid();
    seat->device = comm->device;
    seat->size = comm->size;
    seat->host = hash(host ? host : "");
    comm->segment = segment;
    atomic_store(&seat->state, SEAT_TAKEN);
    for (int rank = 0; rank < comm->size; rank++)
        bell_ring(comm, rank);
    return NCCL_OK;
}

void segment_leave(struct ncclComm *comm, enum seat_state state)
{
    if (!comm->segment)
        return;
    atomic_store(&comm->segment->seats[comm->rank].state, state);
    for (int rank = 0; rank < comm->size; rank++)
        bell_ring(comm, rank);
}

void bell_ring(struct ncclComm *comm, int rank)
{
    struct seat *seat = &comm->segment->seats[rank];
    atomic_fetch_add(&seat->bell, 1);
    if (atomic_load(&seat->sleepers))
        syscall(SYS_futex, &seat->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t bell_read(struct ncclComm *comm)
{
    return atomic_load(&comm->segment->seats[comm->rank].bell);
}

bool bell_await(struct ncclComm *comm, uint32_t seen)
{
    struct seat *seat = &comm->segment->seats[comm->rank];
    if (atomic_load(&comm->flag->aborted))
        return false;
    struct timespec time = {0, SLEEP_MS * 1000000};
    atomic_fetch_add(&seat->sleepers, 1);
    syscall(SYS_futex, &seat->bell, FUTEX_WAIT, seen, &time, NULL, 0);
    atomic_fetch_sub(&seat->sleepers, 1);
    if (atomic_load(&seat->bell) == seen)
        peers_check(comm);
    return !atomic_load(&comm->flag->aborted);
}

bool peers_are_silent(void)
{
    const char *peers = getenv("STANDIN_PEERS");
    return peers && !strcmp(peers, "silent");
}

void comm_fail(struct ncclComm *comm, nccl_status status)
{
    unsigned int good = NCCL_OK;
    if (!atomic_compare_exchange_strong(&comm->result, &good, status) && good == NCCL_IN_PROGRESS)
        atomic_compare_exchange_strong(&comm->result, &good, status);
}

/* A process that was killed stays a zombie until its parent asks for it. */
static bool process_is_alive(int pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] && name_end[2] != 'Z' && name_end[2] != 'X';
}

void peers_check(struct ncclComm *comm)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long now_ms = now.tv_sec * 1000LL + now.tv_nsec / 1000000;
    if (!comm->segment || peers_are_silent() || now_ms - atomic_load(&comm->peers_checked_ms) < SLEEP_MS)
        return;
    atomic_store(&comm->peers_checked_ms, now_ms);
    for (int rank = 0; rank < comm->size; rank++) {
        struct seat *seat = &comm->segment->seats[rank];
        if (atomic_load(&seat->state) != SEAT_TAKEN || seat->pid == getpid() || process_is_alive(seat->pid))
            continue;
        if (atomic_load(&seat->state) == SEAT_TAKEN) { /* still: it has not left since */
            failed(NCCL_REMOTE_ERROR, "the process of rank %d (%d) has ended", rank, seat->pid);
            comm_fail(comm, NCCL_REMOTE_ERROR);
        }
    }
}

/* Not NCCL_OK: no rank needs to wait any longer. */
static nccl_status sleep_in_call(struct ncclComm *comm, uint32_t seen)
{
    struct ncclComm *parent = comm->parent;
    if (!bell_await(comm, seen) || (parent && atomic_load(&parent->flag->aborted)))
        return failed(NCCL_INTERNAL_ERROR, "the communicator was aborted");
    if (parent)
        peers_check(parent);
    unsigned int result = atomic_load(parent ? &parent->result : &comm->result);
    return result == NCCL_IN_PROGRESS ? NCCL_OK : result;
}

static nccl_status check_devices(struct ncclComm *comm)
{
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    struct seat *seats = comm->segment->seats;
    for (int i = 0; i < comm->size; i++)
        for (int j = 0; j < i; j++)
            if (seats[i].host == seats[j].host && seats[i].device == seats[j].device &&
                !(STANDIN_NCCL_VERSION >= 23003 && several && atoi(several)))
                return failed(NCCL_INVALID_USAGE,
                              "Duplicate GPU detected: ranks %d and %d both use device %d of one host", j, i,
                              seats[i].device);
    return NCCL_OK;
}

nccl_status segment_gather(struct ncclComm *comm, const struct segment_id *id)
{
    nccl_status status = NCCL_OK;
    for (int rank = 0; rank < comm->size && !status;) {
        uint32_t seen = bell_read(comm);
        struct seat *seat = &comm->segment->seats[rank];
        if (atomic_load(&seat->state) < SEAT_TAKEN) {
            status = sleep_in_call(comm, seen);
        } else if (seat->size != comm->size) {
            standin_rule("give all ranks the same size",
                         "rank %d joins a communicator of %d ranks, and rank %d one of %d", comm->rank, comm->size,
                         rank, seat->size);
            status = failed(NCCL_INVALID_ARGUMENT, "the ranks give different sizes");
        } else {
            rank++;
        }
    }
    if (id->pid == getpid() && !status && !atomic_exchange(&comm->segment->is_closed, 1))
        close(id->fd);
    return status ? status : check_devices(comm);
}

/* Bits: messages of a pair; small collectives and large ones. The library chooses algorithms by the size, and connects
 * each when it is first used, the messages of two ranks likewise. */
static uint32_t kind_of_connection(const struct task *task)
{
    bool is_large = task->what.count * type_bytes(task->what.type) > CONNECTION_BYTES;
    return 1u << (task->what.kind >= SEND ? 4 + task->peer : is_large);
}

void segment_announce(struct ncclComm *comm, const struct task *task)
{
    uint32_t own = kind_of_connection(task);
    if (comm->connected & own)
        return;
    atomic_fetch_or(&comm->segment->seats[comm->rank].connects, own);
    for (int rank = 0; rank < comm->size; rank++)
        bell_ring(comm, rank);
}

nccl_status segment_connect(struct ncclComm *comm, const struct task *task)
{
    uint32_t own = kind_of_connection(task);
    bool is_message = task->what.kind >= SEND;
    struct seat *seats = comm->segment->seats;
    nccl_status status = NCCL_OK;
    if (comm->connected & own || (STANDIN_NCCL_VERSION < 22203 && !is_message))
        return NCCL_OK;
    for (int rank = 0; rank < comm->size && !status;) {
        uint32_t seen = bell_read(comm), wanted = is_message ? 1u << (4 + comm->rank) : own;
        bool is_needed = !is_message || rank == task->peer;
        if (is_needed && !(atomic_load(&seats[rank].connects) & wanted))
            status = sleep_in_call(comm, seen);
        else
            rank++;
    }
    comm->connected |= status ? 0 : own;
    return status;
}

nccl_status board_exchange(struct ncclComm *comm, const bool *takes_part, const void *own, size_t bytes,
                           char all[RANKS_MAX][BOARD_BYTES])
{
    struct seat *seats = comm->segment->seats;
    uint64_t number = ++comm->posted;
    memcpy(seats[comm->rank].boards[number % 2], own, bytes);
    atomic_store(&seats[comm->rank].posted, number);
    for (int rank = 0; rank < comm->size; rank++)
        bell_ring(comm, rank);
    for (int rank = 0; rank < comm->size;) {
        uint32_t seen = bell_read(comm);
        if (takes_part[rank] && atomic_load(&seats[rank].posted) < number) {
            nccl_status status = sleep_in_call(comm, seen);
            if (status)
                return status;
            continue;
        }
        if (takes_part[rank])
            memcpy(all[rank], seats[rank].boards[number % 2], BOARD_BYTES);
        rank++;
    }
    return NCCL_OK;
}
