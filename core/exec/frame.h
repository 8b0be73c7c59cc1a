/* What ranks say to each other, however it is carried: a frame is this header and `bytes` of payload. wire.h has it as
 * bytes; docs/wire.md says what is said when. */
#ifndef COMM_EXEC_FRAME_H
#define COMM_EXEC_FRAME_H

#include <stdint.h>

enum frame_type {
    FRAME_EAGER = 1, /* a message; the payload follows. Paid for with credit */
    FRAME_RTS,       /* I have a message of `bytes` for you, tell me when you can take it */
    FRAME_CTS,       /* send it */
    FRAME_DATA,      /* a message that CTS asked for */
    FRAME_CREDIT,    /* only gives back credit (every frame can) */
    FRAME_FAIL,      /* the group has ended: why is in status, reporter and the payload, a text */
    FRAME_QUERY,     /* what are you doing in this group? Of a collective, with the sender's call */
    FRAME_ANSWER,    /* to the QUERY with that seq: flags, waits_for, and perhaps the collective; the payload says in
                      * words what the rank does */
    FRAME_BYE,       /* I close my world; nothing follows */
    FRAME_CALL,      /* another rank, `caller`, has called this collective: not as you have */
    FRAME_TYPE_END,
};

enum {
    FRAME_EAGER_MAX = 1 << 20, /* no honest peer sends a longer EAGER payload */
    FRAME_TEXT_MAX = 1024,     /* payload of FAIL and ANSWER */
    FRAME_ANSWER_TEXT_MAX = 200,
};

/* The flags of an ANSWER; a QUERY has only KNOWN. */
enum {
    FRAME_ANSWER_ENTERED = 1, /* collective #seq, or a later one, has been called */
    FRAME_ANSWER_IN_IT = 2,   /* it is under way */
    FRAME_ANSWER_BEHIND = 4,  /* an earlier one is under way */
    FRAME_ANSWER_KNOWN = 8,   /* kind, dtype, redop, root_known, count and signature are those of #seq */
    FRAME_ANSWER_CLOSED = 16, /* the group has been closed there */
    FRAME_ANSWER_HELD_UP = 32, /* there is trouble with the rank that it waits for, which the payload tells */
};

/* The flags of a CREDIT. */
enum { FRAME_CREDIT_NOTICE = 1 }; /* the sender has said something elsewhere (backend_shm: over the socket) */

/* The flags of a FAIL. */
enum { FRAME_LOST_HERE = 1 }; /* `lost` is lost to this group: that says nothing about others that it is in */

/* (group, seq, signature) are in every message of a collective, so any two ranks that meet in different ones notice;
 * kind, dtype, redop, root and count are there to spell it out. */
struct frame {
    uint8_t type;
    uint8_t kind, dtype, redop;
    uint32_t credit;    /* bytes of eager window given back */
    uint64_t group;
    uint64_t seq;       /* collectives: the group's count; point-to-point: the sender's count */
    uint64_t signature; /* collectives */
    union {
        uint32_t slice;     /* collectives: the part of the operation */
        int32_t reporter;   /* FAIL: the rank, in the group, whose words the text is */
        int32_t root_known; /* ANSWER: the collective's root */
        int32_t caller;     /* CALL: a rank in the world */
    };
    union {
        uint16_t round; /* collectives: of the plan */
        uint16_t flags; /* ANSWER, QUERY: FRAME_ANSWER_ bits; CREDIT, FAIL: as above */
    };
    union {
        int32_t tag;       /* point-to-point */
        int32_t root;      /* collectives: or -1 */
        int32_t status;    /* FAIL */
        int32_t waits_for; /* ANSWER: the rank that the collective waits for, or -1 */
    };
    union {
        uint64_t count; /* elements */
        uint64_t lost;  /* FAIL: the world rank that is lost, plus 1; 0: none */
    };
    uint64_t bytes; /* of the payload that follows (EAGER, DATA, FAIL, ANSWER) or is promised (RTS) */
};

#endif
