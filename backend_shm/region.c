#include "region.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/utf8.h"
#include "duplex.h"
#include "greeting.h"
#include "say.h"
#include "segment.h"

enum {
    MAPPINGS_MAX = 4096, /* of one peer: segment_error says it */
};

/* A file in memory, from an address that is a multiple of HUGE_PAGE_BYTES. */
struct file_map {
    uint8_t *data;
    void *reserved; /* what munmap takes; NULL: nothing is mapped */
    size_t reserved_bytes;
};

/* Has a peer been told of a region? */
struct told {
    enum { TOLD_NOT, TOLD_AWAITED /* it has not answered yet */, TOLD_MAPPED } state;
    uint32_t refusals; /* in a row */
    uint32_t pause;    /* so many of the next messages from there are copied before it is told of again */
};

struct region {
    struct region *next;
    struct file_map map;
    struct file_map shadow; /* of a region that is detached: what the peers have mapped */
    uint8_t *is_private;    /* a byte for each page: it is no longer one that the peers have mapped */
    size_t bytes, file_bytes;
    uint32_t id;
    int fd;
    struct told *told; /* [world size], by the peer */
};

/* A peer's region. */
struct mapping {
    struct mapping *next;
    struct file_map map;
    size_t bytes;
    uint32_t id;
};

enum notice_kind {
    NOTICE_MAP = 1, /* with the descriptor */
    NOTICE_UNMAP,
    NOTICE_END,     /* I give you up, and say why */
};

/* A packet on the socket. */
struct notice {
    uint32_t kind, id;
    uint64_t bytes;
    char why[SHM_WHY_BYTES]; /* only of END */
};

/* ---- Mapping ---- */

/* The kernel then needs one entry for 512 pages. Not all kernels can do this with memory of a file, and none has to. */
static void want_huge_pages(const struct file_map *m, size_t bytes)
{
    if (bytes % HUGE_PAGE_BYTES == 0)
        huge_pages_make(m->data, bytes);
}

static int map_file(struct file_map *m, int fd, size_t bytes)
{
    const uintptr_t most = HUGE_PAGE_BYTES;
    m->data = NULL;
    m->reserved_bytes = bytes + HUGE_PAGE_BYTES;
    m->reserved = mmap(NULL, m->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->reserved == MAP_FAILED) {
        m->reserved = NULL;
        return 0;
    }
    uint8_t *data = (uint8_t *)m->reserved + (most - (uintptr_t)m->reserved % most) % most;
    if (mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int failed = errno;
        munmap(m->reserved, m->reserved_bytes);
        m->reserved = NULL;
        errno = failed;
        return 0;
    }
    m->data = data;
    want_huge_pages(m, bytes);
    return 1;
}

static void unmap_file(struct file_map *m)
{
    if (m->reserved)
        munmap(m->reserved, m->reserved_bytes);
    m->reserved = NULL;
}

/* ---- The owner ---- */

void region_destroy(struct region *r)
{
    unmap_file(&r->map);
    unmap_file(&r->shadow);
    free(r->is_private);
    if (r->fd >= 0)
        close(r->fd);
    free(r->told);
    free(r);
}

struct region *region_create(const struct fabric *f, size_t bytes)
{
    struct region *r = calloc(1, sizeof *r);
    size_t page = bytes >= HUGE_PAGE_BYTES ? (size_t)HUGE_PAGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    if (!r || !(r->told = calloc((size_t)f->domain->peers.size, sizeof *r->told))) {
        free(r);
        exec_fail(COMM_ERR_NO_MEMORY, "no memory");
        return NULL;
    }
    r->bytes = bytes;
    r->file_bytes = (bytes + page - 1) / page * page;
    r->fd = segment_file(r->file_bytes);
    if (r->fd < 0 || !map_file(&r->map, r->fd, r->file_bytes)) {
        int error = r->fd < 0 ? -r->fd : errno;
        exec_fail(COMM_ERR_NO_MEMORY, "%zu bytes of shared memory: %s%s", bytes, segment_error(error),
                  error == EMFILE ? ": each piece keeps a descriptor (raise the limit: ulimit -n)" : "");
        region_destroy(r);
        return NULL;
    }
    return r;
}

static int is_region(const struct fabric *f, uint32_t id)
{
    const struct region *r = f->regions;
    while (r && r->id != id)
        r = r->next;
    return r != NULL;
}

/* They come again, after 2^32 regions. */
static uint32_t new_id(struct fabric *f)
{
    do
        f->region_id++;
    while (f->region_id == 0 || f->region_id == RING_BACK_BY_KERNEL || is_region(f, f->region_id));
    return f->region_id;
}

void region_enter(struct fabric *f, struct region *r)
{
    r->id = new_id(f);
    r->next = f->regions;
    f->regions = r;
}

uint8_t *region_data(const struct region *r)
{
    return r->map.data;
}

uint32_t region_id(const struct region *r)
{
    return r->id;
}

static int tell(const struct duplex *p, enum notice_kind kind, const struct region *r)
{
    const struct notice n = { .kind = kind, .id = r->id, .bytes = r->file_bytes };
    return greeting_send(p->watch.fd, &n, sizeof n, &r->fd, kind == NOTICE_MAP);
}

void region_leave(struct fabric *f, struct region *r)
{
    struct region **at = &f->regions;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    /* A peer whose socket is full keeps it mapped until the world is closed, or its number comes again. */
    for (int32_t i = 0; i < f->domain->peers.size; i++) {
        struct duplex *p = &f->duplexes[i];
        if (r->told[i].state != TOLD_NOT && p->port.state == PORT_UP)
            tell(p, NOTICE_UNMAP, r);
        if (p->awaited == r)
            p->awaited = NULL;
    }
}

void region_forget_descriptors(struct fabric *f)
{
    for (struct region *r = f->regions; r; r = r->next)
        r->fd = -1;
}

void region_finish(struct fabric *f)
{
    while (f->regions) {
        struct region *r = f->regions;
        f->regions = r->next;
        region_destroy(r);
    }
}

void region_say_end(int socket, const char *why)
{
    struct notice n = { .kind = NOTICE_END };
    snprintf(n.why, sizeof n.why, "%s", why);
    greeting_send(socket, &n, sizeof n, NULL, 0);
}

static struct region *find_region(const struct fabric *f, const void *data, size_t bytes)
{
    const uint8_t *begin = data;
    struct region *r = f->regions;
    while (r && (begin < r->map.data || bytes > r->bytes || (size_t)(begin - r->map.data) > r->bytes - bytes))
        r = r->next;
    return r;
}

/* It may have been for a moment that the peer had no descriptors, say. */
static void note_refused(struct told *t)
{
    enum { FIRST_PAUSE = 64, MOST_DOUBLED = 10 };
    t->state = TOLD_NOT;
    t->pause = FIRST_PAUSE << t->refusals;
    t->refusals += t->refusals < MOST_DOUBLED;
}

/* What has become of the one that the peer was told of last? 0: it has not said. */
static int has_answered(struct duplex *p)
{
    uint32_t answer = atomic_load_explicit(&p->out.shared->map_answer, memory_order_acquire);
    if ((answer & ~RING_MAP_REFUSED) != p->maps_told)
        return 0;
    struct told *t = p->awaited ? &p->awaited->told[p->port.peer] : NULL;
    if (t && answer & RING_MAP_REFUSED)
        note_refused(t);
    else if (t)
        t->state = TOLD_MAPPED;
    p->awaited = NULL;
    return 1;
}

/* One after the other, so that the count may begin again. A peer that spins looks at its ring only, so that one says
 * where to look. */
int region_tell(struct duplex *p, struct region *r)
{
    struct told *t = &r->told[p->port.peer];
    if (t->state == TOLD_MAPPED)
        return 1;
    int may_tell = has_answered(p);
    if (t->state == TOLD_MAPPED)
        return 1;
    if (t->pause) {
        t->pause--;
    } else if (may_tell && tell(p, NOTICE_MAP, r)) {
        t->state = TOLD_AWAITED;
        p->awaited = r;
        p->maps_told += RING_MAP_ONE;
        p->notice_is_due = 1;
    }
    if (p->notice_is_due && duplex_say_notice(p))
        p->notice_is_due = 0;
    return 0;
}

const struct region *region_of(struct duplex *p, const void *payload, size_t bytes)
{
    struct region *r = find_region(p->fabric, payload, bytes);
    return r && !r->shadow.data && region_tell(p, r) ? r : NULL;
}

struct ring_place region_place(const struct region *r, const void *payload)
{
    return (struct ring_place){ .region = r->id, .at = (uint64_t)((const uint8_t *)payload - r->map.data) };
}

void region_write_back(struct ring_place *place, const struct region *r, const void *result)
{
    place->back_region = r->id;
    place->back_at = (uint64_t)((const uint8_t *)result - r->map.data);
}

/* By an exchange with the same byte: to add nothing to it, clang only reads. */
static void write_the_same(uint8_t *at)
{
    _Atomic uint8_t *byte = (_Atomic uint8_t *)at;
    uint8_t same = atomic_load_explicit(byte, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(byte, &same, same, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* A private page in the place of this one, with the same bytes. Other threads may write there meanwhile: what they
 * wrote before the call is in the file, and what they write later is private. It is the file's until it is written. */
static int make_private(struct region *r, size_t number, size_t page)
{
    uint8_t *at = r->map.data + number * page;
    if (r->is_private[number])
        return 1;
    if (mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, r->fd, (off_t)(number * page)) == MAP_FAILED)
        return 0;
    write_the_same(at);
    r->is_private[number] = 1;
    return 1;
}

static int begin_detached(struct region *r, size_t page)
{
    if (r->shadow.data)
        return 1;
    if (!r->is_private)
        r->is_private = calloc(r->file_bytes / page, 1);
    return r->is_private && r->fd >= 0 && map_file(&r->shadow, r->fd, r->file_bytes);
}

int region_detach(struct fabric *f, const void *data, size_t bytes)
{
    struct region *r = find_region(f, data, bytes);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!r)
        return 1; /* it has been released */
    const size_t begin = (size_t)((const uint8_t *)data - r->map.data), end = begin + bytes;
    const int is_first = !r->shadow.data;
    if (!begin_detached(r, page))
        return 0;
    f->has_detached = 1;
    for (size_t number = begin / page; number * page < end; number++)
        if (!make_private(r, number, page))
            return 0;
    if (is_first)
        exec_log(COMM_LOG_WARN, "rank %d: %zu bytes of registered memory are used as any other memory from now on: an "
                 "operation ended while a rank that does not run was writing there", (int)f->domain->peers.rank,
                 r->bytes);
    return 1;
}

void region_bring(struct fabric *f, void *result, size_t bytes)
{
    const struct region *r = f->has_detached ? find_region(f, result, bytes) : NULL;
    if (r && r->shadow.data)
        memcpy(result, r->shadow.data + ((uint8_t *)result - r->map.data), bytes);
}

/* ---- The reader ---- */

static struct mapping **find_mapping(struct duplex *p, uint32_t id)
{
    struct mapping **at = &p->mappings;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void answer_map(struct duplex *p, uint32_t refused)
{
    p->maps_heard += RING_MAP_ONE;
    atomic_store_explicit(&p->in.shared->map_answer, p->maps_heard | refused, memory_order_release);
}

/* Without memory, descriptors or addresses for it. Of several in a row one is said. */
static void refuse_map(struct duplex *p, uint64_t bytes, int error)
{
    if (!p->map_refused)
        exec_log(COMM_LOG_WARN, "rank %d cannot map %" PRIu64 " bytes of memory that rank %d shares: %s. Until it can, "
                 "messages from there are copied, which is slower%s",
                 (int)p->fabric->domain->peers.rank, bytes, (int)p->port.peer, segment_error(error),
                 error == SEGMENT_CAN_SHRINK || error == SEGMENT_TOO_MANY
                     ? ""
                     : ". More descriptors (ulimit -n) or addresses (ulimit -v, vm.max_map_count) prevent this");
    p->map_refused = 1;
    answer_map(p, RING_MAP_REFUSED);
}

static struct mapping *map_one(struct duplex *p, const struct notice *n, int fd)
{
    struct mapping *m = NULL;
    if (p->mapping_count >= MAPPINGS_MAX || !(m = calloc(1, sizeof *m))) {
        errno = p->mapping_count >= MAPPINGS_MAX ? SEGMENT_TOO_MANY : ENOMEM;
        return NULL;
    }
    *m = (struct mapping){ .next = p->mappings, .bytes = (size_t)n->bytes, .id = n->id };
    if (map_file(&m->map, fd, m->bytes))
        return m;
    free(m);
    return NULL;
}

static void unmap(struct duplex *p, struct mapping **at)
{
    struct mapping *m = *at;
    *at = m->next;
    p->mapping_count--;
    unmap_file(&m->map);
    free(m);
}

/* The peer has released it. */
static void forget_mapping(struct duplex *p, struct mapping **at)
{
    uint32_t id = (*at)->id;
    if (p->borrowed.loan && (p->borrowed.region == id || p->borrowed.back_region == id))
        duplex_drop_borrowed(p);
    unmap(p, at);
}

/* One whose number comes again is no more, though its release could not be told. */
static int map_theirs(struct duplex *p, const struct notice *n, int fd)
{
    int wrong = n->bytes <= SIZE_MAX - HUGE_PAGE_BYTES ? segment_check_file(fd, n->bytes) : -EINVAL;
    if (n->bytes == 0 || (wrong && wrong != -SEGMENT_CAN_SHRINK))
        return 0;
    struct mapping **before = find_mapping(p, n->id);
    if (*before)
        forget_mapping(p, before);
    struct mapping *m = wrong ? NULL : map_one(p, n, fd);
    if (!m) {
        refuse_map(p, n->bytes, wrong ? -wrong : errno);
        return 1;
    }
    p->mappings = m;
    p->mapping_count++;
    p->map_refused = 0;
    answer_map(p, 0);
    return 1;
}

static int take_notice(struct duplex *p, const struct notice *n, const int *fds, int count)
{
    if (n->kind == NOTICE_MAP && count == 1)
        return map_theirs(p, n, fds[0]);
    if (n->kind == NOTICE_END && count == 0) {
        memcpy(p->why, n->why, sizeof p->why - 1);
        utf8_clean_string(p->why);
        return 1;
    }
    struct mapping **at = find_mapping(p, n->id);
    if (n->kind != NOTICE_UNMAP || count != 0 || (!*at && !p->map_refused))
        return 0;
    if (!*at)
        return 1;
    forget_mapping(p, at);
    return 1;
}

const char *region_notices(struct duplex *p, int *ret_ended)
{
    int was_reset = 0;
    for (*ret_ended = 0;;) {
        struct notice n = { 0 };
        int fds[GREETING_FDS_MAX], count = 0;
        ssize_t bytes = greeting_receive_any(p->watch.fd, &n, sizeof n, fds, &count);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
            return NULL;
        if (bytes < 0 && errno == ECONNRESET && !was_reset++)
            continue; /* the peer has ended with something unread: said once, before what it had sent */
        if (bytes < 0 && errno == EMFILE) {
            refuse_map(p, n.bytes, errno); /* the kernel has dropped the descriptor */
            continue;
        }
        *ret_ended = bytes == 0 || (bytes < 0 && errno != EPROTO);
        if (*ret_ended)
            return NULL;
        int made_sense = bytes > 0 && take_notice(p, &n, fds, count);
        for (int i = 0; i < count; i++)
            close(fds[i]);
        if (!made_sense)
            return "a notice of shared memory that makes no sense";
    }
}

uint8_t *region_find(struct duplex *p, uint32_t id, uint64_t at, uint64_t bytes)
{
    const struct mapping *m = *find_mapping(p, id);
    return m && bytes <= m->bytes && at <= m->bytes - bytes ? m->map.data + at : NULL;
}

void region_unmap_all(struct duplex *p)
{
    while (p->mappings)
        unmap(p, &p->mappings);
}
