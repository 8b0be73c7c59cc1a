/* Random programs as cases. */
#ifndef COMM_CHECK_PROGRAMS_H
#define COMM_CHECK_PROGRAMS_H

#include <comm/comm.h>
#include <stdbool.h>

void random_collectives(void);
void random_programs(void);
void threads_collectives(void);

/* What `supports` says of point-to-point messages. A world must be open. */
struct message_facts {
    bool messages, any_source, any_tag, own_tags;
    int32_t most_tag; /* the largest 2^n - 1 that is taken */
};
void ask_about_messages(struct message_facts *facts);

#endif
