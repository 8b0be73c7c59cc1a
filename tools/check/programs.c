/* The programs that libcomm's own tests run, too: what they ask of ranks.h and of the backend. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "programs.h"
#include "ranks.h"
#include "watch.h"
#include "waves.h"

#include "execute.h"

comm_group *ranks_world(const char *backend)
{
    (void)backend;
    return open_world(NULL);
}

void ranks_quiet(comm_group *world)
{
    (void)world;
}

/* A backend that still touches a buffer of an operation that it has completed may do so a moment later. */
static void wait_for_what_is_late(void)
{
    nanosleep(&(const struct timespec){ 0, 100000000 }, NULL);
}

/* A result is wrong, or a call has failed. A buffer that changes after its operation is told as that. */
void ranks_fail(const char *file, int line, const char *format, ...)
{
    char text[CHECK_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)file, (void)line;
    wait_for_what_is_late();
    if (watch_late_writes())
        finding_ends(RULE_complete_visible, "%s; its data came after it had been completed", text);
    finding_ends(RULE_result, "%s", text);
}

/* ---- Collectives ---- */

/* Worlds one after the other, until the time is over: as rank 0 says. */
static bool goes_on(comm_group *control, int round, int64_t until_ns)
{
    char key[40], *answer;
    void *data;
    size_t bytes;
    snprintf(key, sizeof key, "round/%d", round);
    if (round == 0)
        return true;
    if (self_rank() == 0 &&
        comm_store_set(comm_group_store(control), key, check_now_ns() < until_ns ? "y" : "n", 1) != COMM_OK)
        finding_ends(RULE_result, "the store does not take a key: %s", comm_last_error());
    if (comm_store_get(comm_group_store(control), key, 0, &data, &bytes) != COMM_OK)
        finding_ends(RULE_result, "rank 0 does not say whether to go on: %s", comm_last_error());
    answer = data;
    bool more = *answer == 'y';
    comm_free(data);
    return more;
}

static void each_round(void (*round)(uint64_t seed))
{
    comm_group *control = open_world("control");
    int64_t until_ns = check_now_ns() + (int64_t)(settings.seconds * 1e9);
    for (int i = 0; goes_on(control, i, until_ns); i++) {
        self_doing("in round %d of random programs", i);
        round(self_seed() + (uint64_t)i * 1000003);
    }
    wait_for_what_is_late();
    comm_group_close(control);
}

static void collectives_round(uint64_t seed)
{
    const struct waves waves = { .backend = "cpu:watched", .seed = seed, .count = 40, .may_refuse = true };
    waves_run(self_rank(), self_size(), &waves);
}

void random_collectives(void)
{
    each_round(collectives_round);
}

/* ---- Programs of the differential kind ---- */

static comm_status ask_about(int32_t kind, int32_t peer, int32_t tag)
{
    static char byte[8];
    comm_op op = { .struct_bytes = sizeof op,
                   .kind = kind,
                   .dtype = COMM_DTYPE_U8,
                   .root = peer,
                   .tag = tag,
                   .device = COMM_DEVICE_CPU,
                   .element_bytes = 1,
                   .timeout_ns = INT64_MAX };
    comm_buffers *side = kind == COMM_OP_SEND ? &op.send : &op.recv;
    side->data = byte;
    side->count = 8;
    return watch_ask(&op);
}

void ask_about_messages(struct message_facts *facts)
{
    facts->messages = ask_about(COMM_OP_SEND, 0, 0) == COMM_OK && ask_about(COMM_OP_RECV, 0, 0) == COMM_OK;
    facts->any_source = facts->messages && ask_about(COMM_OP_RECV, COMM_ANY_SOURCE, 0) == COMM_OK;
    facts->any_tag = facts->messages && ask_about(COMM_OP_RECV, 0, COMM_ANY_TAG) == COMM_OK;
    facts->own_tags = facts->messages && ask_about(COMM_OP_SEND, 0, COMM_ANY_TAG - 1) == COMM_OK;
    facts->most_tag = 0;
    for (int32_t bits = 1; facts->messages && bits < 32; bits++) {
        int32_t tag = (int32_t)((1u << bits) - 1);
        if (ask_about(COMM_OP_SEND, 0, tag) != COMM_OK || ask_about(COMM_OP_RECV, 0, tag) != COMM_OK)
            break;
        facts->most_tag = tag;
    }
}

static struct message_facts facts; /* the same in all ranks */

static bool takes(const struct step *s)
{
    switch (s->kind) {
    case MESSAGE:
        return facts.messages && s->tag <= facts.most_tag && (s->naming != BY_TAG || facts.any_source) &&
               (s->naming != BY_SOURCE || facts.any_tag);
    case FAN_IN:
        return facts.any_source && s->tag <= facts.most_tag;
    case MESSAGE_BYTES:
        return facts.messages && facts.any_source && facts.any_tag && facts.own_tags && s->tag <= facts.most_tag;
    case MONITORED_BARRIER:
        return facts.messages && facts.own_tags;
    default:
        return true;
    }
}

static void differential_round(uint64_t seed)
{
    struct program *program = malloc(sizeof *program);
    program_make(program, seed, self_size(), 50, "cpu:watched");
    const struct execution execution = { .program = program,
                                         .last_step = STEPS_MAX,
                                         .again = "the same command",
                                         .may_refuse = true,
                                         .takes = takes };
    execute(self_rank(), self_size(), (void *)&execution);
    free(program);
}

void random_programs(void)
{
    comm_group *world = open_world("asking");
    struct message_facts asked;
    ask_about_messages(&asked);
    if (self_rank() == 0)
        facts = asked;
    meet(world, "asked"); /* ranks that are threads share what rank 0 has heard */
    if (!settings.threads)
        facts = asked;
    comm_group_close(world);
    each_round(differential_round);
}

/* Ranks that are threads of one process, each with a world and groups of its own. */
void threads_collectives(void)
{
    const struct waves waves = { .backend = "cpu:watched", .seed = self_seed(), .count = 15, .may_refuse = true };
    waves_run(self_rank(), self_size(), &waves);
}
