/* Huge pages for memory that is moved often: when the kernel is asked, and that nothing is lost by it. Exits with 77
 * where the system has none for programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "huge_pages.h"
#include "small_pages.h"

enum { PAGES = 4, MORE_THAN_ONE_CALL = 8 };

static struct huge_pages observed;

/* All calls that may be needed until all of it is asked for. */
static void move_often(const struct memory *m, size_t at, size_t bytes)
{
    for (int i = 0; i < MORE_THAN_ONE_CALL * PAGES; i++)
        huge_pages_moved(&observed, m->data + at, bytes);
}

static void begin(int64_t uses)
{
    memset(&observed, 0, sizeof observed);
    huge_pages_choose(&observed, uses);
}

static void it_is_asked_for_after_so_many_uses(void **state)
{
    (void)state;
    begin(3);
    struct memory m = memory_map(PAGES);
    memory_fill(&m, PAGES * HUGE_BYTES);
    for (int use = 1; use <= 2; use++) {
        huge_pages_moved(&observed, m.data, PAGES * HUGE_BYTES);
        assert_int_equal(memory_huge_pages(&m), 0);
    }
    huge_pages_moved(&observed, m.data, PAGES * HUGE_BYTES);
    long first = memory_huge_pages(&m);
    assert_true(first >= 1);
    move_often(&m, 0, PAGES * HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), PAGES);
    assert_int_equal(memory_changed(&m, PAGES * HUGE_BYTES), PAGES * HUGE_BYTES);
    memory_unmap(&m);
}

/* 2 MiB that are moved in parts, from the middle of one place for a huge page to that of the next. */
static void parts_count_for_the_page_that_they_are_in(void **state)
{
    enum { PART = HUGE_BYTES / 8 };
    (void)state;
    begin(1);
    struct memory m = memory_map(2);
    memory_fill(&m, 2 * HUGE_BYTES);
    for (int part = 0; part < 8; part++)
        huge_pages_moved(&observed, m.data + HUGE_BYTES / 2 + (size_t)part * PART, PART);
    assert_int_equal(memory_huge_pages(&m), 0);
    for (int part = 0; part < 4; part++)
        huge_pages_moved(&observed, m.data + HUGE_BYTES / 2 + (size_t)part * PART, PART);
    assert_int_equal(memory_huge_pages(&m), 1); /* the first one, now that all of it has been moved */
    assert_int_equal(memory_changed(&m, 2 * HUGE_BYTES), 2 * HUGE_BYTES);
    memory_unmap(&m);
}

/* The buffer ends within a place for a huge page, the rest of which was never used, or has been given back. */
static void no_memory_is_added(void **state)
{
    enum { BYTES = HUGE_BYTES + HUGE_BYTES / 2 };
    (void)state;
    begin(1);
    struct memory m = memory_map(2);
    memory_fill(&m, BYTES);
    madvise(m.data + 4096, 4096, MADV_DONTNEED);
    long before = memory_kib(&m, "Rss");
    move_often(&m, 0, BYTES);
    assert_int_equal(memory_huge_pages(&m), 0);
    memory_fill(&m, BYTES);
    before += 4;
    move_often(&m, 0, BYTES);
    assert_int_equal(memory_huge_pages(&m), 1);
    assert_int_equal(memory_kib(&m, "Rss"), before);
    assert_int_equal(memory_changed(&m, BYTES), BYTES);
    memory_unmap(&m);
}

static void excluded_memory_is_left_alone(void **state)
{
    (void)state;
    begin(1);
    struct memory m = memory_map(PAGES);
    memory_fill(&m, PAGES * HUGE_BYTES);
    madvise(m.data, PAGES * HUGE_BYTES, MADV_NOHUGEPAGE);
    move_often(&m, 0, PAGES * HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 0);
    assert_int_equal(memory_changed(&m, PAGES * HUGE_BYTES), PAGES * HUGE_BYTES);
    memory_unmap(&m);
}

/* The uses until it is there. */
static int uses_until_huge(const struct memory *m)
{
    int uses = 0;
    while (memory_huge_pages(m) == 0 && uses < 1000) {
        huge_pages_moved(&observed, m->data, HUGE_BYTES);
        uses++;
    }
    return uses;
}

static void what_cannot_be_had_is_asked_for_later_and_later(void **state)
{
    (void)state;
    begin(1);
    struct memory m = memory_map(1);
    for (int i = 0; i < 7; i++)
        huge_pages_moved(&observed, m.data, HUGE_BYTES); /* never touched: asked for after 1, 3 and 7 uses */
    memory_fill(&m, HUGE_BYTES);
    assert_int_equal(uses_until_huge(&m), 8);
    assert_int_equal(memory_changed(&m, HUGE_BYTES), HUGE_BYTES);
    memory_unmap(&m);
}

static void pages_of_zeros_and_of_a_child_are_left_alone(void **state)
{
    (void)state;
    begin(1);
    struct memory m = memory_map(2);
    m.data[0] = 1;
    for (size_t i = 0; i < HUGE_BYTES; i += 4096)
        assert_int_equal(((volatile uint8_t *)m.data)[i], i == 0); /* all but the first one page that all share */
    memory_set(m.data + HUGE_BYTES, 1, HUGE_BYTES);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    assert_true(child > 0);
    move_often(&m, 0, 2 * HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 0);
    close(ends[0]);
    close(ends[1]);
    waitpid(child, NULL, 0);
    memory_unmap(&m);
}

/* Memory is freed, and other memory comes to the same address. */
static void other_memory_at_the_same_address_is_asked_for(void **state)
{
    (void)state;
    begin(1);
    struct memory m = memory_map(1);
    memory_fill(&m, HUGE_BYTES);
    move_often(&m, 0, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 1);
    assert_ptr_equal(mmap(m.data, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                          -1, 0), m.data);
    memory_fill(&m, HUGE_BYTES);
    move_often(&m, 0, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 1);
    assert_int_equal(memory_changed(&m, HUGE_BYTES), HUGE_BYTES);
    memory_unmap(&m);
}

/* By default the more uses are waited for, the longer the kernel takes. */
static void what_it_takes_decides(void **state)
{
    (void)state;
    begin(HUGE_PAGES_MEASURED);
    struct memory m = memory_map(PAGES);
    memory_fill(&m, PAGES * HUGE_BYTES);
    observed.takes_ns = 10 * 40000;
    for (int use = 1; use < 10; use++)
        huge_pages_moved(&observed, m.data, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 0);
    huge_pages_moved(&observed, m.data, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 1);
    assert_int_not_equal(observed.takes_ns, 10 * 40000);
    observed.takes_ns = 1;
    for (int use = 1; use < 4; use++)
        huge_pages_moved(&observed, m.data + HUGE_BYTES, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 1);
    huge_pages_moved(&observed, m.data + HUGE_BYTES, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 2);
    memory_unmap(&m);
}

/* Two places that are counted in one. */
static void the_last_of_two_is_counted(void **state)
{
    enum { FAR = HUGE_PAGES_KNOWN + 1 };
    (void)state;
    begin(2);
    struct memory m = memory_reserve(FAR);
    uint8_t *const two[2] = { m.data, m.data + (size_t)HUGE_PAGES_KNOWN * HUGE_BYTES };
    for (int i = 0; i < 2; i++)
        assert_int_equal(mprotect(two[i], HUGE_BYTES, PROT_READ | PROT_WRITE), 0);
    for (int i = 0; i < 2; i++)
        memory_set(two[i], 1, HUGE_BYTES);
    for (int i = 0; i < 8; i++)
        huge_pages_moved(&observed, two[i % 2], HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 0);
    huge_pages_moved(&observed, two[1], HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 1);
    memory_unmap(&m);
}

static void zero_is_never(void **state)
{
    (void)state;
    begin(0);
    struct memory m = memory_map(1);
    memory_fill(&m, HUGE_BYTES);
    move_often(&m, 0, HUGE_BYTES);
    assert_int_equal(memory_huge_pages(&m), 0);
    huge_pages_moved(&observed, NULL, 0);
    memory_unmap(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_asked_for_after_so_many_uses),
        cmocka_unit_test(parts_count_for_the_page_that_they_are_in),
        cmocka_unit_test(no_memory_is_added),
        cmocka_unit_test(excluded_memory_is_left_alone),
        cmocka_unit_test(what_cannot_be_had_is_asked_for_later_and_later),
        cmocka_unit_test(pages_of_zeros_and_of_a_child_are_left_alone),
        cmocka_unit_test(other_memory_at_the_same_address_is_asked_for),
        cmocka_unit_test(what_it_takes_decides),
        cmocka_unit_test(the_last_of_two_is_counted),
        cmocka_unit_test(zero_is_never),
    };
    if (!memory_can_be_huge() || memory_is_huge_unasked()) {
        printf("skipped: the system makes no huge pages of 2 MiB for programs, or makes them unasked\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
