/* Between two looks at memory that another core writes. Without it the processor has several looks under way when the
 * other core takes the line, and does them again; and it takes the line away before the other core has written what
 * comes next to it. */
#ifndef COMM_BASE_RELAX_H
#define COMM_BASE_RELAX_H

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on cores of one thread */
#elif defined(__powerpc64__)
    __asm__ volatile("or 27,27,27");
#endif
}

#endif
