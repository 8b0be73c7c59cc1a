/* All cases, in the order in which they run: what is cheap and says much comes first. */
#include "cases.h"

#include "check.h"
#include "programs.h"

const struct check_case check_cases[] = {
    { .section = "table", .name = "facts", .what = "what the backend has", .run = table_facts, .least = 2, .most = 2 },
    { .section = "local", .name = "world_open", .what = "world_open waits for no other rank", .run = local_world_open,
      .least = 2, .most = 3, .alone = true },
    { .section = "local", .name = "submit", .what = "submit waits for no other rank", .run = local_submit, .least = 2,
      .most = 3 },
    { .section = "local", .name = "messages", .what = "nor does a send, and messages arrive", .run = local_messages,
      .least = 1, .most = 3 },
    { .section = "local", .name = "group_open", .what = "groups are made in any order", .run = local_group_open,
      .least = 2, .most = 3 },
    { .section = "local", .name = "opposite_orders", .what = "and first used in opposite orders",
      .run = local_opposite_orders, .least = 2, .most = 3, .hangs = RULE_connect_threads },
    { .section = "local", .name = "callback", .what = "a callback submits the next operation", .run = local_callback,
      .least = 1, .most = 2 },
    { .section = "random", .name = "collectives", .what = "random calls, all forms, types and ways of waiting",
      .run = random_collectives, .least = 1, .most = 4 },
    { .section = "random", .name = "programs", .what = "random programs against a sequential reference",
      .run = random_programs, .least = 1, .most = 4 },
    { .section = "state", .name = "two_worlds", .what = "a process with two worlds", .run = state_two_worlds,
      .least = 2, .most = 2 },
    { .section = "state", .name = "left_behind", .what = "threads and descriptors go with the world",
      .run = state_left_behind, .least = 2, .most = 2, .counts = true },
    { .section = "state", .name = "memory", .what = "and memory goes with the group", .run = state_memory, .least = 2,
      .most = 2, .counts = true },
    { .section = "state", .name = "threads", .what = "ranks that are threads of one process",
      .run = threads_collectives, .least = 2, .most = 3, .threads = true },
    { .section = "faults", .name = "missing_rank", .what = "a rank does not come: the deadline",
      .run = faults_missing_rank, .least = 2, .most = 3 },
    { .section = "faults", .name = "killed_rank", .what = "a rank is killed", .run = faults_killed_rank, .least = 2,
      .most = 3, .dies = 1, .alone = true },
    { .section = "faults", .name = "abort", .what = "abort with operations pending", .run = faults_abort, .least = 1,
      .most = 3 },
    { .section = "faults", .name = "close", .what = "close with operations pending", .run = faults_close, .least = 2,
      .most = 3 },
    { .section = "faults", .name = "dropped_works", .what = "works that no thread waits for",
      .run = faults_dropped_works, .least = 1, .most = 3 },
    { .section = "faults", .name = "fork", .what = "a child of fork() lets go", .run = faults_fork, .least = 2,
      .most = 2, .alone = true },
    { .section = "faults", .name = "mismatch", .what = "ranks call different operations", .run = faults_mismatch,
      .least = 2, .most = 3 },
};
const size_t check_case_count = sizeof check_cases / sizeof *check_cases;
