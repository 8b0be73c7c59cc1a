/* Files as the kernel has them in /proc and /sys, in a folder of the test's. */
#ifndef COMM_TESTS_KERNEL_FILES_H
#define COMM_TESTS_KERNEL_FILES_H

/* Its path; it exits if there can be none. */
const char *kernel_files_make(void);
/* `name` may have folders in it, which are made. */
void kernel_files_write(const char *name, const char *text);
/* 0: it is gone, with all in it. */
int kernel_files_remove(void);

#endif
