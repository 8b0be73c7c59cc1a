/* Every algorithm, for 1 to 33 ranks: counts around the number of ranks, roots, in place and not, in slices and not,
 * even and uneven blocks, sends that are done at once and sends that wait for their receive, each in a random order of
 * events.
 *
 * Those of two levels: also with the ranks on several hosts, in every way for few ranks, in drawn ways for many.
 *
 *     simulate [ALGORITHM]      all cases, or those of the algorithms whose name begins so, such as "all_reduce ring"
 *
 * The order is random but the same in each run: the seed is that of the case, and is printed with it when it fails. */
#include <comm/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"

static uint64_t runs;
static int failures;

/* One algorithm with one size and root, and perhaps with hosts. */
struct subject {
    const struct algo *algo;
    int32_t size, root;
    const int32_t *hosts;
    struct plan plans[WORLD_MAX];
};

static size_t amount_of(enum amount amount, size_t p)
{
    size_t log = 0;
    while ((size_t)1 << log < p)
        log++;
    switch (amount) {
    case ONE:
        return p > 1;
    case TWO:
        return p > 1 ? 2 : 0;
    case LOG_P:
        return log;
    case P_LESS_1:
        return p - 1;
    case TWICE_P_LESS_1:
        return 2 * (p - 1);
    default:
        return p * (p - 1);
    }
}

static void complain(const struct subject *subject, const struct setting *s, const char *text)
{
    char hosts[4 * WORLD_MAX + 16] = "";
    size_t used = subject->hosts ? (size_t)snprintf(hosts, sizeof hosts, " on hosts") : 0;
    for (int32_t r = 0; subject->hosts && r < s->size; r++)
        used += (size_t)snprintf(hosts + used, sizeof hosts - used, " %d", subject->hosts[r]);
    fprintf(stderr, "%s %s: %d ranks%s, root %d, count %zu%s%s, %d slices, %s, seed %llu: %s\n",
            op_name(subject->algo->kind), subject->algo->name, s->size, hosts, s->root, s->count,
            s->lengths ? " (uneven)" : "", s->in_place ? ", in place" : "", s->slices,
            s->rendezvous ? "rendezvous" : "eager", (unsigned long long)s->seed, text);
    failures++;
}

static void check_amount(const struct subject *subject, const struct setting *s, const char *what, size_t is,
                         size_t should)
{
    char text[128];
    snprintf(text, sizeof text, "%zu elements %s instead of %zu", is, what, should);
    if (is != should)
        complain(subject, s, text);
}

static void check_amounts(const struct subject *subject, const struct setting *s, const struct outcome *o)
{
    const struct claim *claim = claim_of(subject->algo);
    size_t p = (size_t)s->size, total = 0;
    if (is_vector_op(s->kind))
        total = s->count;
    else
        for (size_t r = 0; r < p; r++)
            total += s->lengths ? s->lengths[r] : s->count;
    if (claim->sent != ANY)
        check_amount(subject, s, "sent", o->sent_total, total * amount_of(claim->sent, p));
    if (claim->crossed != ANY && s->hosts)
        check_amount(subject, s, "sent from host to host", o->crossed,
                     total * amount_of(claim->crossed, (size_t)count_hosts(s->hosts, s->size)));
    int divides = !s->lengths && (!is_vector_op(s->kind) || (s->count % p == 0 && s->slices == 1));
    if (claim->flags & EVEN && divides && o->sent_most * p != o->sent_total)
        complain(subject, s, "one rank sends more than the others");
}

/* One setting in both modes, twice each: the results must not depend on the order of events. */
static void run_setting(const struct subject *subject, struct setting s)
{
    struct outcome o;
    uint64_t digest = 0;
    s.size = subject->size;
    s.root = subject->root;
    s.hosts = subject->hosts;
    set_claims(subject->algo, &s);
    for (int i = 0; i < 2; i++) {
        s.rendezvous = i;
        runs++;
        if (simulate(&s, subject->plans, &o)) {
            complain(subject, &s, o.error);
            return;
        }
        if (i > 0 && digest != o.digest)
            complain(subject, &s, "the result depends on the order of events");
        digest = o.digest;
    }
    check_amounts(subject, &s, &o);
}

static void run_uneven(const struct subject *subject, uint64_t *random)
{
    size_t lengths[WORLD_MAX * WORLD_MAX];
    if (!(subject->algo->traits & (ALGO_UNEVEN | ALGO_AGREED)))
        return;
    for (int i = 0; i < 2; i++) {
        random_lengths(subject->algo->kind, subject->size, random, lengths);
        run_setting(subject, (struct setting){
                                 .lengths = lengths, .in_place = i, .slices = 1 + i, .seed = next_random(random) });
    }
}

static void run_counts(const struct subject *subject, uint64_t *random)
{
    size_t p = (size_t)subject->size, counts[8], used = 0;
    int small = subject->size <= 9 && !subject->hosts; /* there are many ways to lie on hosts */
    if (is_vector_op(subject->algo->kind)) {
        size_t vector[8] = { 0, 1, 2, p - 1, p, p + 1, 5 * p + 3, 1000 };
        memcpy(counts, vector, sizeof counts);
        used = small ? 8 : 7;
    } else if (subject->algo->kind != COMM_OP_BARRIER) {
        size_t blocks[8] = { 0, 1, 2, 5, 9, 111, 0, 0 };
        memcpy(counts, blocks, sizeof counts);
        used = small ? 6 : 4;
    } else {
        counts[used++] = 0;
    }
    for (size_t i = 0; i < used; i++) {
        /* With few ranks everything; with many, two of the combinations, others for each count. */
        int first = small ? 0 : (int)(next_random(random) % 4), step = small ? 1 : 3;
        for (int combination = first; combination < (small ? 4 : 7); combination += step) {
            int in_place = combination & 1, sliced = combination >> 1 & 1;
            int32_t slices = sliced ? 2 + (int32_t)(next_random(random) % 3) : 1;
            if (subject->algo->kind == COMM_OP_BARRIER ||
                (subject->plans[0].ranged && !is_vector_op(subject->algo->kind)))
                slices = 1;
            run_setting(subject,
                        (struct setting){
                            .count = counts[i], .in_place = in_place, .slices = slices, .seed = next_random(random) });
        }
    }
    run_uneven(subject, random);
}

static void run_plans(const struct algo *algo, int32_t size, int32_t root, const int32_t *hosts, int widens,
                      uint64_t *random)
{
    static struct subject subject;
    subject.algo = algo;
    subject.size = size;
    subject.root = root;
    subject.hosts = hosts;
    struct setting s = { .size = size, .root = root, .slices = 1 };
    if (build_plans(algo, size, root, hosts, widens, subject.plans)) {
        complain(&subject, &s, "the plan has failed");
    } else {
        const struct claim *claim = claim_of(algo);
        if (claim->rounds != ANY &&
            (size_t)message_rounds(subject.plans, size) != amount_of(claim->rounds, (size_t)size))
            complain(&subject, &s, "the number of rounds is not the promised one");
        run_counts(&subject, random);
    }
    free_plans(subject.plans, size);
}

static void run_subject(const struct algo *algo, int32_t size, int32_t root, const int32_t *hosts, uint64_t *random)
{
    for (int widens = 0; widens <= ((algo->traits & ALGO_WIDE_SUMS) != 0); widens++)
        run_plans(algo, size, root, hosts, widens, random);
}

/* All roots of few ranks; of many the first, the last, and two between. */
static void run_roots(const struct algo *algo, int32_t size, const int32_t *hosts, uint64_t *random)
{
    int32_t last = is_rooted(algo->kind) ? size - 1 : 0, step = size <= 9 ? 1 : (last + 2) / 3;
    for (int32_t root = 0; root <= last; root += step > 0 ? step : 1)
        run_subject(algo, size, root, hosts, random);
    if (size > 9 && last % (step > 0 ? step : 1) != 0)
        run_subject(algo, size, last, hosts, random);
}

/* ---- Hosts ---- */

enum { ALL_LAYOUTS_MAX = 6, ALL_LAYOUTS_MAX_ROOTED = 5, LAYOUTS_DRAWN = 5 };

/* The next way to put ranks on hosts that are numbered as they first appear; 0 after the last one. */
static int next_layout(int32_t *hosts, int32_t size)
{
    for (int32_t r = size; r-- > 1;) {
        int32_t most = 0;
        for (int32_t i = 0; i < r; i++)
            most = hosts[i] > most ? hosts[i] : most;
        if (hosts[r] <= most) {
            hosts[r]++;
            memset(hosts + r + 1, 0, (size_t)(size - r - 1) * sizeof *hosts);
            return 1;
        }
    }
    return 0;
}

/* As launchers place ranks: so many on a host and then the next one, or one on each host in turn; or anywhere. */
static void draw_layout(int way, int32_t *hosts, int32_t size, uint64_t *random)
{
    int32_t count = 1 + (int32_t)(next_random(random) % (uint64_t)size), each = (size + count - 1) / count;
    for (int32_t r = 0; r < size; r++)
        hosts[r] = way == 0   ? r / each
                   : way == 1 ? r % count
                   : way == 2 ? (r == 0 ? 3 : 7 + r / each) /* numbers of a group's hosts need not begin at 0 */
                              : (int32_t)(next_random(random) % (uint64_t)count);
}

static void run_layouts(const struct algo *algo, int32_t size, uint64_t *random)
{
    int32_t hosts[WORLD_MAX] = { 0 };
    if (size <= (is_rooted(algo->kind) ? ALL_LAYOUTS_MAX_ROOTED : ALL_LAYOUTS_MAX)) {
        do
            run_roots(algo, size, hosts, random);
        while (next_layout(hosts, size));
        return;
    }
    for (int way = 0; way < LAYOUTS_DRAWN; way++) {
        draw_layout(way, hosts, size, random);
        run_roots(algo, size, hosts, random);
    }
}

static void run_algo(const struct algo *algo)
{
    uint64_t random = 1;
    int before = failures;
    for (int32_t size = 1; size <= WORLD_MAX && failures < before + 10; size++) {
        run_roots(algo, size, NULL, &random);
        if (algo->traits & ALGO_LEVELS)
            run_layouts(algo, size, &random);
    }
}

int main(int argc, char **argv)
{
    const struct algo *algo;
    for (size_t i = 0; (algo = select_algo_at(i)); i++) {
        char name[128];
        clock_t begin = clock();
        uint64_t before = runs;
        snprintf(name, sizeof name, "%s %s", op_name(algo->kind), algo->name);
        if (argc > 1 && strncmp(name, argv[1], strlen(argv[1])) != 0)
            continue;
        run_algo(algo);
        printf("%-32s %6llu runs  %.2f s\n", name, (unsigned long long)(runs - before),
               (double)(clock() - begin) / CLOCKS_PER_SEC);
    }
    printf("%llu runs, %d failures\n", (unsigned long long)runs, failures);
    return failures > 0 || runs == 0;
}
