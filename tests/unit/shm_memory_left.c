/* How much memory there is left, by what /proc and the control groups say; and that no more is asked of the kernel. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/memory_left.h"
#include "backend_shm/segment.h"
#include "kernel_files.h"

enum { MIB = 1 << 20 };

static const char *folder;

/* In MiB; -1: not known. */
static int64_t left(void)
{
    char proc[160], groups[160];
    snprintf(proc, sizeof proc, "%s/proc", folder);
    snprintf(groups, sizeof groups, "%s/groups", folder);
    uint64_t bytes = memory_left_in(proc, groups);
    return bytes == UINT64_MAX ? -1 : (int64_t)(bytes / MIB);
}

static void the_least_of_machine_and_groups_counts(void **state)
{
    (void)state;
    assert_int_equal(left(), -1);
    kernel_files_write("proc/meminfo", "MemTotal: 1024000 kB\nMemAvailable:   10 kB\nAnonPages:   102400 kB\n"
                                       "Shmem: 51200 kB\nSwapTotal: 900000 kB\nSwapFree: 102400 kB\n"
                                       "Hugetlb: 51200 kB\n");
    assert_int_equal(left(), 900);
    kernel_files_write("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    assert_int_equal(left(), 900);
    kernel_files_write("groups/a/b/memory.max", "max\n");
    assert_int_equal(left(), 900);
    kernel_files_write("groups/a/memory.max", "629145600\n"); /* 600 MiB, and all swap */
    assert_int_equal(left(), 700);
    kernel_files_write("groups/a/memory.swap.max", "83886080\n");
    kernel_files_write("groups/a/memory.swap.current", "31457280\n");
    assert_int_equal(left(), 650);
    kernel_files_write("groups/a/memory.swap.max", "0\n");
    assert_int_equal(left(), 600);
    kernel_files_write("groups/a/memory.stat", "anon 104857600\nfile 314572800\nshmem 209715200\n");
    assert_int_equal(left(), 300);
    kernel_files_write("groups/a/b/memory.max", "52428800\n");
    kernel_files_write("groups/a/b/memory.swap.max", "0\n");
    kernel_files_write("groups/a/b/memory.stat", "anon 52428801\nshmem 0\n");
    assert_int_equal(left(), 0);
    kernel_files_write("proc/self/cgroup", "0::/\n"); /* a name space of its own */
    assert_int_equal(left(), 900);
    kernel_files_write("groups/memory.max", "104857600\n");
    kernel_files_write("groups/memory.swap.max", "max\n");
    assert_int_equal(left(), 200);
    kernel_files_write("proc/self/cgroup", "5:memory:/a/b\n"); /* without version 2 */
    assert_int_equal(left(), 200);
}

/* The kernel would take pages until processes are ended; so here it is not asked at all. */
int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t bytes);

int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes)
{
    (void)fd;
    (void)offset;
    return bytes > MIB ? ENOSPC : 0;
}

int __wrap_posix_fallocate64(int fd, off_t offset, off_t bytes)
{
    return __wrap_posix_fallocate(fd, offset, bytes);
}

static void a_file_that_cannot_be_is_refused(void **state)
{
    const uint64_t bytes = 1ull << 46;
    struct rlimit files;
    (void)state;
    int fd = segment_file(4096);
    if (sizeof(size_t) < sizeof bytes || fd < 0 || memory_left() >= bytes || getrlimit(RLIMIT_FSIZE, &files) != 0 ||
        files.rlim_cur != RLIM_INFINITY)
        skip(); /* such files cannot be made here, or nobody knows how much there is */
    close(fd);
    assert_int_equal(segment_file(bytes), -SEGMENT_NOT_LEFT);
    assert_non_null(strstr(segment_error(SEGMENT_NOT_LEFT), "not that much memory left"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_machine_and_groups_counts),
        cmocka_unit_test(a_file_that_cannot_be_is_refused),
    };
    folder = kernel_files_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed | kernel_files_remove();
}
