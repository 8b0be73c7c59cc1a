#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory_left.h"

#ifndef MADV_POPULATE_READ
enum { MADV_POPULATE_READ = 22 }; /* Linux 5.14; older C libraries do not know it */
#endif

/* What comes before the rings. */
static size_t head_bytes(void)
{
    enum { LEAST_PAGE_BYTES = 4096 };
    _Static_assert(2 * sizeof(struct ring_shared) <= LEAST_PAGE_BYTES, "it is for both rings");
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t file_bytes(size_t ring_bytes)
{
    return head_bytes() + 2 * ring_bytes;
}

#define SHM_FOLDER "/dev/shm"

/* Sealed files cannot shrink, so that the other rank cannot take memory from under this one. Where the kernel, or the
 * container's rules, have no memfd, a file in /dev/shm that never gets a name. */
static int open_file(void)
{
    int fd = memfd_create("libcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM || errno == EACCES))
        fd = open(SHM_FOLDER, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

/* The limit of file sizes holds for memory, too, and to exceed it ends the process by a signal. */
static int is_too_large(size_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

const char *segment_error(int error)
{
    if (error == EFBIG)
        return "the limit of file sizes (ulimit -f) holds for shared memory, too, and is less";
    if (error == SEGMENT_NOT_LEFT)
        return "there is not that much memory left, on this machine or for this container (memory.max of its cgroup)";
    if (error == SEGMENT_TOO_MANY)
        return "it has shared more than 4096 pieces";
    if (error == SEGMENT_CAN_SHRINK)
        return "it is a file that can shrink, as that rank may not use memfd_create; allow it there, or nowhere";
    return strerror(error);
}

/* Small ones are not worth reading of what there is. */
static int is_there(size_t bytes)
{
    enum { SMALL_BYTES = 16 << 20 };
    return bytes < SMALL_BYTES || bytes <= memory_left();
}

/* Allocate the pages, and seal the size, so that no process can take them away. */
static int reserve(int fd, size_t bytes)
{
    int failed = is_too_large(bytes) ? EFBIG : is_there(bytes) ? 0 : SEGMENT_NOT_LEFT;
    while (!failed && (failed = posix_fallocate(fd, 0, (off_t)bytes)) == EINTR)
        ;
    if (failed) {
        close(fd);
        return -failed;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

int segment_file(size_t bytes)
{
    int fd = open_file();
    return fd < 0 ? fd : reserve(fd, bytes);
}

int32_t segment_node(void)
{
    unsigned cpu, node;
    return syscall(SYS_getcpu, &cpu, &node, NULL) == 0 ? (int32_t)node : -1;
}

/* Pages of this part of the file shall come from that node. Containers may forbid it. */
static void place(int fd, size_t bytes, size_t offset, int32_t node)
{
    enum { NODES_MAX = 1024, BITS = 8 * sizeof(unsigned long) };
    unsigned long mask[NODES_MAX / BITS] = { 0 };
    if (node < 0 || node >= NODES_MAX)
        return;
    mask[(size_t)node / BITS] = 1ul << (size_t)node % BITS;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, (off_t)offset);
    if (at == MAP_FAILED)
        return;
    syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX, 0);
    munmap(at, bytes);
}

static int create(size_t ring_bytes, const int32_t nodes[2])
{
    int fd = open_file();
    for (size_t i = 0; fd >= 0 && nodes && i < 2; i++)
        place(fd, ring_bytes, head_bytes() + i * ring_bytes, nodes[i]);
    return fd < 0 ? fd : reserve(fd, file_bytes(ring_bytes));
}

size_t segment_ring_least(void)
{
    size_t pages = RING_LANES * (size_t)sysconf(_SC_PAGESIZE);
    return pages < SEGMENT_RING_MIN ? SEGMENT_RING_MIN : pages;
}

int segment_create(size_t *ring_bytes, const int32_t nodes[2])
{
    int fd = create(*ring_bytes, nodes);
    while ((fd == -ENOSPC || fd == -ENOMEM || fd == -EFBIG || fd == -SEGMENT_NOT_LEFT) &&
           *ring_bytes > segment_ring_least()) {
        *ring_bytes /= 2;
        fd = create(*ring_bytes, nodes);
    }
    return fd;
}

/* If this rank can make such files, the other rank could have, too. */
static int can_seal(void)
{
    int fd = memfd_create("libcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == EMFILE || errno == ENFILE;
}

static uint64_t free_bytes(void)
{
    struct statvfs s;
    int has_limit = statvfs(SHM_FOLDER, &s) == 0 && s.f_blocks > 0; /* ramfs has none */
    return has_limit ? (uint64_t)s.f_bavail * s.f_frsize : UINT64_MAX;
}

int segment_try(size_t ring_bytes)
{
    int fd = can_seal() ? create(ring_bytes, NULL) : open_file();
    if (fd < 0)
        return fd;
    close(fd);
    return is_too_large(file_bytes(ring_bytes))                           ? -EFBIG
           : !can_seal() && free_bytes() < (uint64_t)file_bytes(ring_bytes) ? -ENOSPC
                                                                          : 0;
}

size_t segment_share(size_t ring_bytes, uint64_t pairs)
{
    if (pairs == 0 || can_seal())
        return ring_bytes;
    uint64_t share = free_bytes() / pairs;
    while (file_bytes(ring_bytes) > share && ring_bytes > segment_ring_least())
        ring_bytes /= 2;
    return ring_bytes;
}

int segment_check_file(int fd, uint64_t bytes)
{
    struct stat s;
    if (fstat(fd, &s) != 0)
        return -errno;
    int seals = fcntl(fd, F_GET_SEALS);
    int is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK);
    if ((uint64_t)s.st_size != bytes)
        return -EINVAL;
    return is_sealed || !can_seal() ? 0 : -SEGMENT_CAN_SHRINK;
}

int segment_check(int fd, size_t ring_bytes)
{
    if (ring_bytes < SEGMENT_RING_MIN || ring_bytes > SEGMENT_RING_MAX || (ring_bytes & (ring_bytes - 1)) != 0)
        return -EINVAL;
    return segment_check_file(fd, file_bytes(ring_bytes));
}

static void *map(void *at, int fd, size_t bytes, size_t offset)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, (off_t)offset);
}

/* A ring: each of its lanes twice in a row; NULL if that cannot be. */
static uint8_t *map_twice(int fd, size_t bytes, size_t offset)
{
    const size_t lane_bytes = bytes / RING_LANES;
    uint8_t *ring = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at = ring;
    if (ring == MAP_FAILED)
        return NULL;
    for (size_t lane = 0; lane < RING_LANES; lane++, offset += lane_bytes)
        for (int i = 0; i < 2; i++, at += lane_bytes)
            if (map(at, fd, lane_bytes, offset) == MAP_FAILED) {
                int failed = errno;
                munmap(ring, 2 * bytes);
                errno = failed;
                return NULL;
            }
    return ring;
}

/* Else each page costs a fault when the first lap comes to it: the first 4096 messages took 0.4 us each instead of 0.1.
 * The file has the pages already, so on x86-64 to map them for reading maps them for writing, too. Older kernels cannot
 * do it. */
static void fill_page_tables(const struct segment *s)
{
    enum { MOST_BYTES = 4 << 20 }; /* it takes 0.1 ms or more per MiB */
    for (size_t i = 0; i < 2 && s->ring_bytes <= MOST_BYTES; i++)
        madvise(s->ring[i], 2 * s->ring_bytes, MADV_POPULATE_READ);
}

int segment_map(struct segment *s, int fd, size_t ring_bytes)
{
    memset(s, 0, sizeof *s);
    s->ring_bytes = ring_bytes;
    void *shared = map(NULL, fd, head_bytes(), 0);
    s->shared = shared == MAP_FAILED ? NULL : shared;
    for (size_t i = 0; s->shared && i < 2; i++)
        s->ring[i] = map_twice(fd, ring_bytes, head_bytes() + i * ring_bytes);
    if (s->ring[0] && s->ring[1]) {
        fill_page_tables(s);
        return 0;
    }
    int failed = errno;
    segment_unmap(s);
    return -failed;
}

void segment_unmap(struct segment *s)
{
    if (s->shared)
        munmap(s->shared, head_bytes());
    for (int i = 0; i < 2; i++)
        if (s->ring[i])
            munmap(s->ring[i], 2 * s->ring_bytes);
    memset(s, 0, sizeof *s);
}
