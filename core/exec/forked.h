/* A child of fork() has copies of all our descriptors. If it kept them, the peers would not notice the parent's death
 * as long as the child lives (worker processes that load data do). So the child closes them at once. It has a snapshot
 * of memory from the moment of the fork: descriptors are therefore forgotten before they are closed, or the child might
 * close a number that means something else by then. */
#ifndef COMM_EXEC_FORKED_H
#define COMM_EXEC_FORKED_H

struct forked {
    struct forked *next;
    void (*close)(struct forked *f); /* in the child: all descriptors */
};

/* From now on, until it is taken off the list, `close` is called in children. */
void forked_enlist(struct forked *f, void (*close)(struct forked *f));
void forked_delist(const struct forked *f);

#endif
