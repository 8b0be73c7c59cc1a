/* backend_shm's rings: records of every length come out as they went in, over many laps; what the other rank writes
 * that makes no sense is noticed; memory that is not fit is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/segment.h"

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
static int has_memfd = 1;

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (has_memfd)
        return __real_memfd_create(name, flags);
    errno = EPERM;
    return -1;
}

int __real_statvfs64(const char *path, struct statvfs *ret);
int __wrap_statvfs64(const char *path, struct statvfs *ret);
static uint64_t free_blocks; /* of 1 KiB, and as many in use; 0: as it is */

int __wrap_statvfs64(const char *path, struct statvfs *ret)
{
    assert_string_equal(path, "/dev/shm");
    if (!free_blocks)
        return __real_statvfs64(path, ret);
    *ret = (struct statvfs){ .f_bsize = 4096, .f_frsize = 1024, .f_blocks = 2 * free_blocks, .f_bfree = free_blocks,
                             .f_bavail = free_blocks };
    return 0;
}

struct ends {
    struct segment segment;
    struct ring_out out;
    struct ring_in in;
};

/* Both ends of one ring, each by a mapping of its own. */
static void open_ends(struct ends *writer, struct ends *reader, size_t bytes)
{
    const uint64_t salt = 0x1234567890abcdefu, first = 33;
    int fd = segment_create(&bytes, NULL);
    assert_true(fd >= 0);
    assert_int_equal(segment_check(fd, bytes), 0);
    assert_int_equal(segment_map(&writer->segment, fd, bytes), 0);
    assert_int_equal(segment_map(&reader->segment, fd, bytes), 0);
    close(fd);
    ring_open_out(&writer->out, &writer->segment.shared[0], writer->segment.ring[0], bytes, salt, first);
    ring_open_in(&reader->in, &reader->segment.shared[0], reader->segment.ring[0], bytes, salt, first);
}

static void close_ends(struct ends *writer, struct ends *reader)
{
    segment_unmap(&writer->segment);
    segment_unmap(&reader->segment);
}

static uint8_t byte_of(unsigned record, size_t i)
{
    return (uint8_t)(record * 31 + i);
}

static void put(struct ends *w, unsigned record, uint32_t bytes, int more)
{
    uint8_t payload[4096];
    struct frame h = { .type = FRAME_EAGER, .seq = record, .bytes = bytes, .credit = record };
    for (size_t i = 0; i < bytes; i++)
        payload[i] = byte_of(record, i);
    if (more)
        ring_put_more(&w->out, payload, bytes);
    else
        ring_put_frame(&w->out, ring_key(&h), &h, payload, bytes);
}

static void take(struct ends *r, unsigned record, uint32_t bytes, int more)
{
    const struct ring_record *found;
    enum ring_found what = ring_look(&r->in, &found);
    assert_int_equal(what, more ? RING_MORE : RING_FRAME);
    assert_int_equal(found->bytes, bytes);
    if (!more) {
        struct frame h = found->frame;
        assert_int_equal(h.seq, record);
        assert_true(found->key == ring_key(&h));
        assert_int_equal(found->credit, record);
    }
    const uint8_t *payload = ring_payload(found, what, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(payload[i], byte_of(record, i));
    ring_pop(&r->in, more ? 1 + ring_payload_lines(bytes) : ring_frame_lines(bytes));
}

static uint32_t length_of(unsigned record)
{
    static const uint32_t lengths[] = { 0, 1, 8, RING_INLINE, RING_INLINE + 1, 63, 64, 65, 1000, 2047, 2048, 2049,
                                        2048 + 255, 2048 + 257, 3001, 4096 };
    return lengths[record * 7 % (sizeof lengths / sizeof *lengths)];
}

static int is_more(unsigned record)
{
    return record % 3 == 2 && length_of(record) > 0;
}

static uint64_t lines_of(unsigned record)
{
    return is_more(record) ? 1 + ring_payload_lines(length_of(record)) : ring_frame_lines(length_of(record));
}

/* As ring_free, for the record behind the next one. */
static int64_t free_behind(struct ring_out *r, uint64_t wanted)
{
    unsigned lane = r->lane;
    r->lane = ring_lane_behind(lane);
    int64_t lines = ring_free(r, wanted);
    r->lane = lane;
    return lines;
}

/* The reader reads a few, and now and then all. */
static void records_come_out_as_they_went_in(void **state)
{
    static const size_t sizes[] = { SEGMENT_RING_MIN, 64 << 10, 256 << 10 };
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct ends w, r;
        const struct ring_record *none;
        unsigned written = 0, read = 0;
        open_ends(&w, &r, sizes[k]);
        w.out.copy.way = k % 2 ? COPY_OUT_PAST : COPY_OUT_MEASURED;
        while (read < 20000) {
            unsigned most = read % 3 ? 20000 : 1 + read % 7;
            for (; most && ring_free(&w.out, lines_of(written)) >= (int64_t)lines_of(written); most--) {
                put(&w, written, length_of(written), is_more(written));
                written++;
                ring_take_next(&w.out, written % 5 ? length_of(written) : RING_TAKEN,
                               (enum ring_waits)(written % 3));
                ring_take_ahead(&w.out);
            }
            for (unsigned n = read % 11 ? 1 + read % 5 : 20000; n && read < written; n--, read++)
                take(&r, read, length_of(read), is_more(read));
        }
        while (read < written) {
            take(&r, read, length_of(read), is_more(read));
            read++;
        }
        assert_int_equal(ring_look(&r.in, &none), RING_NOTHING);
        assert_int_equal(ring_free(&w.out, w.out.capacity), (int64_t)w.out.capacity);
        assert_int_equal(free_behind(&w.out, w.out.capacity), (int64_t)w.out.capacity);
        close_ends(&w, &r);
    }
}

/* One lane may be full while the other is not: a record waits for its own. */
static void records_wait_for_their_lane(void **state)
{
    struct ends w, r;
    unsigned n = 0;
    (void)state;
    open_ends(&w, &r, SEGMENT_RING_MIN);
    for (uint32_t bytes = 8; ring_free(&w.out, ring_frame_lines(bytes)) >= (int64_t)ring_frame_lines(bytes); n++) {
        put(&w, n, bytes, 0);
        bytes = n % 2 ? 8 : 2000; /* as long as the next record will be */
    }
    assert_true(ring_free(&w.out, w.out.capacity) >= 0); /* the reader's word makes sense before it has read anything */
    assert_true(free_behind(&w.out, w.out.capacity / 2) >= (int64_t)w.out.capacity / 2);
    take(&r, 0, 8, 0);
    assert_true(ring_free(&w.out, ring_frame_lines(2000)) < (int64_t)ring_frame_lines(2000));
    take(&r, 1, 2000, 0);
    assert_true(ring_free(&w.out, ring_frame_lines(2000)) >= (int64_t)ring_frame_lines(2000));
    for (unsigned i = 2; i < n; i++)
        take(&r, i, i % 2 ? 2000 : 8, 0);
    close_ends(&w, &r);
}

/* Are the lines of the next record, with so long a payload, taken beforehand? Its copy is not measured then. */
static int are_taken(struct ring_out *out, uint32_t bytes, enum ring_waits waits)
{
    out->unmeasured = 0;
    ring_take_next(out, bytes, waits);
    return out->unmeasured == bytes;
}

/* Long and short ones have been measured, and are faster past the caches, as between two dies. */
static void open_far_ends(struct ends *w, struct ends *r)
{
    open_ends(w, r, 1 << 20);
    w->out.copy.way = COPY_OUT_MEASURED;
    w->out.copy.bytes = COPY_OUT_NEW_LAPS << 20;
    w->out.copy.times = (struct copy_out_times){ .cached_ns = 26000, .past_ns = 4500 };
    for (int i = 0; i < COPY_OUT_BRIEFS; i++)
        w->out.copy.brief[i] = (struct copy_out_times){ .cached_ns = 1000, .past_ns = 200, .seen = { 64, 64 } };
}

/* While this rank waits, their lines come. */
static void short_records_before_a_wait_are_not_written_past_the_caches(void **state)
{
    (void)state;
    struct ends w, r;
    open_far_ends(&w, &r);
    for (uint32_t bytes = 1 << 10; bytes <= 10 << 10; bytes += 512) {
        assert_true(copy_out_is_past(&w.out.copy, bytes, 0));
        assert_int_equal(are_taken(&w.out, bytes, RING_WAITS_IN_TURN), bytes <= 8 << 10);
        assert_int_equal(are_taken(&w.out, bytes, RING_WAITS_BOTH), bytes <= 2 << 10);
        assert_false(are_taken(&w.out, bytes, RING_WAITS_NO));
    }
    assert_int_equal(w.out.sent, 0);
    w.out.copy.way = COPY_OUT_PAST; /* if it is told to */
    assert_false(are_taken(&w.out, 1 << 10, RING_WAITS_IN_TURN));
    assert_false(are_taken(&w.out, 1 << 10, RING_WAITS_BOTH));
    close_ends(&w, &r);
}

/* How often the ring has been filled says whether its lines are in a cache. */
static void payloads_count_whose_lines_are_taken_beforehand(void **state)
{
    enum { LONG = 2000 };
    struct ends w, r;
    (void)state;
    open_ends(&w, &r, 1 << 20);
    w.out.copy.way = COPY_OUT_MEASURED;
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t before = w.out.copy.bytes;
        if (i % 2)
            ring_take_next(&w.out, LONG, RING_WAITS_IN_TURN);
        assert_int_equal(w.out.unmeasured > 0, i % 2);
        put(&w, i, LONG, 0);
        take(&r, i, LONG, 0);
        assert_int_equal(w.out.copy.bytes, before + LONG);
    }
    close_ends(&w, &r);
}

/* In every lap, what lies behind the last record is of the lap before. */
static void what_is_left_of_a_lap_is_no_record(void **state)
{
    struct ends w, r;
    const struct ring_record *found;
    (void)state;
    open_ends(&w, &r, SEGMENT_RING_MIN);
    for (unsigned lap = 0; lap < 50; lap++) {
        for (unsigned i = 0; i < w.out.capacity / 2; i++) {
            assert_true(ring_free(&w.out, 2) >= 2);
            put(&w, i, 8, 0);
            take(&r, i, 8, 0);
            assert_int_equal(ring_look(&r.in, &found), RING_NOTHING);
        }
    }
    close_ends(&w, &r);
}

static void a_reader_who_lies_is_noticed(void **state)
{
    struct ends w, r;
    (void)state;
    open_ends(&w, &r, SEGMENT_RING_MIN);
    for (unsigned i = 0; i < RING_LANES; i++) {
        put(&w, i, 8, 0);
        take(&r, i, 8, 0);
    }
    assert_true(ring_free(&w.out, w.out.capacity) > 0);
    assert_true(free_behind(&w.out, w.out.capacity) > 0);
    atomic_store(&r.in.shared->head[0], w.out.tail[0] + 1);
    atomic_store(&r.in.shared->head[1], w.out.tail[1] - 1);
    assert_int_equal(ring_free(&w.out, w.out.capacity + 1), -1);
    assert_int_equal(free_behind(&w.out, w.out.capacity + 1), -1);
    assert_false(ring_holds(&r.in, UINT32_MAX));
    assert_false(ring_holds(&r.in, (uint32_t)r.in.capacity * RING_LINE));
    assert_true(ring_holds(&r.in, (uint32_t)r.in.capacity * RING_LINE / 2));
    close_ends(&w, &r);
}

static void memory_that_does_not_fit_is_refused(void **state)
{
    size_t bytes = SEGMENT_RING_MIN;
    int fd = segment_create(&bytes, NULL), small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    (void)state;
    assert_true(fd >= 0 && small >= 0);
    assert_int_equal(segment_check(fd, bytes), 0);
    assert_int_equal(segment_check(fd, bytes * 2), -EINVAL);
    assert_int_equal(segment_check(fd, bytes - 1), -EINVAL);
    assert_int_equal(segment_check(fd, 0), -EINVAL);
    assert_int_not_equal(ftruncate(fd, 0), 0); /* it is sealed */
    assert_int_equal(ftruncate(small, (off_t)(sysconf(_SC_PAGESIZE) + 2 * SEGMENT_RING_MIN)), 0);
    assert_int_equal(segment_check(small, bytes), -SEGMENT_CAN_SHRINK); /* its owner could still shrink it */
    close(fd);
    close(small);
}

/* Where files cannot be sealed, one without a name in /dev/shm does; elsewhere it is refused. */
static void a_file_that_cannot_be_sealed(void **state)
{
    size_t bytes = SEGMENT_RING_MIN;
    (void)state;
    has_memfd = 0;
    int fd = segment_create(&bytes, NULL);
    int checked = segment_check(fd, bytes);
    has_memfd = 1;
    assert_true(fd >= 0);
    assert_int_equal(checked, 0);
    assert_int_equal(segment_check(fd, bytes), -SEGMENT_CAN_SHRINK);
    close(fd);
}

/* Then the first pairs must not take all that there is. */
static void all_pairs_share_what_is_free(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), least = segment_ring_least();
    (void)state;
    free_blocks = 1024;
    assert_int_equal(segment_share(2 << 20, 1), 2 << 20); /* memfd has a limit of its own */
    assert_int_equal(segment_try(least), 0);
    has_memfd = 0;
    assert_int_equal(segment_share(2 << 20, 0), 2 << 20);
    assert_int_equal(segment_share(2 << 20, 1), 256 << 10);
    for (uint64_t pairs = 1; pairs * (page + 2 * least) <= free_blocks << 10; pairs++) {
        size_t bytes = segment_share(2 << 20, pairs);
        assert_true(bytes >= least && pairs * (page + 2 * bytes) <= free_blocks << 10);
    }
    assert_int_equal(segment_share(2 << 20, 1000), least);
    assert_int_equal(segment_share(least, 1000), least);
    assert_int_equal(segment_try(least), 0);
    free_blocks = (page + 2 * least) / 1024;
    assert_int_equal(segment_try(least), 0);
    free_blocks--;
    assert_int_equal(segment_try(least), -ENOSPC);
    free_blocks = 0;
    has_memfd = 1;
}

/* The policy of what is mapped at this address, as the kernel says it; 0 if it does not tell. */
static int policy_of(const void *at, char *text, size_t capacity)
{
    char line[512], begin[32];
    int found = 0;
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    snprintf(begin, sizeof begin, "%lx ", (unsigned long)(uintptr_t)at);
    while (maps && !found && fgets(line, sizeof line, maps))
        if (strncmp(line, begin, strlen(begin)) == 0) {
            snprintf(text, capacity, "%s", line + strlen(begin));
            found = 1;
        }
    if (maps)
        fclose(maps);
    return found;
}

/* Each ring where its reader runs. This machine may have one node only: what is tried is that the kernel is told. */
static void rings_are_where_their_readers_are(void **state)
{
    static const int32_t cases[][2] = { { 0, -1 }, { -1, 0 }, { 0, 0 }, { 100000, -1 } };
    char policy[512];
    (void)state;
    assert_true(segment_node() >= 0);
    if (syscall(SYS_get_mempolicy, NULL, NULL, 0ul, NULL, 0ul) != 0)
        skip(); /* a container's rules forbid it, or the kernel has no NUMA */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes = SEGMENT_RING_MIN;
        struct segment s;
        int fd = segment_create(&bytes, cases[i]);
        assert_true(fd >= 0);
        assert_int_equal(segment_map(&s, fd, bytes), 0);
        for (int ring = 0; ring < 2; ring++) {
            memset(s.ring[ring], 1, bytes);
            if (!policy_of(s.ring[ring], policy, sizeof policy))
                skip();
            int wanted = cases[i][ring] == 0;
            if (wanted != (strncmp(policy, "prefer", 6) == 0))
                fail_msg("ring %d of case %zu: %s", ring, i, policy);
        }
        segment_unmap(&s);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_out_as_they_went_in),
        cmocka_unit_test(records_wait_for_their_lane),
        cmocka_unit_test(short_records_before_a_wait_are_not_written_past_the_caches),
        cmocka_unit_test(payloads_count_whose_lines_are_taken_beforehand),
        cmocka_unit_test(what_is_left_of_a_lap_is_no_record),
        cmocka_unit_test(a_reader_who_lies_is_noticed),
        cmocka_unit_test(memory_that_does_not_fit_is_refused),
        cmocka_unit_test(a_file_that_cannot_be_sealed),
        cmocka_unit_test(all_pairs_share_what_is_free),
        cmocka_unit_test(rings_are_where_their_readers_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
