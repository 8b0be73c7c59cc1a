"""The faults that mutants.py plants. Each is a plausible mistake; none crashes at once.

Classes, by what it takes to notice a fault:
    a  where a read or a write stops           f  small overruns
    b  flow control                            g  the store's table and queues
    c  two groups on one link                  h  lost wake-ups, which are delays
    d  many ranks                              i  matching and numbers
    e  the words of errors                     core, tcp, shm, store, mpi, nccl  everything else
"""
from typing import NamedTuple


class Fault(NamedTuple):
    kind: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple  # likely to notice it, tried first


ENGINE, MATCH, P2P, PORT = (f"core/exec/{name}.c" for name in ("engine", "match", "p2p", "port"))
SINK, RECEIVE, ENDING = (f"core/exec/{name}.c" for name in ("sink", "receive", "ending"))
QUEUE, GROUPS, DESYNC = (f"core/exec/{name}.c" for name in ("queue", "groups", "desync"))
LINK, PROGRESS = "backend_tcp/link.c", "backend_tcp/progress.c"
LISTEN, ENDPOINT = "backend_tcp/listen.c", "backend_tcp/endpoint.c"
TABLE, STATE = "store/table.c", "store/tcp_state.c"
SHORT = tuple("short io, " + what for what in ("p2p", "programs", "random programs"))
SHORT_END = ("flow", "short io, flow", "short io, a rank leaves", "short io, a rank is killed",
             "short io, random programs")
KERNELS = ("reduce", "reductions on loopback", "reductions on tcp")
STORES = ("store hash", "store tcp", "store file")
FAULTS = []


# By class or file: tried before the tests that a fault names.
FIRST = {"a": "engine", "b": "flow", "c": "flow", "d": "many", TABLE: "table", ENGINE: "engine", MATCH: "engine"}


def fault(kind, name, file, old, new, *tests):
    for of in file, kind:
        if of in FIRST and FIRST[of] not in tests:
            tests = (FIRST[of], *tests)
    FAULTS.append(Fault(kind, name, file, old, new, tests))


# ---- a: where a read or a write stops ----

fault("a", "partly_written_header_begins_anew", LINK, "(void *)(tx->header + WIRE_HEADER_BYTES - header_left)",
      "(void *)tx->header", *SHORT)
fault("a", "payload_of_a_partly_written_frame_begins_anew", LINK, "(void *)(tx->payload + payload_sent), left",
      "(void *)tx->payload, left", *SHORT)
fault("a", "frame_with_half_a_header_out_is_dropped", LINK, "if (tx->sent == 0) {\n            *at = tx->next;",
      "if (tx->sent < WIRE_HEADER_BYTES) {\n            *at = tx->next;", *SHORT_END)
fault("a", "half_sent_frame_points_into_user_memory", LINK, "tx->payload = tx->owned = copy;", "tx->owned = copy;",
      *SHORT_END)
fault("a", "truncated_copy_writes_past_the_room", SINK,
      "data, n < s->dst_bytes - s->done ? n : s->dst_bytes - s->done, s->is_long);", "data, n, s->is_long);", *SHORT)
fault("a", "long_copy_forgets_what_is_left", "core/exec/copy.c", "    memcpy(to, from, bytes);\n    _mm_sfence",
      "    _mm_sfence", "copy")
fault("a", "long_copy_of_what_overlaps", "core/exec/copy.c", " && between >= bytes", "", "copy")
fault("a", "claimed_receive_is_done_already", MATCH, "u->claimed = m;", "u->claimed = m, m->state = MESSAGE_DONE;",
      "short io, collectives", "short io, random programs")
fault("a", "dropped_unexpected_frame_stays_a_sink", MATCH,
      "p->sink.kind = SINK_DISCARD;\n        p->sink.unexpected = NULL;", "", *SHORT_END)
fault("a", "data_of_a_claimed_message_is_never_copied", MATCH,
      "take(m, u->data, (size_t)u->head.bytes);\n    unexpected_drop(u);\n    match_received(m);",
      "unexpected_drop(u);\n    match_received(m);", "short io, p2p", "short io, bytes")
fault("a", "claimed_message_is_matched_again", P2P, "if (!u->claimed &&", "if (",
      "short io, p2p", "short io, programs")
fault("a", "begun_element_is_not_carried", SINK, "s->carry_bytes = (uint32_t)(bytes - whole * s->element_bytes);",
      "s->carry_bytes = 0;", "short io, collectives", "short io, random programs")

# ---- b: flow control ----

fault("b", "credit_of_a_received_message_never_comes_back", RECEIVE,
      "if (h->type == FRAME_EAGER && kind != SINK_UNEXPECTED)\n        port_consumed(p, (size_t)h->bytes);", "",
      "p2p on tcp", "programs on tcp", "random programs on tcp")
fault("b", "credit_of_an_unexpected_message_never_comes_back", MATCH, "port_consumed(p, payload_bytes(&u->head));",
      "(void)p;", "p2p on tcp", "programs on tcp", "random programs on tcp")
fault("b", "credit_of_a_dropped_frame_is_lost", PORT, "p->credit += (int64_t)(h->bytes + PORT_FRAME_COST);", ";",
      "random programs on tcp", "leave", *SHORT_END)
fault("b", "credit_in_a_dropped_frame_is_lost", PORT, "p->credit_owed += h->credit;\n    p->eager_held += h->credit;",
      "", "random programs on tcp", "leave", *SHORT_END)
fault("b", "announced_is_not_counted_down_at_an_end", MATCH,
      "if (m->state == MESSAGE_AWAITS_CTS && m->in_order)\n        announced_less(m->port);", "", "p2p on tcp", "leave",
      "threads")
fault("b", "announced_is_not_counted_down_when_cleared", MATCH,
      "    if (m->in_order)\n        announced_less(m->port);\n    return", "    return", "p2p on tcp",
      "programs on tcp")
fault("b", "early_announcement_of_a_short_message_is_not_cleared", MATCH,
      "        ask_for(m, offer);\n", "        if (!is_short(m))\n            ask_for(m, offer);\n",
      "collectives on tcp", "random programs on tcp", "programs on tcp")
fault("b", "held_sends_are_not_released_when_a_group_ends", ENDING,
      "match_release(group_port(g, r)); /* of other groups' sends */", "(void)g;", "p2p on tcp", "leave",
      "threads")
fault("b", "eager_window_counts_payload_only", "core/exec/port.h", "p->credit -= (int64_t)(bytes + PORT_FRAME_COST);",
      "p->credit -= (int64_t)bytes;", "p2p on tcp", "programs on tcp")

# ---- c: two groups on one link, one ends ----

fault("c", "receives_are_not_awaited", MATCH,
      "    if (!m->awaited)\n        port_interest(m->port, +1);\n",
      "    if (m->awaited)\n        port_interest(m->port, +1);\n", "threads", "groups", "leave", *SHORT_END)
fault("c", "what_an_ended_group_awaited_is_awaited_for_ever", MATCH,
      "    message_remove(m);\n    await_no_more(m);\n    m->state = MESSAGE_DONE;\n}",
      "    message_remove(m);\n    m->state = MESSAGE_DONE;\n}", "threads", "groups", "leave")
fault("c", "matched_any_source_survives_its_sender", P2P,
      "(op->matched && op->message.port == p) ||", "", "hostile", "kill")
fault("c", "announced_sends_are_not_awaited", MATCH,
      "    m->state = MESSAGE_AWAITS_CTS;\n    await(m);\n", "    m->state = MESSAGE_AWAITS_CTS;\n",
      "match", "threads", "groups", "leave")

# ---- d: many ranks ----

fault("d", "one_rank_in_65_is_not_asked_about", "core/join.c", "first += CHECKED_AT_ONCE)",
      "first += CHECKED_AT_ONCE + 1)", "join")
fault("d", "more_than_8_awaited_links_are_not_written", PROGRESS,
      "arm_links(m);\n        m->has_read = 0;", "m->has_read = 0;", "link")
fault("d", "active_port_that_moves_keeps_its_place", PORT, "last->active_index = p->active_index;", "", "flow")

# ---- e: words ----

fault("e", "trouble_with_a_silent_rank_is_told_by_all", DESYNC, " && !is_silent(g, awaited_by(g, rank))))",
      "))", "stop")
fault("e", "whom_the_peer_of_a_receive_waits_for_is_not_said", DESYNC,
      "        if (awaited >= 0)\n            name_waiting(v, g, rank, awaited);", "", "desync")
fault("e", "ranks_without_a_part_in_a_message_are_named", DESYNC, "g->size && rank == COMM_ANY_SOURCE; r++)",
      "g->size; r++)", "stop")
fault("e", "silent_peer_of_a_message_is_not_named", DESYNC,
      "        if (is_silent(g, rank))\n            name_silent(v, g, rank);\n        awaited", "        awaited",
      "stop")
fault("e", "silent_ranks_that_any_message_may_be_from_are_not_named", DESYNC,
      "rank == COMM_ANY_SOURCE; r++)\n        if (is_silent(g, r))", "rank == COMM_ANY_SOURCE; r++)\n        if (0)",
      "stop")
fault("e", "who_waits_for_a_message_is_told_of_collectives", DESYNC, "say_what_we_do(g, h->seq == 0,",
      "say_what_we_do(g, 0,", "stop")
fault("e", "message_with_another_tag_is_not_told_of", "core/exec/p2p.c",
      "        if (u) {\n            text_add(", "        if (0) {\n            text_add(", "stop")
fault("e", "message_with_another_tag_is_not_told_of_beside_a_collective", DESYNC, "    if (recv && !recv->matched)\n",
      "    if (0)\n", "stop")
fault("e", "messages_of_other_ranks_are_told_of", "core/exec/p2p.c",
      "recv->op.root == COMM_ANY_SOURCE || recv->op.root == r ?", "1 ?", "stop")
fault("e", "tag_of_an_operation_is_not_said_of_its_work", "core/work.c", ", .tag = work->op_tag", "", "connect")
fault("e", "who_waits_for_whom_is_swapped", DESYNC, "text_rank(g, rank),\n                 text_rank(g, awaited));",
      "text_rank(g, awaited),\n                 text_rank(g, rank));", "stop", "reasons")
fault("e", "rank_that_is_behind_is_not_named", DESYNC, "|| (a->flags & FRAME_ANSWER_BEHIND) ||", "||", "stop",
      "reasons")
TEXT = "core/exec/text.c"
fault("e", "world_rank_in_the_place_of_the_groups", TEXT, "return say_rank(rank, g->world_ranks[rank], \"\");",
      "return say_rank(g->world_ranks[rank], g->world_ranks[rank], \"\");", "mismatch-permuted", "stop-permuted")
fault("e", "lengths_of_the_two_are_swapped", TEXT,
      "ours, bytes, text_rank(g, rank),\n             text_peer(g, rank), theirs, (unsigned long long)h->bytes",
      "ours, (size_t)h->bytes, text_rank(g, rank),\n             text_peer(g, rank), theirs, (unsigned long long)bytes",
      "mismatch")
fault("e", "reason_that_comes_before_the_group_is_open_is_dropped", RECEIVE, "group_note_end(p, h->group, &why);",
      "(void)p;", "reasons")
fault("e", "reporter_is_the_one_that_passed_it_on", GROUPS, "    else\n        said.reporter = from;",
      "    said.reporter = from;", "hostile")
fault("e", "lock_is_blamed_for_a_missing_key", "store/file.c",
      "clock_now_ns() - for_lock->began_ns < for_lock->began_ns - wait->began_ns",
      "clock_now_ns() - for_lock->began_ns > for_lock->began_ns - wait->began_ns", "store file alone", "store file")
fault("e", "wait_all_gives_the_last_error", "core/work.c",
      "if (status == COMM_OK || first != COMM_OK)\n            continue;",
      "if (status == COMM_OK)\n            continue;", "refused", "works")
fault("e", "label_is_left_out", "core/op.c", "const char *label = op && op->label ? op->label : \"\",",
      "const char *label = \"\",", "manual", "works")
fault("e", "missing_ranks_by_their_world_number", "core/monitored.c", "comm__group_rank_text(group, r, name);",
      "snprintf(name, sizeof name, \"rank %d\", group->world_ranks[r]);", "groups")
fault("e", "missing_keys_are_those_that_are_there", "store/tcp_wait.c", "if (ready[i] != WIRE_READY)",
      "if (ready[i] == WIRE_READY)", "store tcp", "store clients")

# ---- f: small overruns ----

fault("f", "nul_behind_an_appended_value", TABLE, "if (bytes + 1 > entry->capacity) {",
      "if (bytes > entry->capacity) {", *STORES)
fault("f", "nul_behind_a_user_stores_value", "store/user.c", "char *copy = realloc(data, bytes + 1);",
      "char *copy = realloc(data, bytes);", "store user", "store least")
fault("f", "record_label_fills_its_room", "core/recorder.c", "bytes = utf8_cut(label, sizeof(record_label) - 1);",
      "bytes = utf8_cut(label, sizeof(record_label));", "recorder", "names")

# ---- g: the store's table and queues ----

fault("g", "deletion_makes_keys_unfindable", TABLE, "if (((i - home) & mask) >= ((i - at_hole) & mask)) {",
      "if (((i - home) & mask) > ((i - at_hole) & mask)) {", *STORES)
fault("g", "deletion_moves_what_is_at_home", TABLE, "if (((i - home) & mask) >= ((i - at_hole) & mask)) {",
      "if (home != i || 1) {", *STORES)
fault("g", "popper_that_leaves_does_not_pass_on", STATE,
      "if (table_queue_len(state->table, as_table(key)) > 0)\n        wake_one(state, key);", "",
      "store hostile", "store tcp")
fault("g", "append_wakes_no_waiter", STATE,
      "table_append(state->table, as_table(request->key), as_table(request->value));\n    if (status == COMM_OK)\n"
      "        wake(state, request->key);",
      "table_append(state->table, as_table(request->key), as_table(request->value));", "store tcp", "store clients")
fault("g", "compare_set_of_a_missing_key_stores_anyway", TABLE, ": expected.bytes == 0;\n    if (change) {",
      ": 1;\n    if (change) {", *STORES)
fault("g", "queue_is_last_in_first_out", TABLE,
      "if (entry->last)\n        entry->last->next = item;\n    else\n        entry->first = item;",
      "if (entry->last)\n        item->next = entry->first;\n    entry->first = item;", *STORES)
fault("g", "growing_table_loses_a_collision", TABLE,
      "while (slots[at].entry)\n            at = (at + 1) & (slot_count - 1);", "", *STORES)

fault("g", "growing_table_of_awaited_keys_drops_a_chain", STATE,
      "            a->next = buckets[a->hash & (count - 1)];\n", "            a->next = NULL;\n",
      "store tcp", "store clients")

# ---- h: lost wake-ups ----

fault("h", "sleeper_with_the_lock_is_not_woken", PROGRESS,
      "if (atomic_load(&m->sleeping))\n        uv_async_send(&m->wake);\n    wake_parked(m);",
      "wake_parked(m);", "waiting", "threads", "works")
fault("h", "no_last_look_before_sleeping", PROGRESS, " && !has_news(m) && !exec_host->work_done(work) &&",
      " &&", "waiting", "threads", "works")
fault("tcp", "rank_that_shares_memory_may_be_linked", LISTEN, "m->domain.peers.at[hello->from] != &l->port || ", "",
      "mesh")
fault("h", "sleeps_without_a_word_to_the_carrier", PROGRESS, "return !m->local || m->local->ops->asleep(m->local);",
      "return 1;", "waiting")
fault("h", "helper_is_not_told_of_what_to_watch", PROGRESS,
      "if (has_work || m->unwatched)", "if (has_work)", "waiting", "threads", "works")
fault("h", "contender_does_not_wake_the_driver", PROGRESS,
      "atomic_fetch_add(&m->contenders, 1);\n    if (atomic_load(&m->sleeping))\n        uv_async_send(&m->wake);",
      "atomic_fetch_add(&m->contenders, 1);", "waiting", "threads", "works")
fault("h", "parked_waiters_are_not_woken", PROGRESS, "    pthread_cond_broadcast(&m->park);\n", "", "waiting",
      "threads", "works")

# ---- i: matching and numbers ----

fault("i", "any_source_takes_the_last_arrived", P2P, "u->arrival < first->arrival", "u->arrival > first->arrival",
      "flow", "p2p on tcp", "programs on tcp")
fault("i", "any_tag_takes_internal_tags", P2P, "COMM_ANY_TAG ? tag >= 0 :", "COMM_ANY_TAG ? 1 :", "bytes on tcp",
      "p2p on tcp", "groups")
fault("i", "recv_bytes_takes_bytes_of_any_tag", "core/bytes.c", "cpu.tag = came.tag;", "", "bytes on tcp",
      "bytes on loopback", "rows on 2")
fault("h", "ranks_at_work_are_taken_for_other_programs", "core/exec/waiting.c",
      " && !ranks_use_cores(&w->usage) && !may", " && !may", "resting")
fault("h", "any_message_is_a_reason_to_spin", "core/exec/waiting.h",
      "    else if (w->vain && waiting_switches() == w->switches)\n        waiting_paid(w);",
      "    else\n        waiting_paid(w);", "resting", "shm_sleep")
fault("h", "a_long_copy_is_time_away", "core/exec/waiting.c", "usage.ru_nvcsw + usage.ru_nivcsw", "clock_now_ns()",
      "resting")
fault("h", "a_message_that_was_there_is_a_reason_to_spin", "backend_shm/fabric.h", "else if (turn > 1)", "else",
      "shm_sleep")
fault("h", "resting_thread_spins", "core/exec/waiting.c", "if (waiting_rests(w, now))\n        return 0;\n", "",
      "resting")
fault("h", "resting_rank_passes_barriers", "backend_shm/events.c", " && !waiting_rests(w, clock_now_ns())", "",
      "shm_sleep")
fault("h", "yielding_rank_passes_barriers", "backend_shm/events.c", "f->has_barrier && waiting_spins(w)",
      "f->has_barrier && w->spin_ns", "shm_sleep")
fault("h", "no_barrier_for_who_saw_that_it_needs_no_fence", "backend_shm/events.c",
      "if (!wanted && !was_barred) {", "if (!wanted) {", "shm_sleep")
fault("h", "spinning_rank_has_its_peers_make_fences", "backend_shm/fabric.c",
      "    else if (f->has_barrier && !f->is_barred)\n        events_spins(f);\n", "", "shm_sleep")
fault("h", "ranks_of_one_process_count_each", "backend_shm/usage.c",
      "pid == mine || contains(pids, count, pid)", "contains(pids, count, pid)", "shm_usage")
fault("h", "ranks_that_share_a_core_sleep_in_turn", "core/exec/waiting.c", "if (w->share_ns && !w->yields)",
      "if (0)", "resting")
fault("h", "ranks_rest_for_a_fair_share", "core/exec/waiting.c", "had_ns > (ended_ns - began_ns) / SHARE", "0",
      "resting")
fault("h", "ranks_rest_for_no_slices", "core/exec/waiting.c", "had_ns > (ended_ns - began_ns) / SHARE", "1",
      "resting")
fault("h", "ranks_that_wait_long_do_not_rest", "core/exec/waiting.c", "had_ns < waits * WAKING_NS", "1", "resting")
fault("h", "waits_in_a_rest_count", "core/exec/waiting.c", "if (w->got_back_ns < w->rest_until_ns)", "if (0)",
      "resting")
fault("h", "ranks_yield_for_ever", "core/exec/waiting.c", "    w->yields = now < w->yield_until_ns;\n", "",
      "resting")
fault("h", "long_waits_sleep", "core/exec/waiting.c",
      "    if (waiting_polls_on(w, now, idle_since))\n        return 1;\n", "", "long_waits")
fault("h", "threads_that_slept_poll_on", "core/exec/waiting.c", "    if (!w->poll_until_ns)\n", "", "long_waits")
fault("h", "threads_poll_on_beside_other_programs", "core/exec/waiting.c", " || now < w->no_poll_until_ns)",
      ")", "long_waits")
fault("h", "other_programs_end_short_waits", "core/exec/waiting.c",
      "rest_longer(&w->no_poll_until_ns, &w->no_poll_ns, NO_POLL_LEAST_NS, now);", "waiting_yield(w, now);",
      "long_waits")
fault("h", "threads_poll_on_if_ranks_use_the_cores", "core/exec/waiting.c",
      "    if (took_ns > WAITING_LONG_LOOK_NS)\n        rest_longer(&w->no_poll",
      "    if (took_ns > WAITING_LONG_LOOK_NS && !ranks_use_cores(&w->usage))\n        rest_longer(&w->no_poll",
      "long_waits")
fault("h", "long_waits_without_the_core_are_worth_it", "core/exec/waiting.c",
      "if (is_soon && w->gave_core && waiting_switches() != w->switches)", "if (0)", "long_waits")
fault("h", "any_long_wait_without_the_core_is_in_vain", "core/exec/waiting.c",
      "if (is_soon && w->gave_core &&", "if (w->gave_core &&", "long_waits")
fault("h", "short_yields_let_other_ranks_run", "core/exec/waiting.c", "is_soon && w->gave_core &&", "is_soon &&",
      "long_waits")
fault("h", "once_a_core_was_given_away_for_ever", "core/exec/waiting.c", "        w->gave_core = 0;\n", "",
      "long_waits")
fault("h", "threads_that_poll_on_yield_after_each_look", "core/exec/waiting.c",
      " || (w->polls_on_ns && now - w->yielded_ns < YIELD_EVERY_NS))", ")", "long_waits")
fault("h", "threads_that_would_spin_yield", "core/exec/waiting.c", "    if (now - idle_since < w->spin_ns || (w->polls",
      "    if ((w->polls", "long_waits")
fault("h", "threads_that_poll_on_yield_once", "core/exec/waiting.c",
      " && now - w->yielded_ns < YIELD_EVERY_NS))", "))", "long_waits")
FABRIC = "backend_shm/fabric.c"
fault("h", "resting_thread_waits_on", FABRIC, "_spins(w) || waiting_rests(w, now) ||", "_spins(w) ||", "shm_room")
fault("h", "yielding_thread_waits_on", FABRIC, "!waiting_spins(w) || waiting_rests", "waiting_rests", "shm_room")
fault("h", "threads_wait_on_that_others_wait_for", FABRIC,
      "        atomic_load_explicit(f->looks.contenders, memory_order_relaxed) || engine", "        engine", "shm_room")
fault("h", "threads_wait_on_that_must_look_at_sockets", FABRIC, "!f->is_alone || ", "", "shm_room")
fault("h", "threads_wait_on_that_the_engine_needs", FABRIC, "is_needed = f->domain->works_out > 0;", "is_needed = 0;",
      "shm_room")
fault("h", "threads_wait_on_that_must_send", FABRIC, "        return p->tx_head != NULL;\n", "        return 0;\n",
      "shm_room")
fault("h", "threads_wait_on_for_ranks_that_wait_for_them", FABRIC,
      "atomic_load_explicit(&in->waits, memory_order_relaxed) ||\n", "0 ||\n", "shm_room")
fault("h", "threads_wait_on_for_ranks_that_wait_in_calls", FABRIC,
      "atomic_load_explicit(&in->awaits_credit, memory_order_relaxed);", "0;", "shm_room")
fault("h", "threads_wait_on_while_ranks_connect", FABRIC, "return is_needed || kernel_has_news(f, now);",
      "return is_needed;", "shm_room")
fault("h", "threads_that_wait_on_ask_the_kernel_each_time", FABRIC,
      "    if (now - f->asked_ns < EVERY_NS)\n        return 0;\n", "", "shm_room")
fault("h", "offers_are_waited_for_in_order", "backend_shm/small.c",
      "(!s->is_offered || s->recv_messages == 1) && fabric", "fabric", "late_rank")
fault("h", "helpers_nap_long_between_messages", "core/exec/helper.c",
      "h->finds >= HELPER_FINDS && naps_ns > HELPER_NAP_NS ?", "0 ?", "helper_thread")
fault("h", "polling_in_the_call_was_in_vain", "core/exec/waiting.c", " || (w->poll_ns && now >= w->poll_until_ns);",
      ";", "long_waits")
fault("i", "records_of_late_ranks_have_no_time", "core/submit.c", "UNLIKELY(run.since_ns) ? ticks_now() : ", "",
      "submit")
fault("i", "records_begin_after_the_wait", "core/submit.c", "op->submitted_ns ? clock_now_ns() - op->submitted_ns : 0;",
      "0;", "submit")
fault("i", "operations_in_their_calls_have_not_begun", "core/exec/desync.c",
      "const struct call *now = queue_call(g, g->ended_seq + 1); /* also", "const struct call *now = NULL; /* also",
      "desync")
fault("f", "a_lost_rank_has_not_connected_yet", "core/exec/desync.c",
      "    else if (p->state == PORT_LOST && p->lost_text)", "    else if (0)", "reasons")
fault("i", "turns_are_kept_while_a_rank_is_late", "core/submit.c", " || comm__thread.takes_turn ||", " ||", "submit")
fault("h", "threads_wait_on_when_the_core_says_no", FABRIC, " ||\n        !exec_host->run_may_wait())", ")",
      "shm_room")
fault("h", "a_peer_that_has_waited_for_room_still_does", FABRIC, "return has_no_room && ring_look(&p->in, &unused) !="
      " RING_NOTHING;", "return has_no_room;", "shm_room")
fault("h", "lost_peers_wait_for_room", FABRIC, "if (p->tx_head || p->port.state != PORT_UP)", "if (p->tx_head)",
      "shm_room")
fault("h", "one_late_rank_ends_polling_at_once", "backend_shm/fabric.h",
      "        waiting_anew(f->looks.waiting);\n", "", "late_rank")
fault("h", "late_ranks_are_for_the_engine", "backend_shm/small.c",
      " &&\n            !waits_on(f, s, until_ns))", ")", "late_rank")
fault("h", "ranks_that_are_late_in_rounds_are_for_the_engine", "backend_shm/rounds.c",
      " &&\n            !fabric_waits_on(c->fabric, c->until_ns))", ")", "late_rank")
fault("h", "late_ranks_with_long_sums_are_for_the_engine", "backend_shm/swap.c", " && !fabric_waits_on(f, until_ns))",
      ")", "late_rank")
fault("h", "late_messages_are_for_the_engine", "backend_shm/message.c", " && !fabric_waits_on(f, until_ns)))", "))",
      "late_rank")
fault("h", "helpers_wake_up_beside_programs_that_compute", "core/exec/helper.c",
      "is_driven || naps_ns);", "is_driven);", "helper_thread")
fault("h", "helpers_nap_without_operations", "core/exec/helper.c", " && h->ops->nap_ns && atomic_load(h->async_works)",
      " && h->ops->nap_ns", "helper_thread")
fault("h", "helpers_nap_though_a_thread_drives", "core/exec/helper.c", "int may = !is_driven && ", "int may = ",
      "helper_thread")
fault("h", "helpers_that_nap_can_be_woken", "core/exec/helper.c", "if (naps_ns || rests_ns <= HELPER_NAP_NS)",
      "if (rests_ns <= 0)", "helper_thread")
fault("h", "programs_compute_with_all_cores_or_not_at_all", "core/exec/waiting.c",
      "p->share > MILLICORES ? p->share - MILLICORES / 2 : p->share / 2;", "p->share - MILLICORES / 2;", "long_waits")
fault("h", "programs_compute_that_leave_a_core", "core/exec/waiting.c",
      "p->share > MILLICORES ? p->share - MILLICORES / 2 : p->share / 2;", "p->share / 2;", "long_waits")
fault("h", "programs_computed_at_any_time", "core/exec/waiting.c", "    p->used_ns = used_ns;\n", "", "long_waits")
fault("h", "programs_compute_for_a_moment", "core/exec/waiting.c",
      "    if (passed_ns < BRIEF_NS)\n        return p->computes;\n", "", "long_waits")
fault("i", "waiting_operations_keep_other_threads_out", "core/submit.c",
      "|| futex_lock_is_awaited(&run->group->submission))", ")", "submit")
fault("i", "waiting_operations_have_no_limit", "core/submit.c",
      "    return now - run->since_ns < run->op->timeout_ns;", "    return 1;", "submit")
fault("i", "limits_begin_after_the_wait", "core/submit.c", "        op->submitted_ns = run.since_ns;\n", "", "submit")
fault("i", "limits_begin_with_the_hand_over", "core/submit.c",
      "(op->submitted_ns ? op->submitted_ns : clock_soon_ns())", "clock_soon_ns()", "submit")
fault("i", "limits_begin_with_an_earlier_call", "core/submit.c", "        op->submitted_ns = 0;", "        ;", "submit")
fault("h", "long_waits_are_in_vain", "core/exec/waiting.c", "if (w->spin_ns && !has_polled)",
      "if (w->spin_ns)", "long_waits")
fault("h", "threads_poll_on_that_shall_not_spin", "core/exec/waiting.c", "w->spin_ns && !is_limited(info) ?",
      "!is_limited(info) ?", "long_waits")
fault("h", "threads_poll_on_whose_time_is_limited", "core/exec/waiting.c", "w->spin_ns && !is_limited(info) ?",
      "w->spin_ns ?", "long_waits")
fault("h", "ranks_of_other_host_ids_need_no_time", "core/exec/waiting.c",
      "return local > info->local_size ? local : info->local_size;", "return local;", "long_waits")
fault("h", "one_late_rank_ends_polling_on_shm", "backend_shm/driver.c",
      "        if (n)\n            waiting_anew(&a->waiting);\n", "", "late_rank")
fault("h", "one_late_rank_ends_polling_on_tcp", "backend_tcp/progress.c",
      "        if (n)\n            waiting_anew(&m->waiting);\n", "", "late_rank")
fault("h", "limits_of_groups_above_do_not_count", "core/exec/control_group.c", "(end = strrchr(name, '/'))", "0",
      "control_group", "shm_memory_left")
fault("h", "limits_on_time_are_for_each_period", "core/exec/control_group.c", "quota * ONE_CORE / period",
      "quota * ONE_CORE / 100000", "control_group")
fault("h", "any_long_yield_is_for_a_rank", "core/exec/waiting.c", "passed_ns / 8 * EIGHTHS * cores;", "0;", "resting")
fault("i", "waiting_records_once_more", "core/submit.c",
      "    if (LIKELY(run && !run->slot))", "    if (LIKELY(run))", "submit")
fault("i", "short_options_are_read_past_their_end", "core/submit.c",
      "    if (UNLIKELY(o->struct_bytes != sizeof *o)) /* it may end before these fields */\n        return 0;\n", "",
      "submit")
fault("i", "refused_collective_keeps_its_number", "core/submit.c",
      "            channel->seq--;\n"
      "            atomic_store_explicit(&group->seq, atomic_load_explicit(&group->seq, memory_order_relaxed) - 1,\n"
      "                                  memory_order_relaxed);\n", "            ;\n", "refused")
fault("i", "refused_message_keeps_its_number", "core/submit.c",
      "            channel->peer_seq--;\n            group->peer_seq--;\n", "            ;\n", "refused")
fault("i", "second_message_for_one_step_is_taken", MATCH, "    message_remove(m);\n    m->state = MESSAGE_MOVING; /* A",
      "    m->state = MESSAGE_MOVING; /* A", "hostile")
fault("i", "second_clearance_sends_again", MATCH, "{\n    message_remove(m);\n    await_no_more(m);\n    if",
      "{\n    await_no_more(m);\n    if", "hostile")
fault("i", "interface_list_is_turned_round", ENDPOINT, "            return !exclude;", "            return exclude;",
      "interfaces")
fault("i", "newest_connection_makes_room", LISTEN, "s->give_up_ns < oldest->give_up_ns",
      "s->give_up_ns > oldest->give_up_ns", "hostile")
fault("i", "exact_receive_prefers_a_later_message", P2P,
      "if (!r->matched && fits(r, from_rank, tag))\n            return r;",
      "if (!r->matched && fits(r, from_rank, tag) && !r->next)\n            return r;", "p2p on tcp", "programs on tcp")

# ---- core ----

fault("core", "witness_is_silent", "core/exec/witness.c", "if (call.signature != h->signature)", "if (0)", "reasons",
      "mismatch")
fault("core", "ranks_that_wait_have_no_witness_in_common", DESYNC, "        query_witness(g, rank, op->op.seq);\n", "",
      "mismatch")
fault("core", "signature_without_the_root", "core/op.c", "    agreed.root = op->root;\n", "", "op", "mismatch")
fault("core", "signature_without_rank_order", "core/op.c", "agreed.flags = op->flags & COMM_OP_FLAG_RANK_ORDER;", "",
      "op", "manual")
fault("core", "signature_without_uneven_counts", "core/op.c",
      "agreed.count = XXH64(blocks->counts, (size_t)size * sizeof *blocks->counts, 0);", "(void)blocks;",
      "op", "mismatch")
fault("core", "overlap_misses_the_last_byte", "core/op.c", "x < y + b_bytes && y < x + a_bytes",
      "x + 1 < y + b_bytes && y + 1 < x + a_bytes", "op")
fault("core", "negative_tag_is_sent", "core/op.c", "if (op->tag < 0 && !(receives",
      "if (op->tag < COMM_ANY_TAG && !(receives", "op", "p2p on tcp")
fault("core", "batch_forgets_offsets", "core/coalesce.c",
      "side->offsets = copy(arena, side->offsets, size * sizeof *side->offsets);", "", "manual",
      "random programs on tcp", "works")
fault("core", "batch_keeps_a_pointer_to_premul", "core/coalesce.c",
      "op->premul = copy(arena, op->premul, op->element_bytes);", "(void)0;", "manual", "random programs on tcp")
fault("core", "batch_reports_the_last_failure", "core/work.c",
      "atomic_compare_exchange_strong(&parent->first_failed, &none, work);",
      "atomic_store(&parent->first_failed, work), (void)none;", "manual", "works")
fault("core", "descriptor_of_a_done_work_is_not_readable", "core/work.c",
      "if (before & WORK_DONE)\n            eventfd_write(fd, 1);", "", "works")
fault("core", "strings_of_threads_mix", "core/bytes.c", "    pthread_mutex_lock(lock);\n", "", "bytes on shm")
fault("core", "half_a_string_is_told_to_nobody", "core/bytes.c", "status == COMM_ERR_UNSUPPORTED || comm_status_scope",
      "1 || comm_status_scope", "mixed")
fault("core", "refused_split_asks_the_others", "core/group_make.c", "if (status == COMM_OK && backend)", "if (0)",
      "groups")
fault("core", "works_with_a_descriptor_are_told_for_ever", "core/work.c",
      "!!(state & WORK_CALLBACK) + !!(state & WORK_HAS_FD));", "!!(state & WORK_CALLBACK));", "work")
fault("core", "works_that_were_done_are_told_for_ever", "core/work.c",
      "    atomic_fetch_sub(&told, 1);\n    hold_for_callback", "    hold_for_callback", "work")
fault("exec", "helper_computes_for_the_program", "core/exec/waiting.c", " - cpu_ns(CLOCK_THREAD_CPUTIME_ID)", "",
      "long_waits")
fault("shm", "helper_rouses_itself_until_something_is_due", "backend_shm/driver.c",
      "a->helper_until_ns = until_ns < a->due_ns ? until_ns : a->due_ns;", "a->helper_until_ns = until_ns;", "helper")
fault("core", "round_robin_groups_of_the_same_groups_are_one", "core/round_robin.c",
      ".id = XXH64(identity, sizeof identity, 1)", ".id = XXH64(identity, sizeof *identity, 1)", "round_robin")
fault("core", "round_robin_groups_lose_their_device", "core/round_robin.c",
      "        .device = groups[0]->device,\n", "", "mixed")
fault("core", "flattened_dimensions_lose_their_device", "core/device_mesh.c",
      "    if (!options.device)\n        options.device = like->device;\n", "", "mixed")
fault("core", "closed_groups_are_flattened", "core/device_mesh.c",
      "if (status == COMM_OK && atomic_load(&group->closing))", "if (0)", "device_mesh")
fault("core", "group_that_members_know_is_made_again", "core/group_make.c", "if (status != COMM_OK && !is_known)",
      "if (status != COMM_OK)", "mixed")
fault("core", "world_that_did_not_come_together_stays_watched", "core/group_open.c",
      "        stop_watching(world->root);\n", "        (void)0;\n", "mixed")
fault("core", "round_robin_batch_takes_a_turn_for_each", "core/round_robin.c", "        rr->taken++;\n",
      "        rr->taken += submitted;\n", "round_robin")
fault("core", "hook_sees_the_asked_for_source", "core/hook.c", "        record->peer = work->source;\n", "", "works",
      "rows on 2")
fault("core", "records_are_newest_first", "core/recorder.c", "uint64_t number = r->written - count + 1 + i;",
      "uint64_t number = r->written - i;", "recorder")
fault("core", "split_ignores_the_key", "core/group_make.c", "return x->key < y->key ? -1 : 1;",
      "return x->rank < y->rank ? -1 : 1;", "groups", "rows on 3")
fault("core", "refused_group_keeps_its_number", "core/group_make.c", "parent->lineages[i].count = count;",
      "(void)count;", "groups", "shrink")
fault("core", "mesh_coordinates_are_column_major", "core/device_mesh.c",
      "index = index * layout->shape[a] + coordinates[a];",
      "index = index + coordinates[a] * (a ? layout->shape[a - 1] : 1);", "device_mesh")
fault("core", "slurm_batch_script_is_a_rank", "core/launch.c", "strtoull(step, NULL, 10) < 0xfffffffaull",
      "strtoull(step, NULL, 10) <= 0xfffffffaull", "launch")
fault("core", "port_65536_is_taken", "core/common/base/url.c", "    if (!parse_digits(port, digits, 65535, ret_port))",
      "    if (!parse_digits(port, digits, 65536, ret_port))", "url")
fault("core", "option_beyond_its_most_is_taken", "core/common/base/param.c", "||\n        value * factor > p->maximum)",
      ")", "manual", "registry")
fault("core", "two_backends_for_one_device", "core/backend_string.c",
      "if (strcmp(s->pairs[i].device, last->device) == 0)", "if (strcmp(s->pairs[i].device, last->device) == 0 && i)",
      "backend_string")
fault("core", "rank_that_joined_twice_is_let_in", "core/join.c",
      "if (bytes != strlen(mine) || memcmp(there, mine, bytes) != 0)", "if (bytes != strlen(mine))", "join")
SWEEP = "core/join_sweep.c"
fault("core", "worlds_leave_their_keys", SWEEP, "j->number < 2 || j->swept", "1", "join_sweep")
fault("core", "keys_of_the_last_world_are_deleted", SWEEP,
      "j->number < 2 || j->swept)\n        return;\n    j->swept = 1;\n"
      "    snprintf(prefix, sizeof prefix, \"%\" PRId64, j->number - 2);",
      "j->number < 1 || j->swept)\n        return;\n    j->swept = 1;\n"
      "    snprintf(prefix, sizeof prefix, \"%\" PRId64, j->number - 1);", "join_sweep")
fault("core", "earlier_world_is_swept_twice", SWEEP, "    j->swept = 1;\n", "", "join_sweep")
fault("core", "addresses_of_the_backends_stay", SWEEP, "status = remove_backends(old, card, bytes);",
      "status = COMM_OK;", "join_sweep")
fault("core", "sweep_insists_on_deleting", SWEEP,
      "    return status == COMM_OK ? comm_store_delete(old, key, NULL) : status;\n}\n\nvoid",
      "    return comm_store_delete(old, key, NULL);\n}\n\nvoid", "join_sweep")
fault("core", "addresses_that_are_asked_for_are_deleted", "core/join.c", "if (*ret_bytes == 0 && bytes > 0)",
      "if (*ret_bytes == 0 && bytes > 0 && 0)", "join_sweep")
fault("core", "who_comes_last_sweeps_nothing", "core/join.c",
      "    comm__join_sweep(j); /* who came last both times: the others do not wait for it */\n", "", "join_sweep")
fault("core", "avg_of_integers_rounds_in_the_type", "core/reduce.c",
      "return m->redop == COMM_REDOP_AVG ? COMM_DTYPE_F64 : 0;", "return 0;", *KERNELS)
fault("core", "small_floats_round_at_each_step", "core/reduce.c",
      "return m->redop == COMM_REDOP_MIN || m->redop == COMM_REDOP_MAX ? 0 : COMM_DTYPE_F32;", "return 0;", *KERNELS)
fault("core", "bf16_rounds_half_up", "core/small_float.h", "(bits + 0x7fffu + ((bits >> 16) & 1)) >> 16",
      "(bits + 0x8000u) >> 16", *KERNELS)
fault("core", "bool_of_one_rank_stays_as_it_is", "core/reduce.c", "if (m->dtype == COMM_DTYPE_BOOL)\n",
      "if (m->dtype == COMM_DTYPE_BOOL && count > 8)\n", *KERNELS)
fault("core", "complex_product_has_the_wrong_sign", "core/reduce_kernels.c",
      "dst[2 * i] = settle(ar * br + negate(ai * bi));                                                            \\",
      "dst[2 * i] = settle(ar * br + ai * bi);                                                                    \\",
      *KERNELS)
fault("core", "monitored_barrier_does_not_wait_for_the_verdict", "core/monitored.c", "enum { VERDICT_MS = 1000 };",
      "enum { VERDICT_MS = 0 };", "groups")
fault("core", "monitored_barrier_counts_an_older_call", "core/monitored.c",
      "if (m->heard[r] >= m->number)\n            status = post(",
      "if (m->heard[r] + 1 >= m->number)\n            status = post(", "manual", "groups", "rows on 3")
fault("core", "subgroup_of_the_wrong_ranks", "core/group_make.c", "parent->rank / group_size * group_size",
      "parent->rank % group_size * group_size", "groups", "rows on 4")

# ---- tcp ----

fault("tcp", "both_connections_are_welcome", LISTEN, "return ours_goes_first(l) ? WIRE_DUPLICATE : WIRE_WELCOME;",
      "return WIRE_WELCOME;", "mesh")
fault("tcp", "closing_leaves_handshakes_to_their_time", LISTEN,
      "        if (m->pending[i].fd >= 0)\n            pending_end(&m->pending[i], 0);", "        (void)m;", "mesh")
fault("tcp", "read_buffer_is_not_moved_down", LINK,
      "        memmove(l->rx, l->rx + l->rx_begin, l->rx_end - l->rx_begin);\n"
      "        l->rx_end -= l->rx_begin;\n        l->rx_begin = 0;\n", "", "link")
fault("tcp", "verdict_comes_before_what_can_be_read", DESYNC,
      "    group_hear(g); /* what has come while this rank did not run counts */\n", "", "desync")
fault("tcp", "time_without_running_counts_in_full", DESYNC, "        if (g->steps_left)", "        if (0)", "desync")
fault("tcp", "loss_counts_by_hearsay", RECEIVE, "h->reporter < 0 || h->reporter != group_rank_of(g, p) ||",
      "h->reporter < 0 ||", "hostile")
fault("tcp", "closed_world_is_a_closed_group", GROUPS, "if (g->id == d->world) {", "if (0) {", "engine")
fault("tcp", "loss_is_not_known_in_a_group_that_opens_later", GROUPS, "note_lost(g, &said);", ";", "reasons")
fault("tcp", "rank_whose_address_is_not_known_counts_as_lost", "core/exec/ending.c",
      "is_lost = status != COMM_ERR_BACKEND;", "is_lost = 1;", "opening")
fault("tcp", "members_are_not_told_whom_another_backend_lost", "core/exec/ending.c",
      "tell_what_others_lost(g);\n    tell", "tell", "chaos")
fault("tcp", "loss_counts_from_a_group_without_the_lost", RECEIVE, " || group_rank_of(g, lost) < 0)", ")", "hostile")
fault("tcp", "user_reduce_begins_with_the_last_rank", "core/exec/operands.c", "running = sources[r];\n    }",
      "running = sources[0];\n    }", "reductions on tcp", "random programs on tcp")
fault("tcp", "last_slice_is_lost", "core/exec/prepare.c",
      "(uint32_t)((total + op->slice_elements - 1) / op->slice_elements);",
      "(uint32_t)(total / op->slice_elements);", "last slice is shorter", "engine", "random programs on tcp")
fault("tcp", "slot_begins_a_slice_at_the_wrong_place", ENGINE, "slot->begin = slot->slice * op->slice_elements;",
      "slot->begin = (slot->slice + slot->round) * op->slice_elements;",
      "last slice is shorter", "random programs on tcp")
fault("tcp", "in_place_all_to_all_works_on_no_copy", "core/exec/prepare.c", "if (!premul && !in_place_exchange)",
      "if (!premul)", "collectives on tcp", "rows on 3")
fault("tcp", "lengths_are_not_compared", MATCH, "if (h->bytes == m->bytes || !m->user->wrong_length)",
      "if (h->bytes <= m->bytes || !m->user->wrong_length)", "mismatch", "manual")
fault("core", "backends_of_later_groups_are_not_opened", "core/group_open.c",
      "    for (size_t i = 0; status == COMM_OK && i < world->root->channel_count; i++)\n        open_possible",
      "    for (size_t i = 0; 0 && i < world->root->channel_count; i++)\n        open_possible", "kill")
fault("core", "backends_of_groups_of_one_host_are_not_opened", "core/auto.c",
      "part_of(all, world->size, kind & 1, kind >> 1, part)", "part_of(all, world->size, kind & 1, 0, part)", "kill")
fault("core", "backends_of_groups_of_a_rank_on_each_host_are_not_opened", "core/auto.c",
      "part_of(all, world->size, kind & 1, kind >> 1, part)", "part_of(all, world->size, 1, kind >> 1, part)", "kill")
fault("core", "trouble_of_other_ranks_is_not_told", DESYNC, "    if (say_what_holds_up(g, text, sizeof text))\n",
      "    if (0)\n", "desync")
fault("exec", "messages_for_a_group_that_has_ended_unopened_are_kept", "core/exec/groups.c",
      "u->head.group == id && u->port == p", "0", "match")
fault("exec", "messages_for_other_unopened_groups_are_dropped", "core/exec/groups.c",
      "u->head.group == id && u->port == p", "u->port == p", "match")
fault("exec", "messages_between_two_are_counted_as_early", "core/exec/groups.c",
      "boxes_create(info->size, NULL)", "boxes_create(info->size, &g->early)", "match")
fault("core", "rank_0_is_called_missing_at_once", "core/monitored.c",
      "hear(group, inbox, verdict_deadline_ns(deadline_ns),", "hear(group, inbox, deadline_ns,", "groups")
fault("core", "negative_lengths_of_byte_strings_are_sent", "core/bytes.c", "    if (bytes > PTRDIFF_MAX)\n",
      "    if (0)\n", "groups")
fault("core", "absurd_lengths_of_byte_strings_are_believed", "core/bytes.c",
      "    if (overflows || total > LIMIT_BUFFER_BYTES)", "    if (0)", "groups")
fault("core", "absurd_counts_are_believed", "core/op.c", "    if (!overflows && *ret_bytes <= LIMIT_BUFFER_BYTES)",
      "    if (!overflows)", "op")
fault("core", "premul_of_another_reduce_op_is_ignored", "core/op.c",
      "op->premul && !(reduces && op->redop == COMM_REDOP_PREMUL_SUM)", "0", "op")
fault("core", "reduce_fn_of_another_reduce_op_is_ignored", "core/op.c",
      "op->reduce_fn && !(reduces && op->redop == COMM_REDOP_USER)", "0", "op")
fault("core", "who_waits_does_not_hear_of_a_rank_that_came_twice", "core/join.c", "        leave_note(j);", "        ;",
      "join")
fault("core", "users_do_not_tell_hosts_apart", "core/host_id.c", "{ a.user != b.user, user }", "{ 0, user }", "host_id")
fault("core", "group_in_a_child_of_fork_is_well", "core/group.c",
      "        return comm__fail_forked(group, \"comm_group_status\");", "        return COMM_OK;", "groups")
fault("store", "negative_time_limit_of_a_store_is_none", "store/store.c",
      "    if (o->timeout_ms < COMM_TIMEOUT_INFINITE)", "    if (0)", "store hash alone")
fault("store", "lone_server_blames_itself", "store/tcp_client.c",
      "        else if (status == COMM_ERR_TIMEOUT)\n            comm__fail(",
      "        else if (0)\n            comm__fail(", "store scripted")
MISSPELT = "core/common/base/misspelt.c"
fault("core", "any_variable_resembles_one", MISSPELT, "4 * distance(", "1 * distance(", "misspelt")
fault("core", "variables_without_their_last_word_are_not_told_of", MISSPELT,
      "(strncmp(name, known, length) == 0 && known[length] == '_') ||", "0 ||", "misspelt")
fault("core", "names_that_begin_like_a_backend_are_its_own", MISSPELT,
      "name[PREFIX_BYTES + i] == '_' ? PREFIX_BYTES + i + 1 : 0", "PREFIX_BYTES + i + 1", "misspelt")
fault("core", "variables_of_other_backends_are_compared", MISSPELT, "            return 0;\n    }",
      "            return PREFIX_BYTES;\n    }", "misspelt")
fault("core", "reduce_fns_make_groups", "core/group_make.c",
      "    comm_status status = comm__refuse_in_reduce_fn(call);\n",
      "    comm_status status = COMM_OK;\n", "manual")
fault("core", "reduce_fns_test_works", "core/work.c",
      "        status = comm__refuse_in_reduce_fn(\"comm_work_test\");", "        ;", "manual")
fault("core", "reduce_fns_abort", "core/group.c",
      "    comm_status status = comm__refuse_in_reduce_fn(\"comm_group_abort\");", "    comm_status status = COMM_OK;",
      "manual")
fault("tcp", "rank_is_lost_by_a_buffer_that_cannot_be_read", "core/exec/ending.c",
      " && p->lost_status != COMM_ERR_BACKEND;", ";", "reasons")
fault("shm", "helper_sleeps_though_an_offer_is_accepted", "backend_shm/duplex.c",
      "    events_awake(p->fabric); /* nobody rings for it", "    /* nobody rings for it", "shm_lend")
fault("shm", "old_offer_with_the_number_of_a_new_one_is_read", "backend_shm/duplex.c",
      "if (p->offers[i].place.loan == loan)", "if (0)", "shm_lend")
fault("tcp", "early_messages_are_not_compared", "core/exec/submit.c", "g->early && r < g->size",
      "r < 0", "manual", "mismatch")
fault("tcp", "past_collective_of_the_same_slot_is_compared", QUEUE,
      "return seq == 0 || past->seq != seq ? NULL : past;", "return seq == 0 ? NULL : past;", "mismatch",
      "random programs on tcp")
fault("tcp", "closed_group_says_it_was_never_opened", DESYNC, "if (closed->seq >= h->seq)", "if (closed->seq > h->seq)",
      "leave", "stop", "reasons")
fault("tcp", "lower_rank_is_not_waited_for", DESYNC, "if (!g->defers && lower_rank_may_speak(g)) {",
      "if (0 && lower_rank_may_speak(g)) {", "stop", "reasons")
fault("tcp", "reported_reason_of_the_first_member_is_lost", GROUPS,
      "if (past->why.status == COMM_OK)\n        set_reason(&past->why, why);",
      "set_reason(&past->why, &(struct reason){ COMM_ERR_PEER_LOST, p->peer, why->text, 0 });", "reasons", "leave")
fault("tcp", "group_told_of_its_end_before_it_opens_goes_on", GROUPS, "    end_as_told(g);\n    end_as_lost",
      "    end_as_lost", "reasons", "leave")
fault("tcp", "loss_of_a_member_comes_before_its_words", ENDING,
      "        group_hear(g); /* it may be said there why this one went */\n", "", "hostile", "reasons")
fault("tcp", "rank_that_left_is_missed_by_nobody", ENDING, "(g->head && engine_needs(g->head, p)) || p2p_needs",
      "p2p_needs", "leave", "reasons")
fault("tcp", "eager_frame_beyond_the_limit_is_taken", "backend_tcp/wire.c",
      "if (h->type == FRAME_EAGER && h->bytes > FRAME_EAGER_MAX)",
      "if (h->type == FRAME_EAGER && h->bytes > 2 * FRAME_EAGER_MAX)", "tcp_wire", "hostile")
fault("tcp", "header_round_is_cut", "backend_tcp/wire.c",
      "    if (get32(in + 36) > UINT16_MAX)\n        return \"an impossible round number\";\n", "", "tcp_wire",
      "hostile")
fault("tcp", "bruck_copies_one_block_too_few", "core/exec/algo/all_gather_bruck.c",
      "for (int32_t i = 0; i < p->size; i++)\n        plan_copy(p, plan_chunk(PLAN_RECV",
      "for (int32_t i = 0; i + 1 < p->size; i++)\n        plan_copy(p, plan_chunk(PLAN_RECV", "simulate")
fault("tcp", "broadcast_ring_sends_what_is_there_already", "core/exec/algo/broadcast_scatter_ring.c",
      "if (!has(p, next, outgoing))", "if (1)", "simulate")
fault("tcp", "silent_connection_stays_for_ever", LISTEN, "now_ns >= m->pending[i].give_up_ns)",
      "now_ns >= m->pending[i].give_up_ns && now_ns < 0)", "connect")
fault("tcp", "listener_without_descriptors_is_not_paused", LISTEN, "    uv_poll_stop(m->listener_poll);\n", "",
      "connect")
fault("tcp", "paused_listener_never_goes_on", LISTEN,
      "        loop_watch(m, m->listener_poll, UV_READABLE, on_listener);\n    }", "    }", "connect")
fault("tcp", "override_applies_beyond_its_range", "core/exec/select.c",
      "query->bytes >= o->min_bytes && query->bytes <= o->max_bytes &&", "query->bytes >= o->min_bytes &&",
      "select")
fault("core", "tuning_rule_applies_to_more_ranks", "core/exec/select.c", " && query->size <= o->max_ranks", "",
      "tuning")
fault("core", "ranks_may_read_different_tuning_files", "core/join.c", "strcmp(a.tuning, b.tuning) != 0 ||", "",
      "tuning")
fault("core", "backend_that_is_not_open_yet_is_told_of_the_end", "core/overdue.c",
      " && atomic_load(&group->is_open))", ")", "mixed")
fault("core", "end_of_a_group_that_was_not_open_is_told_to_no_backend", "core/group_open.c",
      "    if (atomic_load(&group->untold))\n        comm__watch_from(group, 0);\n", "", "mixed")
fault("core", "group_that_did_not_open_stays_watched", "core/group_open.c",
      "        stop_watching(group); /* a backend may have ended it already */\n", "", "mixed")
fault("core", "group_is_watched_while_it_closes", "core/watchdog.c", "    group->at_watched = &nowhere;\n", "",
      "watchdog")
fault("core", "released_inner_work_completes", "core/inner_work.c",
      "    atomic_store(&inner->completed, 1); /* a completion from now on comes too late */\n", "",
      "stacked")
fault("core", "inner_work_completes_twice", "core/inner_work.c", "    if (atomic_exchange(&inner->completed, 1)) {",
      "    if (atomic_exchange(&inner->completed, 1) > 1) {", "stacked")
fault("core", "inner_work_that_is_used_again_is_done", "core/inner_work.c",
      "    atomic_store(&inner->work.state, 0);\n", "", "stacked")
fault("core", "inner_work_that_is_used_again_keeps_its_facts", "core/inner_work.c",
      "    inner->work.source = inner->work.tag = -1;\n", "", "stacked")
fault("core", "inner_work_that_is_used_again_keeps_its_slot", "core/inner_work.c", "    inner->work.slot = NULL;\n", "",
      "stacked")
fault("core", "inner_works_that_are_left_are_not_told", "core/inner_work.c", "if (works->out > 0 && !forked)",
      "if (works->out > 1000 && !forked)", "stacked")
fault("core", "wrapper_is_not_told_of_the_other_s_end", "core/group.c",
      " || comm__inner_works_any(&group->inner_works))) {", ")) {", "chaos")
fault("core", "options_of_the_other_are_not_found", "core/host.c", "&& option[length] == '.';",
      "&& option[length] == ':';", "chaos")
fault("core", "options_of_a_second_device_are_dropped", "core/group_open.c",
      "return comm__same_options(channel->choice.pair, pair)\n", "return comm__same_options(pair, pair)\n", "chaos")
fault("core", "chaos_depends_on_the_world_s_id", "tools/chaos/plan.c", ".key = hash(info->name),", ".key = info->id,",
      "chaos")
fault("core", "chaos_lets_sends_of_a_pair_overtake", "tools/chaos/queue.c", "        return !same_peer;\n",
      "        return true;\n", "random programs on chaos, processes", "p2p on chaos")
fault("core", "chaos_flips_the_user_s_own_buffer", "tools/chaos/faults.c",
      "    flip(g, op, op->copy, bytes, \"the payload\");\n",
      "    flip(g, op, send->data, bytes, \"the payload\");\n", "chaos")
fault("core", "simd_kernels_are_the_best_whatever_is_asked", "core/reduce.c",
      "(*name == '\\0' || strcmp(name, variants[i].variant->name) == 0) && variants", "variants", *KERNELS)
fault("core", "simd_kernels_in_use_stay", "core/reduce.c",
      "    atomic_store_explicit(&current, found, memory_order_relaxed);\n", "", *KERNELS)
fault("core", "nan_keeps_its_bits", "core/reduce_kernels.c", "return value == value ? value : __builtin_nanf(\"\");",
      "return value;", *KERNELS)
fault("core", "sum_of_many_takes_a_register_twice", "core/reduce_kernels.c",
      "d += load_##name(src + 3 * in_one);  ", "d += load_##name(src + 2 * in_one);  ", *KERNELS)
fault("core", "sum_of_many_keeps_the_bits_of_a_nan", "core/reduce_kernels.c",
      "((register_##bits)value & is_number) | (nan & ~is_number));                                  \\",
      "(register_##bits)value + 0 * is_number);                                                     \\", *KERNELS)
fault("core", "part_of_an_average_is_a_sum", "core/reduce_kernels.c", "QUOTIENT(sum[k].a), QUOTIENT(sum[k].b)",
      "QUOTIENT(sum[k].a), sum[k].b", *KERNELS)
fault("core", "nan_at_odd_places_is_rounded", "core/reduce_lanes.h", "_mm256_cmp_ps(value.a, value.b, _CMP_UNORD_Q)",
      "_mm256_cmp_ps(value.a, value.a, _CMP_UNORD_Q)", *KERNELS)
fault("core", "nan_of_two_vectors_is_converted", "core/reduce_lanes.h", "        store_f16(second, value.b);\n",
      "        store_number_f16(second, value.b);\n", *KERNELS)
fault("core", "vectors_of_two_lie_apart", "core/reduce_lanes.h", "_mm256_srli_epi32(low, 16), high, 0xaa",
      "_mm256_srli_epi32(low, 16), high, 0xaf", *KERNELS)
fault("core", "tie_is_rounded_away_from_zero", "core/reduce_lanes.h",
      "    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);",
      "    return _mm256_add_epi32(bits, _mm256_set1_epi32(0x8000 + 0 * _mm256_movemask_epi8(odd)));", *KERNELS)
fault("core", "average_of_many_integers_is_their_sum", "core/reduce.c", "(averages && wide != COMM_DTYPE_F64 && ",
      "(averages && ", *KERNELS)
fault("core", "groups_with_other_settings_agree", "core/exec/queue.c", "op->signature ^ g->settings_mark,",
      "op->signature,", "mismatch")
fault("core", "a_slice_is_no_setting", "core/exec/groups.c", "return *algo || slice_bytes ?",
      "return *algo ?", "mismatch")
fault("core", "settings_may_differ", "core/join.c", "|| strcmp(a.settings, b.settings) != 0)", ")",
      "opening")
fault("core", "settings_of_any_backend_count", "core/group_open.c", "write_agreed(&channel->choice, list[i], text);",
      "write_agreed(&channel->choice, comm__registry_known(\"shm\"), text);", "opening")
fault("core", "a_setting_counts_where_the_string_has_it", "core/group_open.c",
      "&& !comm__option_of(choice, backend->name, p->name)", "", "opening")
fault("core", "settings_as_by_default_count", "core/common/base/param.c",
      "parse_number(p, set, &value) && value != initial)", "parse_number(p, set, &value))", "opening")
fault("core", "nan_of_the_second_operand_is_no_least", "core/reduce_kernels.c",
      "((a & magnitude) > limit || (b & magnitude) > limit) ? nan : least; ",
      "((a & magnitude) > limit) ? nan : least; ", *KERNELS)
fault("core", "group_has_the_hosts_of_the_first_ranks", GROUPS, "g->hosts[r] = d->hosts[g->world_ranks[r]];",
      "g->hosts[r] = d->hosts[r];", "engine")
fault("core", "every_rank_counts_as_a_host", GROUPS, "g->host_count += !seen[g->hosts[r]];", "g->host_count++;",
      "two levels on three hosts", "many")
fault("core", "run_of_hosts_may_jump", "core/host_id.c", "host < 0 || host > count)", "host < 0)", "host_id")
fault("core", "hosts_are_written_by_the_first_run", "core/host_id.c",
      "end < size && hosts[end] == hosts[begin]; end++)",
      "end < size && hosts[end] >= hosts[begin]; end++)", "host_id")
fault("core", "hosts_ignore_the_network_name_space", "core/host_id.c", "    netaddr_identity(i->network);",
      "    snprintf(i->network, sizeof i->network, \"n n\");", "host_id")
fault("core", "hosts_ignore_the_shared_memory", "core/host_id.c", "(uint64_t)memory.st_dev;", "(uint64_t)0;",
      "host_id")
fault("core", "cache_is_each_ranks_own", "core/exec/cache.c", "ranks < c->sharers ? ranks : c->sharers;", "1;", "cache")
fault("core", "short_blocks_go_past_the_caches", "core/exec/cache.c", "block_bytes >= least_bytes &&", "", "cache")
PAGES = "core/exec/huge_pages.c"
fault("core", "huge_pages_of_memory_that_is_not_there", PAGES, "is_own(memory) && ", "", "huge_pages")
fault("core", "huge_pages_of_memory_that_others_have", PAGES,
      "(is_there | is_of_file | is_exclusive)) == (is_there | is_exclusive)", "is_there) == is_there", "huge_pages")
fault("core", "huge_pages_are_asked_for_again_and_again", PAGES, "        page->farther *= 2;\n",
      "        page->farther *= 1;\n", "huge_pages")
fault("core", "huge_pages_are_asked_for_once_in_a_place", PAGES,
      "page->farther < FARTHEST) {\n        page->farther *= 2;",
      "page->farther < FARTHEST) {\n        page->farther = 1ll << 40;", "huge_pages")
fault("core", "huge_pages_count_all_of_the_buffer", PAGES, "(int64_t)(its_end - at)", "(int64_t)bytes", "huge_pages")
fault("core", "huge_pages_forget_none", PAGES, "if (page->number != at / HUGE_PAGE_BYTES)", "if (!page->number)",
      "huge_pages")
fault("core", "huge_pages_whatever_they_take", PAGES, "h->takes_ns ? h->takes_ns : assumed_ns", "assumed_ns",
      "huge_pages")
fault("core", "huge_pages_for_short_operations", "core/exec/operands.c",
      "bytes < HUGE_PAGES_LONG_BYTES)\n", "bytes == 0)\n", "shm_huge_pages")
fault("core", "huge_pages_for_one_side", "core/exec/operands.c", "note_side(op, &op->op.send, t->send);", ";",
      "shm_huge_pages")
fault("core", "no_huge_pages_for_messages", P2P, "op->message.bytes >= HUGE_PAGES_LONG_BYTES", "0", "shm_huge_pages")
fault("shm", "no_huge_pages_for_what_the_kernel_reads", "backend_shm/lend.c",
      "    if (!place->region)\n        huge_pages_moved", "    if (0)\n        huge_pages_moved", "shm_huge_pages")
fault("core", "list_of_cores_without_ranges", "core/exec/cache.c", "count += last - first + 1;", "count++;", "cache")
fault("core", "cores_are_those_of_the_last_rank", "core/host_cores.c",
      "h->unknown |= !add(masks[r], &h->cores);", "CPU_ZERO(&h->cores); h->unknown |= !add(masks[r], &h->cores);",
      "host_cores", "local_cores")
fault("core", "rank_that_does_not_know_has_no_cores", "core/host_cores.c", "h->unknown |= !add(", "add(", "host_cores")
fault("core", "cores_are_those_of_all_hosts", "core/join.c", "j->hosts[j->rank]);\n    return status;",
      "0);\n    return status;", "local_cores")
fault("core", "each_core_of_the_machine_is_the_ranks_own", "core/exec/waiting.c",
      "local_cores(info) > 0 ? local_cores(info) : online;", "online;", "resting")
fault("core", "old_core_is_asked_for_cores", "core/exec/waiting.c",
      "info->struct_bytes >= END ? info->local_cores : 0;", "END ? info->local_cores : 0;", "resting")
fault("core", "ranks_on_as_many_cores_yield", "core/exec/waiting.c", "waiting_local_ranks(info) > cores ||",
      "waiting_local_ranks(info) >= cores ||", "resting")
fault("core", "hosts_are_numbered_by_identity", "core/host_id.c",
      "ret_hosts[r] == r ? count++ : ret_hosts[ret_hosts[r]]", "ret_hosts[r] == r ? count++ : count - 1", "host_id",
      "groups")
fault("core", "group_hosts_are_the_first_of_the_world", "core/group.c", "group->world->hosts[group->world_ranks[r]]",
      "group->world->hosts[r]", "groups")
fault("tcp", "two_levels_for_one_rank_per_host", "core/exec/select.c",
      "query->memory == SELECT_MEMORY_HOSTS || query->hosts <= query->size / 2", "1", "select")
fault("tcp", "two_level_rules_ignore_the_number_of_hosts", "core/exec/select.c",
      "has_levels(query) && query->hosts <= r->max_size;", "has_levels(query);", "select")
fault("d", "uneven_blocks_choose_by_their_own_bytes", "core/exec/prepare.c", "needs & ALGO_UNEVEN ? 0 : ", "",
      "many ranks choose alike")
fault("tcp", "leaders_keep_all_sums_in_one_place", "core/exec/algo/all_reduce_two_level_leaders.c",
      "plan_slot(slot + h * p->size, 0, p->size)", "plan_slot(slot, 0, p->size)", "simulate")
fault("tcp", "uneven_hosts_have_no_levels_in_memory", "core/exec/select.c",
      "query->memory == SELECT_MEMORY_HOSTS || query->hosts <= query->size / 2", "query->hosts <= query->size / 2",
      "select")
fault("tcp", "two_level_part_is_for_another_host", "core/exec/algo/all_reduce_two_level.c",
      "cut(sum, p->host_count, h)", "cut(sum, p->host_count, host)", "simulate")
fault("tcp", "two_level_gather_has_one_part", "core/exec/algo/all_gather_two_level.c",
      "(p->host_most + p->host_least - 1) / p->host_least", "1", "simulate")
fault("tcp", "members_of_a_host_are_its_first_ones", "core/exec/plan.c",
      "p->members[p->host[p->host_of[r]] + p->place[r]] = r;", "p->members[r] = r;", "simulate")
fault("tcp", "rules_ignore_the_number_of_ranks", "core/exec/select.c", "is_for(r, query) && ", "", "select", "simulate")

# ---- store ----

fault("store", "barrier_lets_go_one_too_early", STATE, "if (arrived >= request->number) {",
      "if (arrived + 1 >= request->number) {", "store tcp", "store clients")
fault("store", "waiter_for_two_keys_wakes_at_the_first", STATE, "if (--client->missing > 0)\n        return;",
      "--client->missing;", "store tcp")
fault("store", "push_wakes_a_waiting_barrier", STATE, "        if (w->at_least > 0)\n            continue;\n", "",
      "store transcripts", "store tcp")
fault("store", "push_is_used_up_by_who_waits_for_more", STATE, "woken = client->ready ? client : NULL;",
      "woken = client;", "store hostile")
fault("store", "push_is_used_up_by_who_only_waits", STATE,
      "    if (client->ordered)\n        pass_on(state, client);\n", "", "store hostile")
fault("store", "second_part_of_a_long_multi_get_begins_anew", STATE,
      "for (; i < client->values_sent; i++)\n        wire_list_next(&list);", "", "store tcp", "store clients",
      "store hostile")
fault("store", "key_of_the_limit_is_refused", "store/wire.c", "if (length > (is_key ? WIRE_KEY_MAX : WIRE_VALUE_MAX))",
      "if (length >= (is_key ? WIRE_KEY_MAX : WIRE_VALUE_MAX))", "store tcp", "store hostile", "fuzz store_wire")
fault("store", "prefix_of_another_view_is_listed", "store/prefix.c", "if (strncmp(keys[i], prefix, length) == 0)",
      "if (strncmp(keys[i], prefix, length - 1) == 0)", "store prefix+hash", "store nested+hash")
fault("store", "clone_of_a_view_has_no_prefix", "store/prefix.c",
      "store_view(v->plain ? NULL : v->prefix, atomic_load(&s->timeout_ms), other, ret_store);",
      "store_view(NULL, atomic_load(&s->timeout_ms), other, ret_store);", "store clone+prefix+tcp")
fault("store", "file_add_ignores_overflow", "store/file.c",
      "if (__builtin_add_overflow((int64_t)number, amount, ret_sum))",
      "if (__builtin_add_overflow((int64_t)number, amount, ret_sum) && amount > 1)", "store file")
fault("store", "file_compare_set_gives_the_old_value", "store/file.c",
      "now = equal ? (struct table_bytes){ desired, desired_bytes } : "
      "(struct table_bytes){ expected, expected_bytes };",
      "now = (struct table_bytes){ expected, expected_bytes };", "store file")
fault("store", "torn_record_is_a_damaged_one", "store/file_log.c", "if (bytes < *ret_bytes)\n        return FILE_TORN;",
      "if (bytes < *ret_bytes)\n        return FILE_BAD;", "store file_log", "store file alone")
fault("store", "checksum_is_not_looked_at", "store/file_log.c", "if (check_of(at, *ret_bytes) != (",
      "if (0 && check_of(at, *ret_bytes) != (", "store file_log", "store file alone")
fault("store", "hash_waiters_are_woken_one_at_a_time", "store/hash.c",
      "pthread_cond_broadcast(&h->changed);\n    pthread_mutex_unlock(&h->lock);\n    return status;",
      "pthread_cond_signal(&h->changed);\n    pthread_mutex_unlock(&h->lock);\n    return status;", "store hash")
fault("store", "child_of_fork_finds_its_parents_table", "store/hash.c",
      " && h->base.owner_pid == (int32_t)getpid()", "", "store hash alone")
fault("store", "fallback_pop_that_gives_up_leaves_no_mark", "store/fallback.c",
      "comm_status marked = s->kind->compare_set(s, at, \"\", 0, GIVEN_UP, 1, &grace, &data, &bytes);",
      "comm_status marked = COMM_ERR_NOT_FOUND;", "store least", "store user")
fault("store", "fallback_append_keeps_its_turn", "store/fallback.c",
      "if (ours && status == COMM_OK) {\n        status = s->kind->remove(s, turn, &grace, &(int32_t){ 0 });",
      "if (ours && status == COMM_OK) {\n        (void)turn;", "store least", "store prefix+least")
fault("store", "all_sum_leaves_the_last_rank_out", "store/collect.c",
      "for (int32_t r = 0; r < c->world_size; r++) {\n        char *end;",
      "for (int32_t r = 0; r < c->world_size - 1; r++) {\n        char *end;", "store collectives")
fault("store", "default_timeout_of_a_call_is_infinite", "store/store.c",
      "timeout_ms == 0 ? atomic_load(&s->timeout_ms) : timeout_ms",
      "timeout_ms == 0 ? COMM_TIMEOUT_INFINITE : timeout_ms", "store hash", "store tcp")
fault("store", "grace_is_longer_than_what_is_promised", "store/store.h", "STORE_GRACE_MS = 300,",
      "STORE_GRACE_MS = 900,", "store silent")
fault("store", "turn_on_the_connection_has_no_limit", "store/tcp_client.c",
      "        if (store_wait_over(wait))\n            return COMM_ERR_TIMEOUT;\n        if (wait->deadline_ns",
      "        if (wait->deadline_ns", "store silent")
fault("store", "silent_server_is_blamed_on_the_key", "store/tcp_wait.c",
      "if (status == COMM_ERR_TIMEOUT && c->dialect == WIRE_DIALECT_OLD)", "if (status == COMM_ERR_TIMEOUT)",
      "store silent")
fault("store", "get_of_a_deleted_key_is_empty", "store/tcp_wait.c", "if (status == COMM_OK && answer.bytes == 0)",
      "if (0)", "store scripted")
fault("store", "multi_get_of_a_deleted_key_is_empty", "store/tcp_wait.c", "if (status == COMM_OK && empty < count)",
      "if (0)", "store scripted")
fault("store", "add_wakes_no_waiter", STATE, "wire_put_u64(reply, (uint64_t)value);\n    wake(state, request->key);",
      "wire_put_u64(reply, (uint64_t)value);", "store tcp", "store clients")
fault("store", "closed_opener_counts_as_open", "store/file_share.c",
      "if (opener < f->opener_count)\n        f->openers[opener].closed = 1;",
      "if (opener + 1 < f->opener_count)\n        f->openers[opener].closed = 1;", "store file alone", "store file")
fault("store", "next_world_at_a_file_is_one_too_many", "store/file_share.c",
      "alive > 0 && comes_for_the_next(f, world_size)", "0", "store file alone", "store rendezvous by file")
fault("store", "any_process_comes_for_the_next_world", "store/file_share.c",
      "&& strcmp(f->openers[i].who, who) == 0;", ";", "store file alone")
fault("store", "next_world_waits_for_the_dead", "store/file_share.c",
      "alive > 0 && comes_for_the_next(", "comes_for_the_next(", "store file alone")
fault("store", "next_world_begins_in_the_removed_file", "store/file_share.c",
      "        *ret_again = is_removed(f);\n        if (*ret_again)\n            return let_go(f);\n", "",
      "store rendezvous by file")
fault("store", "next_world_has_the_openers_of_the_last", "store/file_share.c", "    f->opener_count = 0;\n", "",
      "store rendezvous by file")
fault("core", "nobody_asks_whether_a_sender_has_closed_the_group", DESYNC, "    probe_peers(g, g->recvs.head);\n", "",
      "leave")

# ---- mpi ----

MPI = {name: f"backend_mpi/{name}.c" for name in
       ("match", "blocks", "issue", "direct", "types", "poll", "signals", "communicator", "ending", "library")}
MPI_FEW = ("calls of few bytes on mpich, 3 ranks", "calls of few bytes, of MPI on mpich, 3 ranks")

fault("mpi", "receive_takes_the_message_of_any_rank", MPI["match"],
      "(op->root == COMM_ANY_SOURCE || op->root == status->MPI_SOURCE) &&", "1 &&", "p2p on mpich, 3 ranks")
fault("mpi", "messages_that_wait_are_kept_in_no_order", MPI["match"],
      "    a->next = NULL;\n    a->message = message;\n    a->status = *status;\n    *g->arrivals_end = a;\n"
      "    g->arrivals_end = &a->next;",
      "    a->next = g->arrivals;\n    a->message = message;\n    a->status = *status;\n    g->arrivals = a;",
      "p2p on mpich, 2 ranks", "p2p on mpich, 3 ranks")
fault("mpi", "long_message_is_received_into_a_short_buffer", MPI["match"], "    if (bytes > capacity) {",
      "    if (bytes > capacity + 64) {", "p2p on openmpi, 2 ranks", "p2p on mpich, 2 ranks")
fault("mpi", "message_without_memory_to_keep_it_is_waited_for", MPI["match"],
      "        if (!has_spare(g)) {\n            fail_unmatched(g);\n            return;",
      "        if (!has_spare(g)) {\n            return;", "memory that runs out on mpich")
fault("mpi", "exchanges_of_all_operations_have_one_tag", MPI["blocks"],
      "TAG_FLIGHT + (int)(f->op.seq % tags)", "TAG_FLIGHT", "programs on mpich, 2 ranks",
      "random programs on mpich, 3 ranks")
fault("mpi", "last_piece_of_a_long_block_is_a_whole_one", MPI["blocks"],
      "(int)(i + 1 < pieces ? most : bytes - i * most)", "(int)most", *MPI_FEW)
fault("mpi", "pieces_of_a_reduction_begin_at_a_count", MPI["issue"], "from ? from + at * op->element_bytes : nothing",
      "from ? from + at : nothing", "reductions of few elements, of MPI on mpich, 3 ranks")
fault("mpi", "average_of_mpi_is_a_sum", MPI["issue"], "op->redop == COMM_REDOP_AVG && op->recv.count",
      "op->redop == COMM_REDOP_AVG && !op->recv.count", "reductions of MPI on mpich, 3 ranks")
fault("mpi", "factor_of_premul_sum_is_left_out", MPI["issue"], "if (count && multiplies)", "if (0 && multiplies)",
      "reductions on mpich, 3 ranks")
fault("mpi", "last_elements_of_a_cut_reduction_are_nobodys", MPI["direct"],
      "f->part = (f->op.send.count + others) / (others + 1);", "f->part = f->op.send.count / (others + 1);",
      "collectives on mpich, 4 ranks", "reductions on mpich, 3 ranks")
fault("mpi", "eight_bit_floats_go_to_mpi", MPI["types"],
      "dtype == COMM_DTYPE_F8E4M3 ||\n           dtype == COMM_DTYPE_F8E5M2", "dtype == COMM_DTYPE_F8E4M3",
      "reductions of MPI on mpich, 3 ranks")
fault("mpi", "poller_wakes_for_what_a_thread_waits_for", MPI["poll"],
      "while (f && (f->is_begun || now_ns - f->waited_ns < BUSY_NS))", "while (f && f->is_begun)",
      "between two on mpich, 2 ranks")
fault("mpi", "handlers_of_mpi_stay", MPI["signals"], "sigaction(i, before, NULL);", "(void)before;",
      "between two on mpich, 2 ranks")
fault("mpi", "keys_of_a_group_stay_in_the_store", MPI["communicator"],
      "        host->store_delete(g->world->info->store, key);\n    }\n}", "    }\n}",
      "comm-backend-check on mpich, 2 ranks")
fault("mpi", "news_of_an_abort_ends_nothing", MPI["ending"],
      "    group_end(g, status, text + (*text == ' '), list);\n    host->group_failed",
      "    (void)list;\n    host->group_failed", "what only MPI has on mpich, 3 ranks")
fault("mpi", "library_in_the_options_is_ignored", MPI["library"], "if (!asked || !*asked || (given",
      "if (asked || !asked || (given", "which MPI")

# ---- shm: payloads that are read in the sender's memory ----

LEND, REGION, DUPLEX, COPY_OUT, WRITE_BACK = (
    f"backend_shm/{name}.c" for name in ("lend", "region", "duplex", "copy_out", "write_back"))

fault("shm", "taken_back_loan_is_received", LEND,
      "if (!lend_is_valid(p, &place)) {", "if (0) {", "shm_lend")
fault("shm", "ended_loan_stays_valid", LEND,
      "        atomic_store_explicit(&p->out.shared->valid[l->place.slot], 0, memory_order_relaxed);\n", "", "shm_lend")
fault("shm", "loan_that_is_taken_back_is_received_at_once", LEND,
      "    if (!is_read || !lend_is_valid(p, place))\n", "    if (!is_read)\n", "shm_lend")
fault("shm", "slot_is_not_given_back", LEND, "p->loans &= ~(1u << l->place.slot);", "", "shm_lend")
fault("shm", "slot_number_is_trusted", LEND, "if (place->slot >= RING_LOANS || place->loan == 0",
      "if (place->loan == 0", "shm_lend")
fault("shm", "offer_is_found_by_its_slot", DUPLEX, "if (p->offers[i].place.loan == offer)",
      "if (p->offers[i].place.slot == (offer - 1) % RING_LOANS)", "shm_lend")
fault("shm", "offer_is_read_in_the_middle_of_a_frame", DUPLEX, "if (p->accepted && !p->port.in.type)",
      "if (p->accepted)", "shm_lend")
fault("shm", "all_slots_are_offered", LEND,
      " && __builtin_popcount(p->loans) - p->copies_lent < RING_LOANS / 2", "", "shm_lend")
fault("shm", "offer_made_at_once_counts_as_sent", MATCH,
      "if (begun == PORT_READ || (begun == PORT_NOT_OFFERED && !in_order)) {", "if (begun == PORT_READ || !in_order) {",
      "late on shm, through the kernel")
fault("shm", "what_a_peer_has_read_before_it_left_counts_as_lost", DUPLEX,
      "was_read = is_kept && lend_is_taken(p, &p->lent_head->loan);", "was_read = 0;", "shm_lend")
fault("shm", "what_a_peer_has_not_read_before_it_left_counts_as_sent", DUPLEX,
      "tx->was_read ? PORT_READ : PORT_OFFERED", "tx->was_read ? PORT_READ : PORT_NOT_OFFERED", "shm_lend", "swap")
fault("shm", "send_begun_to_a_peer_that_has_left_waits", MATCH,
      "    port_want(m->port); /* the peer may", "    (void)m; /* the peer may", "engine")
fault("shm", "what_was_received_at_once_is_awaited", "core/exec/engine.c",
      "if (is_begun(slot) && index < slot->op->begun.received)", "if (0)", "late on shm, through the kernel")
fault("shm", "one_message_more_counts_as_received_at_once", "core/exec/engine.c",
      "index < slot->op->begun.received", "index <= slot->op->begun.received", "late on shm, through the kernel")
fault("shm", "offers_read_before_one_that_is_late_are_awaited_again", "backend_shm/small.c",
      "g->begun.received = (uint16_t)read;", "g->begun.received = read == s->recv_messages ? (uint16_t)read : 0;",
      "late on shm, through the kernel")
fault("shm", "message_with_a_round_is_kept", RECEIVE, "if (is_p2p && h->round) {", "if (0) {", "shm_hostile")
fault("shm", "message_with_a_round_is_received_at_once", "backend_shm/message.c", "h.type != FRAME_EAGER || h.round ||",
      "h.type != FRAME_EAGER ||", "shm_hostile")
fault("shm", "more_is_read_than_a_work_needs", DUPLEX, " && d->done_count == done", "", "shm_lend")
fault("shm", "the_other_way_is_never_tried_again", LEND,
      "% rows == 0;", "% rows == 99999;", "shm_lend")
fault("shm", "tries_of_the_other_way_stay_frequent", LEND, "(__builtin_ctz(TRIED_AT_LAST) - __builtin_ctzll(rows))",
      "(5 + 0 * rows)", "shm_lend")
fault("shm", "way_changes_at_the_first_message", LEND, "if (is_other && ++c->doubts < DOUBTS", "if (0",
      "shm_lend")
fault("shm", "tries_among_several_ranks_are_frequent", LEND,
      "    if (p->fabric->up_count > 1)\n        return 0;\n", "", "shm_lend")
fault("shm", "few_long_messages_are_not_enough_to_change_the_way", LEND, " && c->doubts < row_of(h))", ")",
      "shm_lend")
fault("shm", "first_message_of_a_size_goes_through_the_ring", LEND, "    if (!c->asked)\n", "    if (0)\n", "shm_lend")
fault("shm", "doubts_of_a_way_are_kept", LEND, "    c->doubts = 0;\n", "", "shm_lend")
fault("shm", "new_way_is_doubted_as_an_old_one", LEND, "c->chosen = is_other ? 0 : c->chosen", "c->chosen = c->chosen",
      "shm_lend")
fault("shm", "question_about_a_message_counts_again", LEND, "if (c->asked == turn_of(h) + 1)", "if (0)", "shm_lend")
fault("shm", "first_copies_of_a_row_of_tries_are_measured", LEND, "tries % row >= row / 4 * 3", "1",
      "shm_lend")
fault("shm", "pieces_of_a_long_try_are_not_told", LEND, "(uint32_t)(h->bytes / ring_piece_bytes(p->out.capacity) + 1);",
      "16;", "shm_lend")
fault("shm", "tries_of_the_ring_go_past_the_caches_never", LEND, "tries / row % 2 ?", "tries / row % 2 == 7 ?",
      "shm_lend")
fault("shm", "message_that_is_asked_about_again_is_a_try_more", LEND, "    if (p->tried != turn_of(h) + 1)\n", "",
      "shm_lend")
fault("shm", "doubts_about_eager_messages_wait_for_64_more", LEND, " || is_doubted ? 0", " ? 0", "shm_lend")
fault("shm", "waits_of_ranks_that_share_cores_count", LEND, "one_way || p->fabric->domain->shares_cores ? 1 :",
      "one_way ? 1 :", "shm_lend")
fault("shm", "waits_of_two_ranks_for_pieces_do_not_count", LEND, "> 1 ? 2 : 1.3;", "> 1 ? 2 : 1;", "shm_lend")
fault("shm", "kernel_reads_all_long_blocks_of_two_ranks", LEND,
      "return p->fabric->domain->peers.size > 2 && operation_bytes(p, h) >= CACHED_BYTES;",
      "return operation_bytes(p, h) >= CACHED_BYTES;", "shm_lend")
fault("shm", "operation_is_taken_for_one_of_its_blocks", LEND, "uint64_t blocks = g ? (uint64_t)g->size : 1;",
      "uint64_t blocks = g ? 1 : 1;", "shm_lend")
fault("shm", "blocks_of_a_group_are_taken_for_those_of_the_world", LEND, "uint64_t blocks = g ? (uint64_t)g->size : 1;",
      "uint64_t blocks = g ? (uint64_t)p->fabric->domain->peers.size : 1;", "shm_lend")
fault("shm", "kernel_is_tried_where_it_cannot_win", LEND,
      "int may_win = kernel_ns(f, units, least_ns) < ring_ns * clearly;", "int may_win = 1 + (int)(0 * least_ns);",
      "shm_lend")
fault("shm", "each_rank_decides_for_itself", LEND, "said & WAY_CHOSEN", "0", "shm_lend")
fault("shm", "higher_rank_decides_for_both", LEND, "p->fabric->domain->peers.rank < p->port.peer",
      "p->fabric->domain->peers.rank > p->port.peer", "shm_lend")
fault("shm", "copies_of_senders_are_not_told", DUPLEX, "return !lend_overlaps(&p->port.in, s->total) ? COPY_OUT_SENDER",
      "return 0 ? COPY_OUT_SENDER", "shm_lend")
fault("shm", "memory_that_goes_through_the_ring_is_not_observed", LEND,
      "    if (l->bytes >= LONG_BYTES && comm_op_traits_of", "    if (0 && comm_op_traits_of", "shm_lend")
fault("shm", "sizes_share_a_way", LEND, "h->bytes ? 63 - __builtin_clzll(h->bytes) : 0", "0", "shm_lend")
fault("shm", "long_blocks_go_by_what_is_measured", LEND, " >= CACHED_BYTES", " >= 0x7fffffff", "shm_lend")
fault("shm", "way_that_is_in_use_counts_no_more", LEND, "before & WAY_KERNEL ? ns * clearly", "0 ? ns * clearly",
      "shm_lend")
fault("shm", "copies_of_senders_are_assumed", LEND, "                  copy_out_is_told(&p->out.copy);",
      "                  1;", "shm_lend")
fault("shm", "ring_of_two_ranks_is_short", "backend_shm/fabric.c", "LONGEST = 2 << 20", "LONGEST = 512 << 10",
      "shm_rings")
fault("shm", "rings_of_more_ranks_are_as_long", "backend_shm/fabric.c", "ALL / ((size_t)ranks * (size_t)(ranks - 1))",
      "ALL", "shm_rings")
fault("shm", "long_rings_have_short_eager_messages", "backend_shm/fabric.c", "share < MOST ? share : MOST", "LEAST",
      "shm_rings")
fault("shm", "kind_of_a_lent_message_is_trusted", LEND, "return t && (t->traits &", "return (t->traits &",
      "shm_lend")
fault("shm", "first_reads_are_measured", LEND, "is_due = in_a_row >= COLD && (", "is_due = (", "shm_lend")
fault("shm", "first_reads_after_the_ring_are_measured", LEND, "p->pieces == p->pieces_before ? p->reads_in_a_row : 0;",
      "p->reads_in_a_row;", "shm_lend")
fault("shm", "reads_after_the_ring_are_never_measured", LEND, "is_due || p->reads_unmeasured == LEAST_OFTEN", "is_due",
      "shm_lend")
fault("shm", "own_reads_do_not_count", LEND, "if (!one_way && read_ns && p->read_ns[0] > read_ns)", "if (0)",
      "shm_lend")
fault("shm", "own_part_does_not_count", COPY_OUT, "if (told_ns && own_ns > told_ns)", "if (0)", "shm_copy_out",
      "shm_lend")
fault("shm", "own_part_is_not_known", DUPLEX, "    p->out.copy.taken_ns = p->take_ns[COPY_OUT_SENDER];\n", "",
      "shm_lend")
fault("shm", "slow_copy_counts_many_times", COPY_OUT, "LONG = 2 }", "LONG = 20 }", "shm_copy_out")
fault("shm", "times_have_no_least", COPY_OUT, "unit_ns < least_ns ? least_ns : ", "", "shm_copy_out")
fault("shm", "sender_is_not_told_what_reads_take", LEND,
      "    atomic_store_explicit(&p->in.shared->read_ns[p->borrowed_kind], (uint32_t)*known_ns, "
      "memory_order_relaxed);\n", "",
      "shm_lend")
fault("shm", "kernel_costs_what_it_did_at_first", LEND, "    double ns = kernel_ns(f, units, read_ns);",
      "    double ns = kernel_ns(f, units, f->cma_copy_ns);", "shm_lend")
fault("shm", "copies_to_a_ring_are_never_tried_past_the_caches", COPY_OUT,
      "is_other && c->way", "0 && is_other && c->way", "shm_copy_out")
fault("shm", "slow_copy_counts_at_once", COPY_OUT, "SLOW_SHARE = 8", "SLOW_SHARE = 1", "shm_copy_out")
fault("shm", "cold_copies_are_measured", COPY_OUT, "copy_out_is_within(c, COPY_OUT_COLD_LAPS) || ", "",
      "shm_copy_out")
fault("shm", "way_of_copies_is_chosen_while_they_are_new", COPY_OUT, "    if (copy_out_is_new(c))\n        return 0;\n",
      "", "shm_copy_out")
fault("shm", "laps_of_a_short_ring_are_few_bytes", "backend_shm/copy_out.h",
      " || c->bytes < laps * LEAST_LAP_BYTES", "", "shm_copy_out")
fault("shm", "copies_into_lines_of_main_memory_are_measured", COPY_OUT, "(!is_try || turn == LAPS - 1)",
      "1", "shm_copy_out")
fault("shm", "payloads_in_taken_lines_are_no_use_of_the_ring", "backend_shm/ring.c", "    r->copy.bytes += bytes;\n",
      "", "shm_ring")
fault("shm", "slow_copy_into_main_memory_counts", COPY_OUT, "    if (known_ns && known_ns < t->cached_ns)\n",
      "    if (0)\n", "shm_copy_out")
fault("shm", "nearness_is_noticed_by_laps_only", COPY_OUT, "!is_try && is_turn_of_other(copies))", "0)",
      "shm_copy_out")
fault("shm", "tries_of_copies_go_any_way", COPY_OUT, "    if (c->tries.copies)\n", "    if (0)\n", "shm_copy_out")
fault("shm", "tries_of_copies_are_all_measured", COPY_OUT, "return c->tries.is_measured ?", "return 1 ?",
      "shm_copy_out")
fault("shm", "ordered_way_of_copies_is_not_tries", COPY_OUT, "(c->way == COPY_OUT_MEASURED ? c->tries.way : c->way)",
      "(c->tries.way)", "shm_copy_out")
fault("shm", "reader_of_main_memory_pays_nothing", COPY_OUT, "c->times.cached_ns > past_ns + read_ns",
      "c->times.cached_ns > past_ns", "shm_copy_out")
fault("shm", "reader_of_short_payloads_in_main_memory_pays_nothing", COPY_OUT, "t->cached_ns > t->past_ns + read_ns",
      "t->cached_ns > t->past_ns", "shm_copy_out")
fault("shm", "what_the_reader_tells_is_not_heard", COPY_OUT, "!told_ns ? ", "1 ? ", "shm_copy_out")
fault("shm", "short_copies_count_as_long_ones", COPY_OUT,
      "return bytes < LEAST_LONG ? &c->brief[bytes > COPY_OUT_BRIEFER] : &c->times;", "return &c->times;",
      "shm_copy_out")
fault("shm", "short_copies_are_measured_for_each_byte", COPY_OUT, "bytes < LEAST_LONG ? COPY_OUT_UNIT : bytes", "bytes",
      "shm_copy_out")
fault("shm", "one_slow_short_copy_counts", COPY_OUT, "LEAST_CACHED = 16", "LEAST_CACHED = 1", "shm_copy_out")
fault("shm", "short_copies_go_past_the_caches_untried", COPY_OUT, "LEAST_TRIES = 2", "LEAST_TRIES = 0", "shm_copy_out")
fault("shm", "short_copies_of_all_lengths_are_alike", "backend_shm/copy_out.h",
      "BRIEFER = 2 << 10", "BRIEFER = 4 << 10", "shm_copy_out")
fault("shm", "tries_stay_frequent", "backend_shm/copy_out.h", "seen / SHARE < most ? seen / SHARE : most", "least",
      "shm_copy_out")
fault("shm", "short_copies_stay_past_the_caches", COPY_OUT, "c->way == COPY_OUT_MEASURED && turn < LAPS;", "0;",
      "shm_copy_out")
fault("shm", "faster_copy_of_two_counts", COPY_OUT, "write_ns > told_ns ? write_ns : told_ns",
      "write_ns < told_ns ? write_ns : told_ns", "shm_copy_out")
fault("shm", "ways_that_take_the_same_time_take_turns", COPY_OUT, "/ EIGHTHS * CLEARLY", "", "shm_copy_out")
fault("shm", "all_copies_count_for_one_way", DUPLEX, "== COPY_OUT_PAST ? COPY_OUT_PAST : COPY_OUT_CACHED",
      "== 99 ? COPY_OUT_PAST : COPY_OUT_CACHED", "shm_lend")
fault("shm", "reader_does_not_tell", DUPLEX,
      "    tell_take_ns(&p->in.shared->take_ns[reader][way], *known_ns);\n", "", "shm_lend")
fault("shm", "copies_never_overlap", DUPLEX, "p->out.copy.overlaps = lend_overlaps(&tx->head, tx->loan.bytes);", ";",
      "shm_lend")
fault("shm", "copies_overlap_for_ever", DUPLEX, "p->out.copy.overlaps = p->out.copy.reduces = 0;", ";", "shm_lend")
fault("shm", "order_is_not_obeyed", COPY_OUT, "return c->way == COPY_OUT_PAST;", "return 0;",
      "shm_copy_out")
fault("shm", "what_is_read_at_once_stays_in_the_ring", "backend_shm/message.c",
      "        duplex_took(p, FRAME_RTS, (size_t)h.bytes, h.credit);\n", "", "late on shm, through the kernel")
fault("shm", "exchange_in_place_is_offered", "backend_shm/small.c", "writes_over_offers(op) || ", "",
      "late on shm, through the kernel")
fault("shm", "offered_send_is_not_counted_down", MATCH, "int in_order = m->offered && leave_announced(m);",
      "int in_order = 0;", "engine")
fault("shm", "reductions_are_lent", LEND, "lend_peer_can_read(p) && is_for_the_kernel(p, h) &&\n",
      "lend_peer_can_read(p) &&\n", "shm_lend")
fault("shm", "all_long_reductions_are_lent", LEND, "!goes_one_way(h->kind) && bytes > CACHED_BYTES && bytes <=",
      "bytes > CACHED_BYTES && bytes <=", "shm_lend")
fault("shm", "kernel_is_not_asked_about_the_end", LEND, "{ (uint8_t *)payload + bytes - 1, 1 } };",
      "{ (uint8_t *)payload, 1 } };", "shm_lend")
fault("shm", "bye_before_what_was_taken", DUPLEX,
      "            note_taken(p); /* before the peer's BYE, which came later */", "            ;", "shm_lend")
fault("shm", "forgotten_loan_stays", DUPLEX, "        if ((*at)->owner == owner)\n            lent_remove(p, at);",
      "        if (0)\n            lent_remove(p, at);", "shm_lend")
fault("shm", "descriptors_for_the_memory_are_not_reserved", "backend_shm/accept.c",
      "answer.verdict == GREETING_WELCOME && !reserve_descriptors(c)", "0", "no_descriptors")
fault("shm", "busy_acceptor_is_given_up", "backend_shm/dial.c", "            dial_again(p, EBUSY);",
      "            give_up(p, COMM_ERR_PEER_LOST, \"busy\");", "no_descriptors")
fault("shm", "connection_without_descriptors_is_given_up", "backend_shm/dial.c", "const int lacks = error == EMFILE ||",
      "const int lacks =", "no_descriptors")
fault("shm", "region_is_told_once_to_all", REGION, "struct told *t = &r->told[p->port.peer];",
      "struct told *t = &r->told[0];", "shm",
      "registered on shm")
fault("shm", "memory_beyond_the_limit_of_files_is_taken", "backend_shm/segment.c", "is_too_large(bytes) ? EFBIG : ",
      "", "limits")
fault("shm", "more_memory_than_there_is_is_taken", "backend_shm/segment.c", "bytes <= memory_left()", "1",
      "shm_memory_left")
fault("shm", "swap_that_is_used_counts", "backend_shm/memory_left.c", "of_group(group, \"memory.swap.current\")",
      "0", "shm_memory_left")
fault("shm", "first_thread_that_ends_is_the_process", LEND, "p->sees_threads ? writer_threads(", "0 ? writer_threads(",
      "first threads end on shm")
fault("core", "ways_that_failed_leave_a_text", "core/common/base/error.c", "status == COMM_OK && strcmp", "0 && strcmp",
      "two_levels")
fault("shm", "rings_do_not_shrink_to_the_limit_of_files", "backend_shm/segment.c", " || fd == -EFBIG", "", "limits")
fault("shm", "why_a_connection_ends_is_not_said", DUPLEX,
      "        region_say_end(p->watch.fd, port->lost_text);\n", "        ;\n", "shm_lend")
fault("shm", "closed_descriptors_are_not_noticed", "backend_shm/events.c", "(errno == EBADF || errno == EINVAL)", "0",
      "no_descriptors")
fault("shm", "process_that_has_ended_is_not_noticed", DUPLEX, "    watch_process(p);\n", "", "leave on shm")
fault("shm", "region_that_can_shrink_is_mapped", "backend_shm/segment.c",
      "return is_sealed || !can_seal() ? 0", "return is_sealed || 1 ? 0", "shm_lend")
fault("shm", "file_of_dev_shm_is_refused", "backend_shm/segment.c", "is_sealed || !can_seal() ? 0",
      "is_sealed ? 0", "shm_ring")
fault("shm", "record_beyond_the_ring_is_received_at_once", "backend_shm/ring.c",
      "ring_holds(r, RING_TAKEN) ? RING_TAKEN", "1 ? RING_TAKEN", "shm_hostile")
fault("shm", "rings_are_not_asked_what_they_hold", "backend_shm/small.c", "    learn_rings(s);\n", "", "shm_hostile")
fault("shm", "announcement_is_taken_for_a_message_of_nothing", "backend_shm/ring.h",
      "            (uint64_t)h->type << 48,", "            h->type,", "shm_hostile")
fault("shm", "region_is_lent_from_before_it_is_mapped", REGION, "~RING_MAP_REFUSED) != p->maps_told)",
      "~RING_MAP_REFUSED) > p->maps_told)", "shm_lend")
fault("shm", "several_regions_are_told_of_at_a_time", REGION, "if (may_tell && tell(p, NOTICE_MAP, r)) {",
      "if (t->state == TOLD_NOT && tell(p, NOTICE_MAP, r)) {", "shm_lend")
fault("shm", "region_that_has_gone_is_noted_as_mapped", REGION,
      "        if (p->awaited == r)\n            p->awaited = NULL;\n", "", "shm_lend")
fault("shm", "region_is_number_0", REGION, "f->region_id == 0 || ", "", "shm_lend")
fault("shm", "region_has_the_number_of_the_kernel", REGION, "f->region_id == RING_BACK_BY_KERNEL || ", "", "shm_lend")
fault("shm", "number_of_a_region_comes_again_before_it_has_gone", REGION, " || is_region(f, f->region_id));", ");",
      "shm_lend")
fault("shm", "number_that_comes_again_is_of_the_old_region", REGION,
      "    if (*before)\n        forget_mapping(p, before);\n", "    if (*before)\n        return 1;\n", "shm_lend")
fault("shm", "region_that_has_gone_is_read", REGION,
      "        duplex_drop_borrowed(p);\n    unmap(p, at);", "        ;\n    unmap(p, at);", "shm_lend")
fault("shm", "notice_parts_a_message", DUPLEX, "(p->tx_head && p->tx_head->begun) || ", "", "shm_lend")
fault("shm", "ring_says_nothing_of_a_notice", DUPLEX, "return h->type == FRAME_CREDIT && h->flags",
      "return 0 && h->flags", "shm_lend")
fault("shm", "lack_of_descriptors_ends_the_connection", REGION, "if (bytes < 0 && errno == EMFILE) {", "if (0) {",
      "shm_lend", "no_descriptors")
fault("shm", "lack_of_addresses_ends_the_connection", REGION,
      "        refuse_map(p, n->bytes, wrong ? -wrong : errno);\n        return 1;", "        return 0;", "shm_lend")
fault("shm", "release_of_what_was_refused_is_told", REGION, "    t->state = TOLD_NOT;\n", "", "shm_lend")
fault("shm", "refused_region_counts_as_mapped", REGION,
      "    if (t && answer & RING_MAP_REFUSED)\n        note_refused(t);\n    else if (t)", "    if (t)", "shm_lend")
fault("shm", "refused_region_is_told_of_as_often_as_at_first", REGION, "FIRST_PAUSE << t->refusals;", "FIRST_PAUSE;",
      "shm_lend")
fault("shm", "refused_region_is_told_of_at_once", REGION, "    if (t->pause) {\n", "    if (0) {\n", "shm_lend")
fault("shm", "refusal_is_no_answer", REGION, "    answer_map(p, RING_MAP_REFUSED);\n", "", "shm_lend")
fault("shm", "only_the_first_lack_of_descriptors_is_said", REGION, "    p->map_refused = 0;\n", "", "shm_lend")
fault("shm", "each_lack_of_descriptors_is_said", REGION, "    p->map_refused = 1;\n", "", "shm_lend", "no_descriptors")
fault("shm", "release_of_what_was_refused_ends_the_connection", REGION, "(!*at && !p->map_refused)", "!*at",
      "shm_lend")
fault("shm", "place_beyond_a_region", REGION, "m && bytes <= m->bytes && at <= m->bytes - bytes",
      "m && at + bytes <= m->bytes", "shm_lend")
fault("shm", "piece_of_a_region_is_enough", REGION,
      "bytes > r->bytes || (size_t)(begin - r->map.data) > r->bytes - bytes",
      "(size_t)(begin - r->map.data) >= r->bytes", "shm_lend")
fault("shm", "written_to_what_was_taken_back", WRITE_BACK,
      "int valid = lend_is_valid(p, place);", "int valid = 1;", "shm_lend")
fault("shm", "memory_that_is_gone_with_its_loan_ends_the_connection", LEND,
      "    if (!lend_is_valid(p, &p->borrowed))\n        duplex_drop_borrowed(p);\n    else if (error", "    if (error",
      "shm_lend")
fault("shm", "writer_is_not_waited_for", WRITE_BACK,
      "                                              : end_in_region(p, l);",
      "                                              : 1;",
      "shm_lend")
fault("shm", "result_stays_in_the_staging_area", WRITE_BACK,
      "copy_part(l->write_back + at, from + at, now, l->is_long);", ";", "shm_lend",
      "registered on shm")
fault("shm", "staging_place_is_used_twice", WRITE_BACK,
      "        p->staged |= p->staged_in[l->place.slot];\n", "", "shm_lend")
fault("shm", "what_is_much_slower_is_tried_often_for_as_long", LEND, "(way & WAY_SELDOM ? SOONER : 1)", "1", "shm_lend")
fault("shm", "result_is_not_copied_to_the_second_place", SINK, "        memcpy(also + at, dst + at, now);\n", "",
      "match")
fault("shm", "operands_of_two_results_change_places", SINK, "*a = s->local_is_lower ? local : data",
      "*a = s->local_is_lower ? data : local", "match")
fault("shm", "what_goes_to_two_places_is_not_counted", SINK, "    s->done += n;\n}\n\nvoid sink_feed(",
      "}\n\nvoid sink_feed(", "match")
fault("shm", "results_in_both_memories_begin_again", WRITE_BACK, "p->borrowed_back + s->done, data",
      "p->borrowed_back, data", "shm_lend")
fault("core", "sums_of_pairs_leave_one_out", "core/reduce_kernels.c",
      "#define EACH_PAIR for (int k = 0; k < PAIRS; k++)",
      "#define EACH_PAIR for (int k = 0; k < PAIRS - 1; k++)", "reduce")
fault("core", "second_place_of_narrow_floats_is_shifted", "core/reduce_kernels.c",
      "store_two_##name(also + i + k * IN_PAIR, result[k]);",
      "store_two_##name(also + i, result[k]);          ", "reduce")
fault("shm", "written_back_though_not_asked", WRITE_BACK,
      "s->kind == SINK_REDUCE && s->message && s->message->may_write_back",
      "s->kind == SINK_REDUCE && s->message", "shm_lend")
fault("shm", "written_back_from_where_nothing_is_mapped", WRITE_BACK, "(p->borrowed_data && p->borrowed_back)",
      "p->borrowed_back", "shm_lend")
fault("shm", "written_by_the_kernel_to_what_was_taken_back", WRITE_BACK,
      "int written = lend_is_valid(p, place) && lend_write_memory(", "int written = lend_write_memory(", "shm_lend")
fault("shm", "place_of_a_result_stays_when_its_loan_ends", WRITE_BACK,
      "    atomic_store(&shared->back_to[l->place.slot].bytes, 0);\n", "", "write_back", "shm_lend")
fault("shm", "slot_of_a_stopped_writer_is_used_again", WRITE_BACK,
      "    return !is_writing(p, l);\n}\n\n/* Nothing is copied", "    return 1;\n}\n\n/* Nothing is copied",
      "shm_lend")
fault("shm", "place_of_a_stopped_writer_is_used_again", WRITE_BACK,
      "    if (is_writing(p, l))\n        return 0;\n    p->staged &=", "    p->staged &=", "shm_lend")
fault("shm", "place_of_a_stopped_writer_is_lost", WRITE_BACK,
      "            p->loans &= ~(1u << slot);\n            p->staged &= ~p->staged_in[slot];\n",
      "            p->loans &= ~(1u << slot);\n", "shm_lend")
fault("shm", "offers_end_with_a_stopped_writer", LEND,
      "    if (p->stuck)\n        write_back_free_slots(p);\n    return !p->staged", "    return !p->staged",
      "shm_lend")
fault("shm", "slot_of_a_stopped_writer_is_lost", WRITE_BACK,
      "            p->loans &= ~(1u << slot);\n", "", "shm_lend")
fault("shm", "writer_by_the_kernel_is_not_waited_for", WRITE_BACK,
      "for (int64_t until_ns = 0; is_writing(p, l); sched_yield()) {", "for (int64_t until_ns = 0; 0;) {", "shm_lend")
fault("shm", "result_that_is_not_all_written_counts", LEND, "return n == (ssize_t)bytes;", "return n > 0;",
      "shm_lend", "write_back")
fault("shm", "result_is_written_to_another_process", WRITE_BACK,
      " && word == p->in.shared->probe_word)", ")", "shm_lend")
fault("shm", "parts_that_cannot_be_staged_are_never_chosen", WRITE_BACK,
      "(!can_be_staged || kernel_is_faster(p, h, l->back_size))", "kernel_is_faster(p, h, l->back_size)", "shm_lend")
fault("shm", "way_of_results_stays_new", WRITE_BACK, "t->operations < MANY_ROWS * ROW ?", "1 ?", "shm_lend")
fault("shm", "short_results_go_by_the_kernel", WRITE_BACK, "l->bytes >= BY_KERNEL_LEAST && ", "", "shm_lend")
fault("shm", "kernel_writes_where_it_may_not_be_seen", WRITE_BACK, "p->pid > 0 && p->sees_threads", "p->pid > 0",
      "shm_lend")
fault("shm", "first_results_of_a_row_are_measured", WRITE_BACK, "t->operations % ROW >= COLD && is_due", "is_due",
      "shm_lend")
fault("shm", "both_ranks_choose_the_way_of_results", WRITE_BACK,
      "    if (!is_lower(p))\n        return t->way", "    if (0)\n        return t->way", "shm_lend")
fault("shm", "other_way_of_results_is_never_tried", WRITE_BACK, "row % rows == 0;", "0;", "shm_lend")
fault("shm", "detached_memory_stays_shared", REGION,
      "    write_the_same(at);\n", "",
      "shm_lend")
fault("shm", "results_in_a_detached_region_are_lost", REGION, "    if (r && r->shadow.data)\n", "    if (0)\n",
      "shm_lend")
fault("shm", "detached_region_is_lent", REGION, "return r && !r->shadow.data && region_tell", "return r && region_tell",
      "shm_lend")
fault("shm", "second_writer_to_a_detached_region_is_not_stopped", REGION, "    if (!begin_detached(r, page))\n",
      "    if (!is_first)\n        return 1;\n    if (!begin_detached(r, page))\n", "shm_lend")
fault("shm", "page_is_made_private_again", REGION, "    if (r->is_private[number])\n        return 1;\n", "",
      "shm_lend")
fault("shm", "earlier_connection_of_a_rank_is_kept", "backend_shm/accept.c", "f->pending[i].from == hello->from)", "0)",
      "no_descriptors")
fault("shm", "helper_is_not_told_that_descriptors_are_closed", "backend_shm/events.c",
      "    f->driver->forget_descriptors(f->domain);\n", "", "no_descriptors")
fault("shm", "regions_keep_descriptors_that_are_closed", "backend_shm/events.c",
      "    region_forget_descriptors(f);\n", "", "no_descriptors")
fault("shm", "writer_is_not_waited_for_where_there_is_no_memory", WRITE_BACK,
      "        !has_stopped_writing(p, l, WRITER_CALL_NS))\n        lose_writer(", "        0)\n        lose_writer(",
      "shm_lend")
fault("engine", "average_is_written_back", ENGINE,
      "step->write_back == PLAN_MAY_WRITE_BACK && op->op.redop != COMM_REDOP_AVG",
      "step->write_back == PLAN_MAY_WRITE_BACK", "registered on shm")
fault("engine", "written_and_sent_again", ENGINE,
      "slot->written & (is_receive(step) ? SLOT_WAS_WRITTEN : SLOT_HAS_WRITTEN)",
      "slot->written & SLOT_WAS_WRITTEN && is_receive(step)", "registered on shm")

# ---- shm: what runs at once passes nothing ----

SMALL, MESSAGE = "backend_shm/small.c", "backend_shm/message.c"
fault("b", "send_at_once_without_credit", "backend_shm/room.h",
      "return port_finds_credit(&p->port, bytes) && ring_free", "return ring_free", "shm_lend")
fault("b", "collective_at_once_without_room", SMALL, " || !room_for(s->sends[i].peer, n.bytes, lines)", "",
      "shm_hostile")
fault("shm", "send_at_once_passes_those_held_back", MESSAGE, "!duplex_is_clear(p) || port->held.head)",
      "!duplex_is_clear(p))", "shm_lend")
fault("shm", "send_at_once_passes_what_is_queued", MESSAGE, "!duplex_is_clear(p) || port->held.head)",
      "port->state != PORT_UP || p->bye_sent || port->held.head)", "shm_lend")
fault("shm", "collective_at_once_passes_what_is_queued", "backend_shm/duplex.h",
      "p->port.state == PORT_UP && !p->tx_head && !p->bye_sent", "p->port.state == PORT_UP && !p->bye_sent",
      "shm_hostile")
fault("shm", "collective_at_once_in_the_middle_of_another_message", SMALL,
      " || s->recvs[i].peer->port.in.type", "", "shm_hostile")
fault("shm", "receive_at_once_passes_one_that_is_posted", MESSAGE,
      "op->root == COMM_ANY_SOURCE || g->recvs.head || ", "op->root == COMM_ANY_SOURCE || ", "shm_lend")
fault("shm", "receive_at_once_passes_one_that_came_before", MESSAGE, " || g->p2p_boxes[op->root].unexpected.head", "",
      "shm_lend")
fault("shm", "receive_at_once_of_any_tag_takes_the_librarys", MESSAGE, "? h.tag >= 0 :", "? 1 :", "shm_hostile")
fault("c", "receive_at_once_takes_what_is_for_another_group", MESSAGE, " || h.group != g->id", "", "shm_hostile")
fault("shm", "receive_at_once_in_the_middle_of_another", MESSAGE, "p->port.state != PORT_UP || p->port.in.type",
      "p->port.state != PORT_UP", "shm_lend")

# ---- shm: more ranks than cores ----

fault("shm", "ranks_with_cores_have_the_rules_of_crowded_ones", "core/exec/select.c",
      "(query->shares_cores || !specials[i].crowded)", "1", "select")
fault("shm", "crowded_ranks_have_the_rules_of_those_with_cores", "core/exec/select.c",
      "(query->shares_cores || !specials[i].crowded)", "!specials[i].crowded", "select")
fault("shm", "ranks_of_other_hosts_count_as_crowded", "core/exec/select.c",
      "!r && query->memory == SELECT_MEMORY_ALL", "!r", "select")
fault("shm", "any_type_has_the_rules_of_narrow_floats", "core/exec/select.c",
      "(query->needs & ALGO_WIDE_SUMS || !specials[i].narrow)", "1", "select")
fault("shm", "a_chain_adds_another_ranks_share", "core/exec/algo/reduce_chain.c", "number + 1 == p->size ? own : dst",
      "number == p->size ? own : dst", "simulate")
fault("shm", "shm_does_not_say_that_ranks_share_cores", "backend_shm/arena.c",
      "    a->domain.shares_cores = waiting_shares_cores(info);\n", "", "crowded")
fault("shm", "shm_tcp_does_not_say_that_ranks_share_cores", "backend_tcp/mesh.c",
      "    m->domain.shares_cores = waiting_shares_cores(info);\n", "", "crowded")
fault("shm", "routes_are_not_asked_by_cores", "core/exec/prepare.c",
      ".shares_cores = g->domain->shares_cores", ".shares_cores = 0", "crowded")
fault("shm", "unknown_cores_are_too_few", "core/exec/waiting.c", "return cores > 0 && waiting_local_ranks",
      "return waiting_local_ranks", "resting")

# ---- shm: what is read, and what is left in the ring ----

AWAITED = "is_awaited && port->interest == 0 && !port->in.type"
fault("shm", "later_operations_are_read_ahead", DUPLEX, AWAITED, "0", "shm_read")
fault("shm", "nothing_is_read_that_is_not_awaited", DUPLEX, AWAITED, "port->interest == 0 && !port->in.type",
      "shm_read")
fault("shm", "half_a_message_is_left", DUPLEX, AWAITED, "is_awaited && port->interest == 0", "shm_read")
fault("shm", "credit_is_never_taken_in_by_a_sender", "core/exec/port.h", "        p->ops->take_credit(p);", "        ;",
      "shm_read")
fault("shm", "credit_is_taken_in_with_a_core_each", DUPLEX,
      "if (duplex_of(port)->fabric->domain->shares_cores)", "if (1)", "shm_read")
fault("c", "credit_of_a_liar_is_used", "core/exec/port.h", "bytes) && !port_is_gone(p);", "bytes);", "shm_read")
fault("shm", "credit_is_taken_in_past_a_message", DUPLEX, "h.type != FRAME_CREDIT || record->bytes",
      "record->bytes > 999", "shm_read")
fault("c", "credit_is_taken_in_with_a_payload", DUPLEX, "h.type != FRAME_CREDIT || record->bytes",
      "h.type != FRAME_CREDIT", "shm_read")
fault("c", "credit_is_looked_for_in_a_payload", DUPLEX, "p->port.state == PORT_UP && !p->port.in.type; i++",
      "p->port.state == PORT_UP; i++", "shm_read")
fault("b", "credit_is_taken_in_twice", DUPLEX, "if (p->in.next != record || d->done_count != done)",
      "if (d->done_count != done)", "shm_lend")

SMALL = "backend_shm/small.c"
ROOM = "backend_shm/room.c"
fault("shm", "sender_never_yields_its_core", SMALL, "small->turn_taken + share : 0;", "share : 0;",
      "turns")
fault("shm", "sender_with_a_core_of_its_own_yields_it", SMALL, "!g->domain->shares_cores || !s->only_sends",
      "!s->only_sends", "turns")
fault("shm", "sender_of_short_messages_yields_its_core", SMALL, "|| s->bytes < LEAST_BYTES ||", "|| s->bytes < 1 ||",
      "turns")
fault("shm", "turns_of_short_messages_are_long", SMALL, "messages < most ? messages : most);", "messages);",
      "turns")
fault("shm", "turns_of_a_sender_to_several_are_as_long_as_others", SMALL, "to_several ? SEVERAL_MESSAGES : MESSAGES;",
      "MESSAGES;", "turns")
fault("shm", "ranks_wait_for_no_batch", SMALL, "(op->seq & (s->batch - 1)) == 0))", "0))", "turns")
fault("shm", "a_sender_to_several_waits_for_batches", SMALL, "s->send_messages != 1 || g->size == 2 ||",
      "g->size == 2 ||", "turns")
fault("shm", "batch_fills_the_whole_ring", ROOM, "most = whole - whole / SPARE;", "most = 2 * whole + SPARE;",
      "shm_room")
fault("shm", "part_of_a_batch_is_waited_for", ROOM, "return (batch + RING_LANES) * message_bytes(bytes);",
      "return batch * message_bytes(bytes) / 2;", "shm_room")
fault("shm", "ranks_that_share_cores_wait_for_as_much_room_as_others", ROOM, "? SOME_OF_CROWD : SOME", "? SOME : SOME",
      "shm_room")

MULTICAST = "backend_shm/multicast.c"
fault("shm", "copy_for_several_is_made_of_any_length", SMALL, "&& least && s->bytes >= least &&", "&& least &&",
      "multicast")
fault("shm", "copy_for_several_is_longer_than_its_place", SMALL, " && s->bytes <= MULTICAST_BYTES_MAX;", ";",
      "multicast")
fault("shm", "few_ranks_with_cores_copy_once_for_all", SMALL, "g->size > FEW_RANKS", "1", "multicast")
fault("shm", "many_ranks_with_cores_copy_for_each", SMALL, "|| g->size > FEW_RANKS", "", "multicast")
fault("shm", "root_with_a_core_of_its_own_copies_once_for_all", SMALL, ": g->domain->shares_cores ? STREAM_LEAST : 0;",
      ": STREAM_LEAST;", "multicast")
fault("shm", "copy_for_several_of_the_first_ones_part", SMALL,
      "        same &= s->sends[i].offset == s->sends[0].offset;", "        same &= 1;", "multicast")
fault("shm", "copies_for_several_are_written_over", MULTICAST, "return m->region && m->made - m->read < UNDER_WAY_MAX;",
      "return m->region != NULL;", "multicast")
fault("shm", "copy_for_several_ends_when_one_has_read_it", MULTICAST,
      "        if (!is_read(p, l))\n            return 0;\n",
      "        if (c->readers == 1 && !is_read(p, l))\n            return 0;\n", "multicast")
fault("shm", "copy_for_a_lost_peer_is_kept", MULTICAST, "p->port.state != PORT_UP || lend_is_taken(p, l)",
      "lend_is_taken(p, l)", "multicast")
fault("shm", "copies_for_several_are_waited_for_in_vain_again", MULTICAST, " && m->vain != m->read + 1;", ";",
      "multicast")
fault("shm", "what_is_lent_to_a_lost_peer_stays_valid", DUPLEX, "    lend_end_all(p);\n", "", "shm_lend")
fault("shm", "what_a_peer_said_before_it_was_reset_is_lost", "backend_shm/region.c", "errno == ECONNRESET && ", "0 && ",
      "shm_lend")
fault("shm", "copy_for_several_needs_memory_that_is_not_there", MULTICAST, "return m->region && m->made",
      "return m->made", "multicast")
fault("shm", "sender_of_the_engine_never_yields_its_core", "backend_shm/backend.c",
      "driver_leave_quietly(a);\n    small_end_turn(&g->small);", "driver_leave_quietly(a);", "turns")
fault("shm", "sender_of_the_engine_never_yields_its_core_beside_tcp", "backend_tcp/backend.c",
      "        m->local->ops->end_turn(g);\n", "        ;\n", "turns")
fault("shm", "sender_never_yields_its_core_beside_tcp", "backend_tcp/progress.c",
      "        m->local->ops->end_turn(g);\n", "        ;\n", "turns")
fault("shm", "message_looked_for_first_keeps_the_other_ones_place", SMALL,
      "        s->recvs[s->mates++] = m;", "        s->recvs[s->mates++].peer = m.peer;",
      "collectives on shm", "random programs on shm")
fault("shm", "barrier_is_any_op_of_all_ranks", SMALL, "o->kind == COMM_OP_BARRIER && g->size > 2", "g->size > 2",
      "collectives on shm")
fault("shm", "wait_does_not_end_a_turn", SMALL, "small->turn_taken + share : 0;",
      "small->turn_taken + share : small->turn_taken;", "turns")

fault("core", "candidates_are_forgotten", "core/auto.c", "        world->candidates = c = new;",
      "        c = new;", "auto")
fault("core", "what_auto_cannot_take_is_not_said", "core/join.c", "if (!reason_shown || !*t->unusable)",
      "if (reason_shown < 1000)", "auto")
fault("core", "helper_looks_as_often_as_ever", "core/exec/helper.h", "h->rests++", "h->rests", "helper")
fault("core", "helper_rests_for_long_after_a_pause", "core/exec/helper.h",
      "    if (!is_driven)\n        h->rests = 0;\n", "", "helper")
fault("core", "helper_that_is_woken_rests", "core/exec/helper.h", "async_works || h->wakes != wakes", "async_works",
      "helper")
fault("core", "helper_parks_though_it_was_woken", "core/exec/helper.c", "atomic_load(&h->wakes) == wakes", "1",
      "helper_thread")
fault("core", "helper_that_parks_is_not_woken", "core/exec/helper.c", "    pthread_cond_signal(&h->parked);\n", "",
      "helper_thread")
fault("core", "helper_is_not_roused", "core/exec/helper.c", "    if (atomic_load(&h->polls))\n        ring(h);\n", "",
      "helper_thread")
fault("core", "helper_stays_roused", "core/exec/helper.c", "(fds, (nfds_t)count, wait_ms) > 0 &&",
      "(fds, (nfds_t)count, wait_ms) > 9 &&", "helper_thread")
fault("core", "helper_asks_descriptors_that_are_closed", "core/exec/helper.c", "atomic_load(&h->has_none) ? 0 : 2", "2",
      "helper_thread")
fault("shm", "ring_of_the_bell_is_taken_from_the_helper", "backend_shm/events.c",
      "    events_awake((struct fabric *)((char *)w - offsetof(struct fabric, bell)));\n", "    (void)w;\n", "shm_lend")
fault("core", "helper_that_stops_goes_to_sleep", "core/exec/helper.c", "wait_ms && !atomic_load(&h->stop)", "wait_ms",
      "helper_thread")
fault("core", "helper_waits_for_a_lock_that_is_kept", "core/exec/helper.c",
      "!must_look || atomic_load(&h->signs.waiter_drives)", "!must_look", "helper_thread")
fault("core", "helper_leaves_its_look_to_a_chance", "core/exec/helper.c",
      "    h->ops->lock(h->domain);\n    return 1;", "    return 0;", "helper_thread")
fault("core", "helper_looks_around_only_if_nobody_drives", "core/exec/helper.h", "> HELPER_LOOK_AROUND_NS",
      "> INT64_MAX / 2", "helper")

# ---- shm: ranks that share cores ----

fault("shm", "rank_waits_at_length_for_its_own_core", "backend_shm/duplex.h", "theirs && theirs != core", "theirs",
      "shm_yields")
fault("shm", "unknown_core_is_another", "backend_shm/duplex.h", "theirs && theirs != core", "theirs != core",
      "shm_yields")
fault("shm", "rank_yields_though_a_message_comes", "backend_shm/fabric.h", "(turn & (looks - 1)) == 0", "1",
      "shm_yields")
fault("shm", "wait_ends_with_its_first_measured_yield", "backend_shm/fabric.c", "    if (*until_ns <= 0)\n",
      "    if (!*until_ns)\n", "shm_yields")
fault("core", "yields_are_not_measured_beside_other_programs", "core/exec/waiting.c", "!is_short ? 0 : ", "", "resting")

# ---- shm: when to look first ----

BACKOFF = "backend_shm/backoff.h"
fault("shm", "first_look_is_never_sooner_again", BACKOFF, "b->delay -= b->delay > 0;", ";", "shm_backoff")
fault("shm", "first_look_is_never_later", BACKOFF, "b->delay += SHARE;", ";", "shm_backoff")
fault("shm", "first_look_gets_later_without_end", BACKOFF, "else if (b->delay < BACKOFF_MAX)", "else", "shm_backoff")
fault("shm", "first_look_is_not_delayed", BACKOFF, "        zero *= backoff_factor;", "        ;", "shm_backoff")

# ---- shm: who sleeps is woken ----

fault("h", "sender_is_not_told_that_all_is_read", LEND, "    duplex_ring_bell(p);\n    port_complete(",
      "    port_complete(", "shm_lend")
fault("h", "sender_is_not_told_that_all_is_read_at_once", LEND,
      "                          memory_order_release);\n    duplex_ring_bell(p);\n    return 1;",
      "                          memory_order_release);\n    return 1;", "shm_lend")
fault("h", "offer_at_once_rings_no_bell", "backend_shm/message.c",
      "    duplex_make_offer(p, &h, tx, g);\n    duplex_ring_bell(p);",
      "    duplex_make_offer(p, &h, tx, g);", "shm_lend")
fault("h", "writer_that_sleeps_is_not_told_of_space", DUPLEX,
      "    atomic_store(&p->in.shared->waits, 0);\n    duplex_ring_bell(p);",
      "    atomic_store(&p->in.shared->waits, 0);", "shm_lend")
fault("h", "writer_does_not_say_that_it_waits", DUPLEX,
      "        atomic_store_explicit(&p->out.shared->waits, 1, memory_order_relaxed);\n", "", "shm_lend")

# ---- shm: lanes of a ring ----

RING = "backend_shm/ring.h"

fault("shm", "lines_are_taken_that_are_not_free", RING, "waits && ring_free(r, (uint64_t)lines) < lines", "0",
      "shm_ring")
fault("shm", "short_answers_go_past_the_caches", "backend_shm/ring.c", "if (!always && copy_out", "if (copy_out",
      "shm_ring")
fault("shm", "long_answers_take_lines", "backend_shm/ring.c",
      "IN_TURN_BYTES = 8 << 10", "IN_TURN_BYTES = 16 << 10", "shm_ring")
fault("shm", "short_swaps_go_past_the_caches", "backend_shm/ring.c", "RING_WAITS_BOTH ? BOTH_BYTES : 0",
      "RING_WAITS_BOTH ? 0 : 0", "shm_ring")
fault("shm", "answers_that_are_told_to_go_past_the_caches_do_not", "backend_shm/ring.c",
      "bytes <= most && r->copy.way == COPY_OUT_MEASURED;", "bytes <= most;", "shm_ring")
fault("shm", "what_follows_taken_lines_is_not_copied", "backend_shm/ring.c", "    if (bytes > taken)\n", "    if (0)\n",
      "shm_ring")
fault("shm", "room_behind_another_message_is_waited_for", ROOM, "if (others || ", "if (", "shm_room")
fault("shm", "room_is_waited_for_at_a_lost_peer", ROOM, "p->port.state != PORT_UP || p->tx_head", "p->tx_head",
      "shm_room")
fault("shm", "room_for_a_record_that_never_fits_is_waited_for", ROOM,
      "if (room_lines(&p->out, bytes) > p->out.capacity)", "if (0)", "shm_room")
fault("shm", "room_is_waited_for_as_if_there_were_no_pieces", "backend_shm/room.h",
      "bytes > RING_TAKEN && bytes > piece ? piece : bytes", "bytes", "shm_room")
fault("shm", "credit_in_front_is_not_passed", DUPLEX,
      "p->port.state == PORT_UP && ring_lines_read(&p->in) != before", "0", "shm_room")
fault("shm", "half_a_ring_is_waited_for_often", ROOM, "int seldom = bytes < whole / MANY;", "int seldom = 1;",
      "shm_room")
fault("shm", "half_a_ring_is_never_waited_for", ROOM, "int seldom = bytes < whole / MANY;", "int seldom = 0;",
      "shm_room")
fault("shm", "space_for_less_than_the_message_is_enough", ROOM, "lines > least ? lines : least", "lines", "shm_room")
fault("shm", "credit_for_less_than_is_wanted_is_enough", ROOM, "port_has_credit(&p->port, wanted) && ", "", "shm_room")
fault("shm", "credit_is_given_back_seldom", DUPLEX, "(*small_steps ? MANY : FEW)", "FEW", "shm_room")
fault("shm", "credit_is_given_back_often", DUPLEX, "(*small_steps ? MANY : FEW)", "MANY", "shm_room")
fault("shm", "rank_does_not_say_that_it_waits_for_room", ROOM,
      "        say_that_it_waits(p);\n", "        (void)say_that_it_waits;\n", "shm_room")
fault("shm", "broadcasts_do_not_wait_for_room", "backend_shm/small.c",
      "(!can_send(s, n)) && (n.recvs || !can_send_later(", "(!can_send(s, n)) && (1 || !can_send_later(", "turns")
fault("shm", "long_broadcasts_do_not_wait_for_room", "backend_shm/small.c",
      "        await_room(f, s, spin_ns);\n        return COMM_ERR_UNSUPPORTED;",
      "        return COMM_ERR_UNSUPPORTED;", "turns")
fault("shm", "sends_do_not_wait_for_room", "backend_shm/message.c",
      "|| room_await(f, p, bytes, spin_ns, &until_ns) ||", "||", "turns")
fault("shm", "receive_passes_credit_for_ever", "backend_shm/message.c",
      "status != COMM_IN_PROGRESS || look_again(f, p, turn, spin_ns, until_ns) ? status : COMM_ERR_UNSUPPORTED",
      "status", "shm_lend")
fault("shm", "lines_ahead_are_taken_that_are_not_free", "backend_shm/ring.c",
      "if (r->capacity - (r->tail[lane] - r->seen_head[lane]) < lines)", "if (0)", "shm_ring")
fault("shm", "writer_does_not_know_that_nothing_has_been_read", "backend_shm/ring.c",
      "        atomic_store_explicit(&shared->head[lane], r->seen_head[lane], memory_order_relaxed);", "        ;",
      "shm_ring")
fault("shm", "page_tables_of_rings_are_not_filled", "backend_shm/segment.c",
      "        fill_page_tables(s);\n", "", "steady")
fault("shm", "two_ends_of_a_ring_begin_apart", "backend_shm/duplex.c", "first_line(p, theirs));", "0);", "shm_lend")
fault("b", "space_of_the_other_lane", RING, "return ring_free_in(r, r->lane, wanted);",
      "return ring_free_in(r, ring_lane_behind(r->lane), wanted);", "shm_ring")
fault("b", "what_the_reader_says_of_the_other_lane", RING,
      "atomic_load_explicit(&r->shared->head[lane], memory_order_acquire)",
      "atomic_load_explicit(&r->shared->head[0], memory_order_acquire)", "shm_ring")
fault("b", "writer_is_looked_after_too_late", RING, "after = before + lines, quarter = r->capacity / 4;",
      "after = before + lines, quarter = 4 * r->capacity;", "collectives on shm", "long_messages on shm")

# ---- shm: payloads that are kept ----

KEEP = "backend_shm/keep.c"
fault("shm", "kept_payload_is_not_read_where_it_is", "core/exec/operands.c", "return k && k->pieces ? k->piece",
      "return 0 ? k->piece", "engine")
fault("shm", "kept_payload_is_read_past_its_piece", "core/exec/operands.c",
      "            least = slot->kept[r].piece_bytes;", "            ;", "engine")
fault("shm", "ranks_with_a_core_each_keep_nothing", "core/exec/domain.h", "d->shares_cores ? 2 : 3;",
      "d->shares_cores ? 2 : 0;", "crowded")
fault("shm", "two_ranks_with_a_core_each_keep_payloads", "core/exec/domain.h", "d->shares_cores ? 2 : 3;", "2;",
      "crowded")
fault("shm", "ranks_of_shm_keep_nothing", "backend_shm/arena.c", "    domain_keeps_payloads(&a->domain);\n", "",
      "crowded")
fault("shm", "ranks_of_shm_tcp_keep_nothing", "backend_tcp/mesh.c",
      "    if (with_shm)\n        domain_keeps_payloads(&m->domain);\n", "", "crowded")
fault("shm", "nothing_is_kept", "core/exec/engine.c", "if (step->may_stay && slot->kept) {", "if (0) {", "engine")
fault("shm", "payload_of_a_users_reduction_is_kept", "core/exec/prepare.c", " && op->op.redop != COMM_REDOP_USER;", ";",
      "engine")
fault("shm", "kept_payload_is_never_let_go", "core/exec/operands.c", "    let_all_go(op->group, slot);\n",
      "    (void)let_all_go;\n", "engine")
fault("shm", "writer_may_write_over_what_is_kept", "backend_shm/ring.c", "    r->keeps = from != NULL;\n",
      "    r->keeps = 0;\n", "shm_keep")
fault("shm", "writer_is_not_told_what_was_kept", "backend_shm/ring.c",
      "from ? from[lane] : r->head[lane], memory_order_release", "r->shared->head[lane], memory_order_release",
      "shm_keep")
fault("shm", "all_of_a_ring_may_be_kept", DUPLEX, "UNLIKELY(p->kept != NULL) && ring_keeps_much(&p->in)", "0 && p",
      "shm_keep")
fault("shm", "a_record_less_may_be_kept", "backend_shm/ring.c", "r->capacity - left)", "r->capacity)", "shm_keep")
fault("shm", "ring_goes_on_while_something_is_kept", KEEP, "oldest ? oldest->from : NULL", "NULL", "shm_keep")
fault("shm", "writer_is_told_up_to_the_newest", KEEP,
      "    while (oldest && oldest->next)\n        oldest = oldest->next;\n", "", "shm_keep")
fault("shm", "rank_sleeps_while_it_keeps_the_space_that_others_need", DUPLEX, "return keeps_much(p) || p->hung_up",
      "return p->hung_up", "shm_keep")
fault("shm", "payload_of_a_frame_that_is_refused_is_kept", DUPLEX, "s->kept && p->port.in.type &&", "s->kept &&",
      "shm_keep")
fault("shm", "writer_that_waits_is_not_woken_for_what_was_kept", KEEP, "    duplex_look_after_writer(p);\n", "    ;\n",
      "shm_keep")
fault("shm", "short_payload_is_kept_though_elements_are_longer", KEEP, " && bytes >= sizeof s->carry;", ";", "shm_keep")
fault("shm", "pieces_of_any_length_are_kept", KEEP, "(is_last || (bytes & (bytes - 1)) == 0)", "1", "shm_keep")
fault("shm", "other_pieces_are_kept", KEEP, "(bytes == k->piece_bytes || (is_last && bytes < k->piece_bytes))",
      "1", "shm_keep")
fault("shm", "more_pieces_are_kept_than_there_are_places", KEEP, "k->pieces < KEPT_PIECES_MAX && ", "", "shm_keep")
fault("shm", "first_pieces_are_lost_where_the_rest_is_not_kept", KEEP,
      "            put_to_place(p, k);\n            writer", "            take_out(p, k);\n            writer",
      "shm_keep")
fault("shm", "what_is_kept_is_not_put_to_its_place", KEEP, "        put_to_place(p, p->kept);\n",
      "        take_out(p, p->kept);\n", "shm_keep")
fault("shm", "what_is_kept_goes_with_the_memory", DUPLEX, "    p->up_index = -1;\n    keep_none(p);\n",
      "    p->up_index = -1;\n", "shm_keep")
fault("shm", "what_an_operation_kept_stays_after_it", DUPLEX, "    keep_forget(p, owner);\n", "", "shm_keep")
fault("shm", "what_another_operation_keeps_is_forgotten", KEEP, "if (k->owner == owner)", "if (1)", "shm_keep")
fault("shm", "rest_of_what_is_forgotten_is_kept", DUPLEX, "        port->sink.kept = NULL;\n", "", "shm_keep")
fault("shm", "rings_of_ranks_that_share_cores_are_long", "backend_shm/fabric.c",
      "int is_crowded = waiting_shares_cores(info);", "int is_crowded = 0;", "shm_rings")

# ---- shm: eager messages that are lent ----

fault("shm", "eager_message_is_read_after_it_was_taken_back", LEND,
      "return atomic_compare_exchange_strong(&p->in.shared->valid[place->slot], &loan, loan | LOAN_CLAIMED);",
      "return loan != 0;", "shm_lend")
fault("shm", "eager_message_is_taken_back_while_it_is_read", LEND,
      "return atomic_compare_exchange_strong(&p->out.shared->valid[l->place.slot], &loan, 0);",
      "atomic_store(&p->out.shared->valid[l->place.slot], 0);\n    return loan != 0;", "shm_lend")
fault("shm", "eager_message_that_was_taken_back_costs_credit", DUPLEX,
      "        port_took(&p->port, FRAME_EAGER, (size_t)h->bytes, h->credit);\n        return NULL;",
      "        return NULL;", "shm_lend")
fault("shm", "eager_message_that_is_dropped_costs_credit", "backend_shm/shm.h",
      "        port_consumed(&p->port, eager_bytes);", "        (void)eager_bytes;", "shm_lend")
fault("shm", "what_is_lent_is_taken_before_all_is_claimed", "backend_shm/small.c",
      "        if (is_lent(records[claimed]) ? !duplex_claim_lent(p, &s->head, records[claimed], &places[claimed])\n",
      "        places[claimed] = ring_place(records[claimed]);\n        if (is_lent(records[claimed]) ? 0\n",
      "lent_late")
fault("shm", "memory_of_a_message_that_is_dropped_costs_nothing", "backend_shm/shm.h",
      " && p->port.sink.kind != SINK_UNEXPECTED;", ";", "shm_lend")
fault("shm", "peer_that_does_not_look_is_lent_again_at_once", DUPLEX, "    lend_later(p);\n    if (!has_room)",
      "    (void)lend_later;\n    if (!has_room)", "shm_lend")
fault("shm", "eager_message_waits_for_ever", "backend_shm/message.c",
      "return status == COMM_IN_PROGRESS && duplex_send_instead(p, h, tx) ? COMM_OK : status;",
      "(void)h;\n    return status;", "shm_lend")
fault("shm", "credit_of_a_lent_message_is_that_of_another", "backend_shm/small.c",
      "&places[taken], record->credit, to);", "&places[taken], s->head.credit, to);",
      "random programs on shm with threads", "late on shm, through the kernel")
fault("shm", "eager_messages_of_reductions_are_lent", LEND,
      "if (!lend_peer_can_read(p) || (traits & COMM_OP_TRAIT_REDUCES) || h->bytes",
      "if (!lend_peer_can_read(p) || h->bytes", "shm_lend")
fault("shm", "records_are_not_measured", DUPLEX, "    tell_take_ns(&p->in.shared->record_ns, p->record_ns);", "    ;",
      "shm_lend")
fault("shm", "stream_is_taken_for_messages_in_turn", LEND,
      "flow == LEND_STREAM ? longer_ns : write_ns + take_ns", "write_ns + take_ns", "shm_lend")
fault("shm", "rank_that_only_sends_finds_no_credit_to_lend", DUPLEX,
      "    if (!port_has_credit(&p->port, bytes))\n        duplex_read_credit(p);\n", "", "shm_lend")

# ---- nccl: ranks that have left ----

LEAVES = ("one that leaves", "one that leaves, silently")
fault("nccl", "rank_that_has_left_is_missed_by_all", "backend_nccl/peers.c", "if (note && !is_missed(g, rank, note))",
      "if (note && 0)", *LEAVES)
fault("nccl", "rank_that_has_left_is_missed_by_none", "backend_nccl/peers.c",
      "return oldest[i]->number > count;", "return 0;", *LEAVES)
fault("nccl", "rank_that_leaves_has_done_one_less", "backend_nccl/peers.c",
      "return oldest[i]->number > count;", "return oldest[i]->number >= count;", *LEAVES)
fault("nccl", "rank_0_leaves_without_an_alarm", "backend_nccl/peers.c", "&& w->info->rank == 0)", "&& 0)", *LEAVES)
fault("nccl", "what_is_on_its_way_without_a_store_is_lost", "backend_nccl/alarm.c",
      "gone > g->awaited ? -1 : peers_lost(g, why);", "peers_lost(g, why);", *LEAVES)
fault("nccl", "messages_of_others_miss_who_has_left", "backend_nccl/peers.c",
      "(c->source < 0 || c->source == rank || c->target == rank)", "1", *LEAVES)
fault("nccl", "who_comes_too_late_does_not_wait_for_the_reason", "backend_nccl/alarm.c",
      "!= COMM_OK || !exists)", "!= COMM_OK || 1)", "faults")
fault("nccl", "rank_without_a_gpu_call_is_taken_for_stopped", "backend_nccl/alarm.c", "== COMM_OK && !listens)",
      "== COMM_OK && listens > 1)", "faults")
fault("nccl", "group_is_closed_while_it_connects", "backend_nccl/backend.c",
      "if (!needs_ranks(c) || communicator_wait", "if (1 || communicator_wait", "faults", "failing calls")
fault("nccl", "thread_within_a_call_is_not_driven_out", "backend_nccl/communicator.c",
      "if (abort && c->is_called && c->root) {", "if (0 && abort) {", "faults, in the calling thread")
fault("nccl", "message_of_nothing_connects", "backend_nccl/flight.c",
      "op->recv.count ? number : number + 1;", "op->recv.count ? number : number;", "moves, in the calling thread")
fault("nccl", "operation_unlike_those_before_is_called_here", "backend_nccl/flight.c",
      "return number && c->known[number % KNOWN_MAX] == number;", "return 1 || number;",
      "faults, in the calling thread")
fault("nccl", "comm_that_blocks_does_not_share_the_flag_of_abort", "backend_nccl/communicator.c",
      ".split_share = g->share || g->blocking,", ".split_share = g->share,", "faults, in the calling thread")
fault("nccl", "comm_that_blocks_is_left_by_an_abort_of_the_split", "backend_nccl/communicator.c",
      "if (c->comm && c->comm != c->root)", "if (0)", "splits, in the calling thread")
fault("nccl", "parent_is_ready_while_nccl_splits_it", "backend_nccl/derive.c",
      "p->makes_orphan = in_progress && status != NCCL_OK;", "p->makes_orphan = 0;", "splits")
fault("nccl", "parent_is_closed_without_what_nccl_splits_off", "backend_nccl/communicator.c",
      "    if (c->made) /* likewise", "    if (0) /* likewise", "splits")
DERIVE = "backend_nccl/derive.c"
fault("nccl", "parent_is_offered_to_two_children", DERIVE, "p->state == COMMUNICATOR_READY && !p->wanted",
      "!p->borrowed && !p->wanted", "splits")
fault("nccl", "votes_at_all_places_count_together", DERIVE, "c->group->call, p->number, p->given,",
      "c->group->call, p->number, p->given * 0,", "splits")
fault("nccl", "offer_that_was_taken_back_counts", DERIVE, "votes == c->group->callers)",
      "VOTES(votes) == c->group->callers)", "splits")
fault("nccl", "parent_that_is_wanted_waits_for_the_vote", DERIVE, "is_late(c, began_ns) || is_wanted(c)",
      "0 * (is_late(c, began_ns) + is_wanted(c))", "splits")
fault("nccl", "capture_on_a_parent_is_refused", "backend_nccl/communicator.c",
      "(communicator_makes_child(c) ? CHILD_NS : LEAVING_NS)", "LEAVING_NS", "splits")
fault("nccl", "vote_for_an_id_leaves_its_keys", DERIVE, "if (!by_parent && *place)", "if (!by_parent && *place && 0)",
      "splits")
fault("nccl", "last_rank_leaves_the_result_of_a_vote", DERIVE, "known < c->group->callers)", "known > 0)", "splits")
fault("nccl", "vote_outlasts_the_limit_of_what_waits", DERIVE, "now_ns > atomic_load(&c->decide_ns);",
      "atomic_load(&c->decide_ns) == 1;", "splits")
fault("nccl", "groups_of_a_division_have_one_color", DERIVE, "nccl.CommSplit(p->root, g->color,",
      "nccl.CommSplit(p->root, g->color * 0,", "splits")
fault("core", "calls_that_divide_a_group_are_not_counted", "core/group_make.c",
      "uint64_t identity[3] = { parent->id, callers->division, 0 };\n    if", "uint64_t identity[3] = { 1 };\n    if",
      "mixed")
fault("nccl", "window_that_fails_is_let_be", "backend_nccl/memory.c",
      "atomic_load(&g->ended) ? status : end_without_window(g, status);", "1 ? status : end_without_window(g, status);",
      "moves")
fault("nccl", "window_whose_memory_is_refused_is_let_be", "backend_nccl/memory.c",
      "        free(m);\n        return fail_here(g, status);", "        free(m);\n        return status;", "moves")
fault("nccl", "message_between_own_devices_is_over_at_once", "backend_nccl/flight.c", "if (other->at != c) {",
      "if (0) {", "moves")
fault("mpi", "rank_that_has_left_is_missed_by_what_it_has_done", MPI["ending"], "missed = f->number > count;",
      "missed = 1;", "a rank that leaves, on mpich", "a rank that leaves, on openmpi")
fault("mpi", "rank_that_has_left_is_missed_by_no_collective", MPI["ending"], "missed = f->number > count;",
      "missed = 0;", "a rank that leaves, on mpich", "a rank that leaves, on openmpi")
fault("core", "operation_done_in_its_call_is_not_remembered", QUEUE,
      "    g->ended[op->seq % GROUP_ENDED_MAX] = call_of(g, op);\n}",
      "    (void)call_of;\n    (void)g;\n    (void)op;\n}",
      "mismatch on shm", "reasons on shm")

# ---- Collectives of several rounds at once ----

ENGINE, ROUNDS = "core/exec/engine.c", "backend_shm/rounds.c"
TREES, TWO_ROUNDS = "random programs on shm in trees", "random programs on shm in two rounds"
fault("shm", "rounds_that_are_done_are_done_again", ENGINE, "        skip_done(op, slot);\n",
      "        if (0)\n            skip_done(op, slot);\n", TREES)
fault("shm", "local_steps_are_done_again", ENGINE, " && !(is_begun(slot) && op->begun.did_local))", ")", TWO_ROUNDS)
fault("shm", "round_that_was_not_begun_counts_as_sent", ENGINE, "!is_begun(slot) || slot->op->begun.not_sent",
      "!is_begun(slot)", "rounds")
fault("shm", "later_rounds_count_as_sent", ENGINE, " && slot->round == slot->op->begun.round;", ";", TREES)
fault("shm", "op_is_taken_over_from_its_first_round", ROUNDS, "{ .round = part->round, ", "{ .round = 0, ", TREES)
fault("shm", "round_begins_without_room", ROUNDS, " && has_room(c, part, sends));", ");",
      "rounds")
fault("shm", "round_takes_any_record", ROUNDS, "record->key == ring_key_of(step->key, c->op->seq) &&", "", TREES)
fault("shm", "what_the_next_round_reduces_is_taken_from_elsewhere", ROUNDS,
      "sources[recvs[i].rank] = ring_payload(c->records[i],", "sources[recvs[i].rank] = ring_payload(c->records[0],",
      TWO_ROUNDS)
fault("shm", "average_of_rounds_is_a_sum", ROUNDS, "        if (c->op->redop == COMM_REDOP_AVG)\n", "        if (0)\n",
      "reductions on shm by all_reduce recursive_doubling,reduce binomial")
fault("shm", "exchange_in_place_goes_in_rounds", "backend_shm/small.c",
      "(!s->has_rounds && !s->swaps) || writes_over_offers(op))", "(!s->has_rounds && !s->swaps))",
      "random programs on shm in many rounds", TREES)
fault("shm", "received_sum_is_on_the_wrong_side", ROUNDS,
      "            step->kernel(at(c, step->dst), at(c, step->source), payload, step->count);",
      "            step->kernel(at(c, step->dst), payload, payload, step->count);", TREES)
MANY_ROUNDS = "random programs on shm in many rounds"

# ---- Two ranks that sum a half each, at once ----

SWAP, ON_SHM = "backend_shm/swap.c", "random programs on shm"
fault("shm", "summed_offer_is_awaited_again", SWAP, "{ .received = 1, .written", "{ .written", "write_back")
fault("shm", "result_that_was_written_is_sent", SWAP, ".written = written ? SLOT_HAS_WRITTEN : 0 };",
      ".written = 0 };", "write_back")
fault("shm", "engine_forgets_what_was_written", ENGINE, "        slot->written = op->begun.written;\n", "",
      "write_back")
fault("shm", "swap_is_over_though_nothing_was_written", SWAP,
      "    if (g->begun.written != (SLOT_HAS_WRITTEN | SLOT_WAS_WRITTEN)) {", "    if (0) {", "write_back")
fault("shm", "second_round_counts_as_sent", SWAP, "        g->begun.not_sent = 1;\n", "", "write_back")
fault("shm", "average_is_swapped", SWAP, " && op->op.redop != COMM_REDOP_AVG &&", " &&", "write_back")
fault("shm", "result_of_a_swap_is_not_taken", SWAP, "    if (duplex_take_result(p, tx))\n", "    if (1)\n", ON_SHM,
      "registered on shm", "write_back")
fault("shm", "swap_takes_any_record", SWAP, "what == RING_FRAME && record->key == key && record->bytes == 0",
      "what == RING_FRAME", "write_back")
fault("shm", "result_of_a_rank_that_left_is_forgotten", DUPLEX, "    m->written_back = tx->written_back;\n", "", "swap")
fault("shm", "result_of_a_rank_that_left_is_not_taken", DUPLEX,
      "int written_back = was_read && lend_take_result(p, &p->lent_head->loan);", "int written_back = was_read;",
      "swap")
fault("shm", "what_is_adopted_was_not_written", ENGINE, "    note_written(slot, m); /* by a peer", "    /* by a peer",
      "swap")
fault("shm", "loans_of_what_cannot_be_submitted_stay", "core/exec/submit.c",
      "            group_fail(g, status, exec_host->last_error());", "            ;", "swap")
fault("shm", "ranks_choose_slices_alone", "backend_shm/dial.c", "ask_store(f, group->world_ranks[rank], ask_ms",
      "ask_store(f, f->domain->peers.rank, ask_ms", "swap")
fault("shm", "other_half_is_summed", SWAP, "    s->sum_to = place_in(op, out, &sum->dst, &unused);",
      "    s->sum_to = place_in(op, out, &send->dst, &unused);", ON_SHM, "write_back")

fault("shm", "sums_of_narrow_floats_are_narrow", "core/exec/prepare.c",
      "const uint8_t widens = needs & ALGO_WIDE_SUMS &&", "const uint8_t widens = 0 &&", TREES, MANY_ROUNDS)
fault("shm", "copy_between_types_is_none", ROUNDS, "    if (!step->converts) {", "    if (1) {",
      "reductions on shm by all_reduce recursive_doubling,reduce binomial")
fault("shm", "wide_average_is_taken_for_narrow", ROUNDS, "step->is_wide ? COMM_DTYPE_F32 : c->op->dtype",
      "c->op->dtype", "reductions on shm by all_reduce recursive_doubling,reduce binomial")
fault("shm", "wide_sums_lie_in_the_first_slot", "core/exec/operands.c",
      "(size_t)op->plan->scratch_slots * slot->stride + begin", "begin", TREES)
fault("a", "wide_result_lies_where_the_narrow_one_would", SINK, "offset / s->element_bytes * s->result_bytes", "offset",
      "short io, collectives", "link")
fault("shm", "wide_results_are_written_back", "core/exec/plan.c",
      "    if (p->widens) /* what is reduced is not what the peer gets in the end */\n        return;\n", "",
      "simulate")
fault("a", "narrow_product_is_widened", "core/reduce.c", "    int sums = redop == COMM_REDOP_SUM ||",
      "    int sums = redop == COMM_REDOP_PRODUCT || redop == COMM_REDOP_SUM ||", "reduce")
fault("a", "vectors_and_sums_meet", "core/exec/algo/all_reduce_recursive_doubling.c",
      "    } else if (sums_first) {", "    } else if (0) {", "simulate")
fault("shm", "rounds_do_not_ask_what_a_ring_holds", ROUNDS,
      "*known && s->bytes <= s->peer->in.short_bytes;", "*known;", "shm_hostile")
fault("shm", "local_steps_of_a_round_that_has_not_begun_are_done_again", ROUNDS, ".did_local = 1 };",
      ".did_local = (uint8_t)has_sent };", "rounds")

# ---- Messages that both ranks copy ----

SPLIT = "backend_shm/split.c"
fault("shm", "parts_that_were_taken_back_are_written", SPLIT, "        atomic_store(&shared->part_to[i].bytes, 0);\n",
      "        (void)i, (void)shared;\n", "split")
fault("shm", "parts_are_written_after_one_that_failed", SPLIT, "for (uint32_t i = 0; i < count && l->splits; i++) {",
      "for (uint32_t i = 0; i < count; i++) {", "split")
fault("shm", "parts_of_the_sender_are_not_waited_for", SPLIT, "written(p, loan, &ended) < wanted && !ended; turn++) {",
      "written(p, loan, &ended) < 0 * wanted && !ended; turn++) {", "split")
fault("shm", "parts_that_failed_count_as_written", SPLIT,
      "l->splits = lend_write_memory(", "l->splits = 1 | lend_write_memory(", "split")
fault("shm", "kernel_that_refuses_to_write_is_asked_again", LEND,
      "if (n < 0 && (errno == EPERM ||", "if (0 && (errno == EPERM ||", "write_back")
fault("shm", "parts_that_are_not_written_are_left_out", SPLIT, "is_read && i < theirs; i++)",
      "is_read && i < 0 * theirs; i++)", "split")
fault("shm", "number_of_parts_of_the_sender_is_trusted", SPLIT, "    theirs = theirs < count ? theirs : count;\n", "",
      "shm_lend")
fault("shm", "last_part_is_as_long_as_the_others", SPLIT, "bytes - at < each ? bytes - at : each", "each", "split")

# ---- commrun before there are ranks ----

EARLY = "tools/commrun_early.c"
fault("core", "signals_wait_for_the_other_nodes", EARLY, "sigaction(ending[i], &action, NULL);",
      "signal(ending[i], SIG_IGN);", "commrun")
fault("core", "time_limit_waits_for_the_other_nodes", EARLY, "    setitimer(ITIMER_REAL, &timer, NULL);\n", "",
      "commrun")
fault("core", "store_is_tried_again_without_a_loopback", "store/tcp_dial.c",
      "if (refusal.no_loopback && refusal.no_other)", "if (0)", "commrun")

# ---- Why ranks have different backends ----

fault("e", "reason_that_is_known_is_given_again", "core/registry.c", "    if (last && strstr(reason, last))\n",
      "    if (0 && last)\n", "auto")
fault("e", "cut_reason_is_not_marked", "core/join.c", "more, is_cut ? \"...\" : \"\");", "more, \"\");", "auto")
fault("e", "reasons_leave_no_room_for_the_cure", "core/join.c", "other < left / 2 ? left - other : left / 2;",
      "other + 2 * left;", "auto")

# ---- Where a rank is ----

fault("e", "place_of_a_rank_that_connects_is_guessed", "backend_shm/dial.c",
      "        find_place(&p->port, COMM_HANDED_OUT);\n", "        ;\n", "places")
fault("e", "rank_without_an_address_makes_no_sense", ENDPOINT, "return lists_any && l->candidate_count == 0 ? -1",
      "return (lists_any || 1) && l->candidate_count == 0 ? -1", "mesh", "connect")
fault("shm", "first_pairs_take_all_of_dev_shm", "backend_shm/segment.c", "free_bytes() / pairs;", "free_bytes();",
      "shm_ring")
fault("shm", "full_dev_shm_counts_as_memory", "backend_shm/segment.c",
      "free_bytes() < (uint64_t)file_bytes(ring_bytes)", "free_bytes() == 0", "shm_ring")
