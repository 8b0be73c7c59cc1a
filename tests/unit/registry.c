/* Finding, loading and refusing backends. argv[1] is the folder of the plugins that plugin.c was compiled to. */
#include "core/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loopback.h"

static const char *folder;

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/libcomm_%s.so", folder, name);
    return path;
}

static void assert_says(comm_status got, comm_status expected, const char *words)
{
    if (got != expected || !strstr(comm_last_error(), words))
        fail_msg("%s '%s'; it should be %s and say '%s'", comm_status_name(got), comm_last_error(),
                 comm_status_name(expected), words);
}

static int find_info(const char *name, comm_backend_info *ret_info)
{
    for (size_t i = 0, count = comm_backend_count(); i < count; i++) {
        *ret_info = (comm_backend_info){ .struct_bytes = sizeof *ret_info };
        assert_int_equal(comm_backend_query(i, ret_info), COMM_OK);
        if (strcmp(ret_info->name, name) == 0)
            return 1;
    }
    return 0;
}

static void an_unknown_name_lists_what_there_is(void **state)
{
    (void)state;
    const comm_backend *backend;
    assert_says(comm__registry_find("carrier-pigeon", &backend), COMM_ERR_NOT_FOUND, "libcomm_carrier-pigeon.so");
    assert_says(COMM_ERR_NOT_FOUND, COMM_ERR_NOT_FOUND, folder); /* COMM_PLUGIN_PATH is where it looked */
}

static void a_found_plugin_is_listed_then_loaded_by_name(void **state)
{
    (void)state;
    const comm_backend *backend, *again;
    comm_backend_info info;
    assert_true(find_info("good", &info));
    assert_int_equal(info.usable, 0);
    assert_non_null(strstr(info.reason, "not loaded"));
    assert_int_equal(comm__registry_find("good", &backend), COMM_OK);
    assert_string_equal(backend->name, "good");
    assert_null(backend->progress); /* beyond its struct_bytes */
    assert_int_equal(comm__registry_find("good", &again), COMM_OK);
    assert_ptr_equal(backend, again);
    assert_int_equal(comm__registry_find(path_of("good"), &again), COMM_OK);
    assert_ptr_equal(backend, again);
}

static void a_plugin_for_another_abi_is_refused_with_both_numbers(void **state)
{
    (void)state;
    assert_says(comm_backend_load(path_of("newer")), COMM_ERR_VERSION, "ABI 2.0");
    assert_says(COMM_ERR_VERSION, COMM_ERR_VERSION, "has 1.0");
    comm_backend_info info;
    assert_true(find_info(path_of("newer"), &info) || find_info("newer", &info));
    assert_int_equal(info.usable, 0);
}

static void a_plugin_that_lacks_a_slot_is_refused(void **state)
{
    (void)state;
    assert_says(comm_backend_load(path_of("lacking")), COMM_ERR_INVALID, "group_abort");
}

static void a_plugin_that_refuses_says_why(void **state)
{
    (void)state;
    const comm_backend *backend;
    assert_says(comm__registry_find(path_of("refusing"), &backend), COMM_ERR_UNSUPPORTED, "no such hardware");
    assert_says(comm_backend_load(path_of("entryless")), COMM_ERR_VERSION, "comm_backend_entry");
    assert_says(comm_backend_load(path_of("absent")), COMM_ERR_NOT_FOUND, "absent");
    assert_says(comm_backend_load(""), COMM_ERR_INVALID, "empty");
}

static void check_reason(const char *name, int32_t usable, const char *words)
{
    comm_backend_info info;
    assert_true(find_info(name, &info));
    assert_int_equal(info.usable, usable);
    if (!strstr(info.reason, words))
        fail_msg("%s: '%s' does not say '%s'", name, info.reason, words);
}

static void the_first_variant_that_can_be_used_is_taken(void **state)
{
    (void)state;
    const comm_backend *backend;
    comm_backend_info info;
    check_reason("twofold.a", 0, "a variant of 'twofold'");
    assert_int_equal(comm__registry_find("twofold", &backend), COMM_OK);
    assert_string_equal(backend->name, "twofold");
    assert_true(find_info("twofold", &info));
    assert_int_equal(info.usable, 1);
    assert_non_null(strstr(info.origin, "libcomm_twofold.b.so"));
    check_reason("twofold.a", 0, "liba is not installed");
    check_reason("twofold.b", 0, "it is backend 'twofold'");
    check_reason("twofold.c", 0, "not taken: backend 'twofold' is ");
    assert_says(comm__registry_find("hopeless", &backend), COMM_ERR_UNSUPPORTED,
                "backend 'hopeless': none of its variants can be used here: x: libx is not installed; y: ");
    assert_says(COMM_ERR_UNSUPPORTED, COMM_ERR_UNSUPPORTED, "it calls itself 'other', not 'hopeless'");
    check_reason("hopeless.x", 0, "libx is not installed");
}

/* ---- "auto" ---- */

static const comm_host *given;

static comm_status query_context(void *context)
{
    return context ? (given->fail)(COMM_ERR_UNSUPPORTED, context) : COMM_OK;
}

/* One library with several backends for devices of its own. */
static const comm_backend *candidates_entry(const comm_host *host)
{
    static comm_backend made[6];
    static const struct {
        const char *name, *devices;
        int32_t preference;
        const char *cannot;
    } all[] = { { "best", "abacus", 90, "it lacks beads" },  { "zweite", "abacus,quipu", 50, NULL },
                { "second", "abacus,quipu", 50, NULL },      { "third", "abacus", 10, NULL },
                { "by_name_only", "abacus,tally", 0, NULL }, { "broken", "sundial", 20, "it is night" } };
    given = host;
    for (size_t i = 0; i < 6; i++) {
        made[i] = *loopback_entry(host);
        made[i].name = all[i].name;
        made[i].devices = all[i].devices;
        made[i].preference = all[i].preference;
        made[i].query = query_context;
        made[i].context = (void *)all[i].cannot;
        made[i].next = i < 5 ? &made[i + 1] : NULL;
    }
    return made;
}

static void auto_has_the_usable_ones_by_preference(void **state)
{
    (void)state;
    const comm_backend *backend, *list[4];
    char reasons[200];
    size_t count;
    assert_int_equal(comm_backend_register(candidates_entry), COMM_OK);
    assert_int_equal(comm__registry_auto("abacus", list, 4, &count, reasons, sizeof reasons), COMM_OK);
    assert_int_equal(count, 3);
    assert_string_equal(list[0]->name, "second"); /* as "zweite", but first by name */
    assert_string_equal(list[1]->name, "zweite");
    assert_string_equal(list[2]->name, "third");
    assert_int_equal(comm__registry_auto("quipu", list, 1, &count, reasons, sizeof reasons), COMM_OK);
    assert_int_equal(count, 1);
    assert_string_equal(list[0]->name, "second");
    assert_says(comm__registry_auto("tally", list, 4, &count, reasons, sizeof reasons), COMM_ERR_NOT_FOUND,
                "no backend for device 'tally' can be used here");
    assert_says(comm__registry_auto("sundial", list, 4, &count, reasons, sizeof reasons), COMM_ERR_NOT_FOUND,
                "can be used here: broken: it is night");
    assert_int_equal(comm__registry_find("by_name_only", &backend), COMM_OK);
    assert_says(comm__registry_find("best", &backend), COMM_ERR_UNSUPPORTED,
                "backend 'best' cannot be used here: it lacks beads");
    check_reason("best", 0, "it lacks beads");
    check_reason("third", 1, "");
}

static void a_name_is_taken_once(void **state)
{
    (void)state;
    assert_int_equal(comm_backend_register(loopback_entry), COMM_OK);
    assert_says(comm_backend_register(loopback_entry), COMM_ERR_INVALID, "taken");
    comm_backend_info info;
    assert_true(find_info("loopback", &info));
    assert_int_equal(info.usable, 1);
    assert_string_equal(info.devices, "cpu,xpu");
    assert_string_equal(info.reason, "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_name_lists_what_there_is),
        cmocka_unit_test(a_found_plugin_is_listed_then_loaded_by_name),
        cmocka_unit_test(a_plugin_for_another_abi_is_refused_with_both_numbers),
        cmocka_unit_test(a_plugin_that_lacks_a_slot_is_refused),
        cmocka_unit_test(a_plugin_that_refuses_says_why),
        cmocka_unit_test(the_first_variant_that_can_be_used_is_taken),
        cmocka_unit_test(auto_has_the_usable_ones_by_preference),
        cmocka_unit_test(a_name_is_taken_once),
    };
    if (argc < 2)
        return 2;
    folder = argv[1];
    setenv("COMM_PLUGIN_PATH", folder, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
