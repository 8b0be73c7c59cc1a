/* PyTorch's clients as they sound on the wire, played to our server: each dialogue as it is, with every request cut in
 * two at every place, byte by byte, and with all requests in one piece. The bytes are captures of
 * PyTorch 1.13.1, 2.1.2, 2.6.0 and 2.14.1; keys of users have "/" in front. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lines.h"
#include "ranks.h"

/* The speaker: C the client, S the server to it, c and s the same on a second connection. '-': silence on the first
 * connection. 'x': the server closes the first connection. */
struct line {
    char who;
    const char *text;
};

enum { CUTS = 1, ONE_PIECE = 2 };

struct dialogue {
    const char *name;
    int how; /* besides as it is */
    struct line lines[96];
};

#define HELLO "00 ce f7 85 3c 0d 17 32 00 00"
#define ECHO "17 32 00 00"

static const struct dialogue dialogues[] = {
    { "modern: everything in turn",
      CUTS | ONE_PIECE,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'C', "04 05.. 'init/' 01.." },
        { 'S', "01.." },
        { 'C', "01 03.. '/k1' 02.. 'v1'" },
        { 'C', "06 01.. 03.. '/k1'" },
        { 'S', "00" },
        { 'C', "03 03.. '/k1'" },
        { 'S', "02.. 'v1'" },
        { 'C', "04 04.. '/ctr' 05.." },
        { 'S', "05.." },
        { 'C', "04 04.. '/ctr' f9 ff ff ff ff ff ff ff" },
        { 'S', "fe ff ff ff ff ff ff ff" },
        { 'C', "06 01.. 04.. '/ctr'" },
        { 'S', "00" },
        { 'C', "03 04.. '/ctr'" },
        { 'S', "02.. '-2'" },
        { 'C', "02 03.. '/cs' 00.. 01.. 'a'" },
        { 'S', "01.. 'a'" },
        { 'C', "02 03.. '/cs' 01.. 'a' 01.. 'b'" },
        { 'S', "01.. 'b'" },
        { 'C', "02 03.. '/cs' 01.. 'x' 01.. 'y'" },
        { 'S', "01.. 'b'" },
        { 'C', "02 06.. '/nokey' 01.. 'z' 01.. 'y'" },
        { 'S', "01.. 'z'" },
        { 'C', "05 01.. 03.. '/k1'" },
        { 'S', "00" },
        { 'C', "05 02.. 03.. '/k1' 03.. '/zz'" },
        { 'S', "01" },
        { 'C', "07" },
        { 'S', "04.." },
        { 'C', "08 03.. '/k1'" },
        { 'S', "01.." },
        { 'C', "08 03.. '/k1'" },
        { 'S', "00.." },
        { 'C', "09 03.. '/ap' 01.. 'x'" },
        { 'C', "09 03.. '/ap' 02.. 'yz'" },
        { 'C', "03 03.. '/ap'" },
        { 'S', "03.. 'xyz'" },
        { 'C', "0b 02.. 03.. '/m1' 01.. 'A' 03.. '/m2' 02.. 'BB'" },
        { 'C', "06 02.. 03.. '/m1' 03.. '/m2'" },
        { 'S', "00" },
        { 'C', "0a 02.. 03.. '/m1' 03.. '/m2'" },
        { 'S', "01.. 'A' 02.. 'BB'" },
        { 'C', "0d 01 02 03 ff" },
        { 'S', "01 02 03 ff" },
        { 'C', "12 04.. '/bar' 01.." },
        { 'S', "00" },
        { 'C', "01 06.. '/pg0/a' 01.. 'b'" },
        { 'C', "0e 02.. '/q' 01.. 'v'" },
        { 'C', "10 02.. '/q'" },
        { 'S', "01.." },
        { 'C', "0f 02.. '/q'" },
        { 'S', "01.. 01.. 'v'" },
        { 'C', "0f 02.. '/q'" },
        { 'S', "00.." },
        { 'C', "10 02.. '/q'" },
        { 'S', "00.." },
        { 'C', "03 05.. '/gone'" },
        { 'S', "00.." },
        { 'C', "05 00.." },
        { 'S', "00" },
        { 'C', "06 00.." },
        { 'S', "00" },
        { 'C', "0a 00.." },
        { 'C', "0b 00.." },
        { 'C', "0c" },
        { 'S', "01" },
        { '-', "" } } },
    { "modern: list_keys",
      CUTS | ONE_PIECE,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'C', "11" },
        { 'S', "00.." },
        { 'C', "01 03.. '/k1' 00.." },
        { 'C', "11" },
        { 'S', "01.. 03.. '/k1'" },
        { 'C', "0e 02.. '/q' 01.. 'v'" },
        { 'C', "11" },
        { 'S', "01.. 03.. '/k1'" } } },
    { "modern: no PING, as before 2.5",
      CUTS | ONE_PIECE,
      { { 'C', "00 ce f7 85 3c" }, { 'C', "07" }, { 'S', "00.." } } },
    { "a wait that is woken",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "06 02.. 02.. '/a' 02.. '/b'" },
        { '-', "" },
        { 'c', "01 02.. '/a' 00.." },
        { '-', "" },
        { 'c', "08 02.. '/a'" },
        { 's', "01.." },
        { '-', "" },
        { 'c', "04 02.. '/b' 01.." },
        { 's', "01.." },
        { 'S', "00" },
        { 'C', "06 01.. 02.. '/c'" },
        { '-', "" },
        { 'c', "09 02.. '/c' 01.. 'x'" },
        { 'S', "00" },
        { 'C', "06 02.. 02.. '/d' 02.. '/d'" },
        { '-', "" },
        { 'c', "0b 01.. 02.. '/d' 00.." },
        { 'S', "00" },
        { 'C', "06 01.. 02.. '/e'" },
        { '-', "" },
        { 'c', "02 02.. '/e' 00.. 01.. 'x'" },
        { 's', "01.. 'x'" },
        { 'S', "00" },
        { 'C', "07" },
        { 'S', "04.." } } },
    { "a compare_set that fails wakes nobody",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "06 01.. 02.. '/k'" },
        { '-', "" },
        { 'c', "02 02.. '/k' 01.. 'z' 01.. 'y'" },
        { 's', "01.. 'z'" },
        { '-', "" },
        { 'c', "07" },
        { 's', "00.." },
        { '-', "" },
        { 'c', "01 02.. '/k' 01.. 'v'" },
        { 'S', "00" } } },
    { "a wait that times out leaves no byte behind",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "06 01.. 05.. '/none'" },
        { '-', "" },
        { 'C', "0c" },
        { 'S', "01" },
        { 'C', "07" },
        { 'S', "00.." },
        { 'c', "01 05.. '/none' 00.." },
        { '-', "" },
        { 'C', "07" },
        { 'S', "01.." },
        /* The wake-up and the cancelling cross. */
        { 'C', "06 01.. 05.. '/late'" },
        { '-', "" },
        { 'c', "01 05.. '/late' 00.." },
        { 'S', "00" },
        { 'C', "0c" },
        { 'S', "01" },
        { 'C', "07" },
        { 'S', "02.." } } },
    { "what comes behind a wait has its turn after it",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k' 07" },
        { '-', "" },
        { 'c', "01 02.. '/k' 01.. 'v'" },
        { 'S', "00 01.. 'v' 01.." },
        { 'C', "06 01.. 02.. '/n' 03 02.. '/n' 0c 07" },
        { 'S', "01 00.. 01.." },
        { 'c', "01 02.. '/n' 01.. 'v'" },
        { '-', "" },
        { 'C', "06 01.. 02.. '/o' 0c 06 01.. 02.. '/p' 0c" },
        { 'S', "01 01" },
        { '-', "" } } },
    { "barriers",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "12 05.. '/bar3' 03.." },
        { '-', "" },
        { 'C', "0c" },
        { 'S', "01" },
        { 'C', "03 05.. '/bar3'" },
        { 'S', "01.. '1'" },
        { 'C', "12 04.. '/bar' 02.." },
        { '-', "" },
        { 'c', "12 04.. '/bar' 02.." },
        { 's', "00" },
        { 'S', "00" },
        { 'C', "03 04.. '/bar'" },
        { 'S', "01.. '2'" },
        { 'C', "12 04.. '/baz' 03.." },
        { '-', "" },
        { 'c', "04 04.. '/baz' 01.." },
        { 's', "02.." },
        { '-', "" },
        { 'c', "04 04.. '/baz' 01.." },
        { 's', "03.." },
        { 'S', "00" },
        /* A queue of that name is another matter. */
        { 'C', "12 04.. '/baq' 02.." },
        { '-', "" },
        { 'c', "0e 04.. '/baq' 01.. 'x'" },
        { '-', "" },
        { 'c', "12 04.. '/baq' 02.." },
        { 's', "00" },
        { 'S', "00" } } },
    { "a push wakes one, and not for another's sake",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "06 01.. 02.. '/q'" },
        { '-', "" },
        { 'c', "0e 02.. '/q' 01.. 'a'" },
        { 'S', "00" },
        { 'C', "0f 02.. '/q'" },
        { 'S', "01.. 01.. 'a'" },
        /* The first is no longer in the queue of clients that wait for /q. */
        { 'C', "06 01.. 02.. '/k'" },
        { '-', "" },
        { 'c', "0e 02.. '/q' 01.. 'b'" },
        { '-', "" },
        { 'c', "01 02.. '/k' 00.." },
        { 'S', "00" },
        /* A wait for several, one of which is a queue that has something. */
        { 'C', "06 02.. 02.. '/q' 02.. '/n'" },
        { '-', "" },
        { 'c', "01 02.. '/n' 00.." },
        { 'S', "00" },
        { 'c', "06 01.. 02.. '/q'" },
        { 's', "00" },
        { 'c', "05 01.. 02.. '/q'" },
        { 's', "00" } } },
    { "an item is passed on by one who was woken and does something else",
      CUTS,
      { { 'C', HELLO },
        { 'S', ECHO },
        { 'c', HELLO },
        { 's', ECHO },
        { 'C', "06 01.. 02.. '/q'" },
        { '-', "" },
        { 'c', "0e 02.. '/q' 01.. 'a'" },
        { 'S', "00" },
        { 'c', "0f 02.. '/q'" },
        { 's', "01.. 01.. 'a'" },
        { 'C', "06 01.. 02.. '/q'" },
        { '-', "" } } },
    { "1.13",
      CUTS,
      { { 'C', "03 05.. 'init/' 01.." },
        { 'S', "01.." },
        { 'C', "00 03.. '/k1' 02.. 'v1'" },
        { 'C', "05 01.. 03.. '/k1'" },
        { 'S', "00" },
        { 'C', "02 03.. '/k1'" },
        { 'S', "02.. 'v1'" },
        { 'C', "01 03.. '/cs' 00.. 01.. 'a'" },
        { 'S', "01.. 'a'" },
        { 'C', "04 02.. 03.. '/k1' 03.. '/zz'" },
        { 'S', "01" },
        { 'C', "06" },
        { 'S', "03.." },
        { 'C', "08 03.. '/k1'" },
        { 'S', "01.." },
        { 'C', "08 03.. '/k1'" },
        { 'S', "00.." },
        { 'C', "06" },
        { 'S', "02.." } } },
    { "1.13: a client that gives up on a wait says nothing",
      CUTS,
      { { 'C', "05 01.. 02.. '/n'" },
        { '-', "" },
        { 'c', "00 02.. '/k' 01.. 'v'" },
        { 'C', "02 02.. '/k'" },
        { 'S', "01.. 'v'" },
        { 'c', "00 02.. '/n' 00.." },
        { '-', "" },
        { 'C', "06" },
        { 'S', "02.." } } },
    { "1.13: the connection for watching",
      CUTS,
      { { 'C', "07 02.. '/k'" },
        { 'S', "03" },
        { 'c', "00 02.. '/k' 01.. 'v'" },
        { '-', "" },
        { 'C', "07 02.. '/k'" },
        { 'S', "01.." } } },
    { "1.13: all in one piece, but for delete",
      ONE_PIECE,
      { { 'C', "00 02.. '/k' 01.. 'v'" },
        { 'C', "02 02.. '/k'" },
        { 'S', "01.. 'v'" },
        { 'C', "03 02.. '/n' 07.." },
        { 'S', "07.." },
        { 'C', "06" },
        { 'S', "02.." } } },
    { "2.1",
      CUTS | ONE_PIECE,
      { { 'C', "03 05.. 'init/' 01.." },
        { 'S', "01.." },
        { 'C', "0b" },
        { 'S', "01" },
        { 'C', "00 03.. '/k1' 02.. 'v1'" },
        { 'C', "08 03.. '/k1' 01.. 'w'" },
        { 'C', "02 03.. '/k1'" },
        { 'S', "03.. 'v1w'" },
        { 'C', "0a 01.. 03.. '/k2' 00.." },
        { 'C', "09 02.. 03.. '/k1' 03.. '/k2'" },
        { 'S', "03.. 'v1w' 00.." },
        { 'C', "07 03.. '/k1'" },
        { 'S', "01.." },
        { 'C', "06" },
        { 'S', "02.." },
        { 'C', "05 01.. 05.. '/none' 0b" },
        { 'S', "01" },
        { 'C', "06" },
        { 'S', "02.." } } },
    { "2.1 shows itself by an APPEND",
      0,
      { { 'C', "08 03.. '/k1' 01.. 'w'" },
        { 'C', "02 03.. '/k1'" },
        { 'S', "01.. 'w'" },
        { 'C', "07 03.. '/k1'" },
        { 'S', "01.." } } },
    { "2.1 shows itself by a DELETE_KEY",
      CUTS,
      { { 'C', "00 03.. '/k1' 02.. 'v1'" },
        { 'C', "07 03.. '/k1'" },
        { 'S', "01.." },
        { 'C', "07 03.. '/k1'" },
        { 'S', "00.." } } },
    { "the magic before each query, as in mid 2023",
      CUTS | ONE_PIECE,
      { { 'C', "ce f7 85 3c 00 03.. '/k1' 02.. 'v1'" },
        { 'C', "ce f7 85 3c 02 03.. '/k1'" },
        { 'S', "02.. 'v1'" },
        { 'C', "ce f7 85 3c 07 03.. '/k1'" },
        { 'S', "01.." },
        { 'C', "ce f7 85 3c 05 01.. 05.. '/none' ce f7 85 3c 0b" },
        { 'S', "01" } } },
    { "refused: VALIDATE twice", CUTS, { { 'C', HELLO }, { 'S', ECHO }, { 'C', "00" }, { 'x', "" } } },
    { "refused: a wrong magic", CUTS, { { 'C', "00 ce f7 85 3d 00 00 00 00" }, { 'x', "" } } },
    { "refused: no VALIDATE", CUTS, { { 'C', "0d" }, { 'x', "" } } },
    { "refused: an unknown query", CUTS, { { 'C', HELLO }, { 'S', ECHO }, { 'C', "13" }, { 'x', "" } } },
    { "refused: a wrong magic later",
      CUTS,
      { { 'C', "ce f7 85 3c 06" }, { 'S', "00.." }, { 'C', "ce f7 85 3d" }, { 'x', "" } } },
    { "refused: what only newer ones know", CUTS, { { 'C', "06" }, { 'S', "00.." }, { 'C', "0c" }, { 'x', "" } } },
    { "refused: a key of 8 KiB and a byte",
      CUTS,
      { { 'C', HELLO }, { 'S', ECHO }, { 'C', "03 2001.." }, { 'x', "" } } },
    { "refused: a value of 8 MiB and a byte",
      CUTS,
      { { 'C', HELLO }, { 'S', ECHO }, { 'C', "01 02.. '/k' 800001.." }, { 'x', "" } } },
    { "refused: a list of 131073 keys", CUTS, { { 'C', HELLO }, { 'S', ECHO }, { 'C', "06 20001.." }, { 'x', "" } } },
    { "refused: a length of all ones",
      CUTS,
      { { 'C', HELLO }, { 'S', ECHO }, { 'C', "0a 02.. 02.. '/k' ffffffffffffffff.." }, { 'x', "" } } },
    { "refused: to add to a text",
      CUTS,
      { { 'C', HELLO }, { 'S', ECHO }, { 'C', "01 02.. '/k' 01.. 'x'" }, { 'C', "04 02.. '/k' 01.." }, { 'x', "" } } },
    { "refused: nonsense behind a wait",
      CUTS,
      { { 'C', HELLO }, { 'S', ECHO }, { 'C', "06 01.. 02.. '/k'" }, { '-', "" }, { 'C', "ff" }, { 'x', "" } } },
};

/* ---- Playing ---- */

struct stage {
    comm_store *store;
    int fd[2];
    int sync; /* a third connection */
};

/* All that was sent before has been read by the server: it has answered twice on another connection since, so it has
 * been through all its sockets. */
static void settle(const struct stage *stage)
{
    for (int i = 0; i < 2; i++) {
        lines_say(stage->sync, "0d 01 02 03 04");
        lines_hear(stage->sync, "01 02 03 04");
    }
}

static struct stage stage_open(void)
{
    struct stage stage;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = 1;
    CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &options, &stage.store));
    int port = comm_store_port(stage.store);
    for (int i = 0; i < 2; i++)
        stage.fd[i] = lines_connect(port);
    stage.sync = lines_connect(port);
    lines_say(stage.sync, "00 ce f7 85 3c");
    return stage;
}

static void stage_close(struct stage *stage)
{
    close(stage->fd[0]);
    close(stage->fd[1]);
    close(stage->sync);
    comm_store_close(stage->store);
}

enum { AS_IT_IS = -1, BYTE_BY_BYTE = -2 };

/* `cut`: send so many bytes of each request, then the rest. */
static void say_in_pieces(const struct stage *stage, int fd, const char *text, int cut)
{
    uint8_t bytes[LINES_BYTES_MAX];
    size_t count = lines_parse(text, bytes, NULL), n = 0;
    size_t step = cut == BYTE_BY_BYTE ? 1 : cut == AS_IT_IS || (size_t)cut >= count ? count : (size_t)cut;
    for (; n < count; n += step, step = cut == BYTE_BY_BYTE ? 1 : count - n) {
        if (n > 0)
            settle(stage);
        ssize_t sent = send(fd, bytes + n, step, MSG_NOSIGNAL);
        if (sent < 0) /* closed before the end, as it should be if the next line says so */
            return;
        CHECK(sent == (ssize_t)step);
    }
}

static void play(const struct dialogue *d, int cut)
{
    struct stage stage = stage_open();
    for (const struct line *line = d->lines; line->who; line++) {
        int fd = stage.fd[line->who == 'c' || line->who == 's'];
        switch (line->who) {
        case 'C':
        case 'c':
            say_in_pieces(&stage, fd, line->text, cut);
            if (!line[1].who || line[1].who == 'C' || line[1].who == 'c')
                settle(&stage); /* nothing will tell that it has been read */
            break;
        case 'S':
        case 's':
            lines_hear(fd, line->text);
            break;
        case 'x':
            lines_hear_end(fd);
            break;
        default:
            settle(&stage);
            lines_hear_nothing(fd);
        }
    }
    stage_close(&stage);
}

static void play_in_one_piece(const struct dialogue *d)
{
    struct stage stage = stage_open();
    uint8_t all[LINES_BYTES_MAX];
    size_t count = 0;
    for (const struct line *line = d->lines; line->who; line++)
        if (line->who == 'C')
            count += lines_parse(line->text, all + count, NULL);
    lines_send(stage.fd[0], all, count);
    for (const struct line *line = d->lines; line->who; line++)
        if (line->who == 'S')
            lines_hear(stage.fd[0], line->text);
    settle(&stage);
    lines_hear_nothing(stage.fd[0]);
    stage_close(&stage);
}

static int longest_request(const struct dialogue *d)
{
    uint8_t bytes[LINES_BYTES_MAX];
    size_t most = 0;
    for (const struct line *line = d->lines; line->who; line++) {
        size_t count = line->who == 'C' || line->who == 'c' ? lines_parse(line->text, bytes, NULL) : 0;
        most = count > most ? count : most;
    }
    return (int)most;
}

int main(void)
{
    alarm(100);
    for (size_t i = 0; i < sizeof dialogues / sizeof *dialogues; i++) {
        const struct dialogue *d = &dialogues[i];
        printf("%s\n", d->name);
        fflush(stdout);
        play(d, AS_IT_IS);
        for (int cut = 1; (d->how & CUTS) && cut < longest_request(d); cut++)
            play(d, cut);
        if (d->how & CUTS)
            play(d, BYTE_BY_BYTE);
        if (d->how & ONE_PIECE)
            play_in_one_piece(d);
    }
    return 0;
}
