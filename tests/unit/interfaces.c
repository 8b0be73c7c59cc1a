/* Which of the host's interfaces a rank tells the others about: COMM_TCP_INTERFACE. The linker puts a host of ours in
 * place of the real one
 * (--wrap). */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "ranks.h"

int __wrap_getifaddrs(struct ifaddrs **ret_list);
void __wrap_freeifaddrs(struct ifaddrs *list);

int __wrap_getifaddrs(struct ifaddrs **ret_list)
{
    static const char *const names[] = { "lo", "eth0", "eth1", "eth10", "ib0", "docker0" };
    static const char *const addresses[] = { "127.0.0.1", "10.0.0.1", "10.0.1.1", "10.0.10.1", "10.1.0.1", "10.2.0.1" };
    struct ifaddrs *list = NULL;
    for (size_t i = sizeof names / sizeof *names; i-- > 0;) {
        struct sockaddr_in *a = calloc(1, sizeof *a), *mask = calloc(1, sizeof *mask);
        struct ifaddrs *one = calloc(1, sizeof *one);
        a->sin_family = mask->sin_family = AF_INET;
        inet_pton(AF_INET, addresses[i], &a->sin_addr);
        inet_pton(AF_INET, "255.255.255.0", &mask->sin_addr);
        *one = (struct ifaddrs){ .ifa_next = list,
                                 .ifa_name = strdup(names[i]),
                                 .ifa_flags = IFF_UP | (i == 0 ? IFF_LOOPBACK : 0),
                                 .ifa_addr = (struct sockaddr *)a,
                                 .ifa_netmask = (struct sockaddr *)mask };
        list = one;
    }
    *ret_list = list;
    return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *list)
{
    while (list) {
        struct ifaddrs *next = list->ifa_next;
        free(list->ifa_name);
        free(list->ifa_addr);
        free(list->ifa_netmask);
        free(list);
        list = next;
    }
}

static const struct {
    const char *list, *told; /* the last part of the addresses, as they are published */
} cases[] = {
    { "", "10.0.0.1 10.0.1.1 10.0.10.1 10.1.0.1 10.2.0.1 " },
    { "eth", "10.0.0.1 10.0.1.1 10.0.10.1 " },
    { "=eth1", "10.0.1.1 " },
    { "eth1", "10.0.1.1 10.0.10.1 " },
    { "ib,=eth0", "10.0.0.1 10.1.0.1 " },
    { "^docker,ib", "10.0.0.1 10.0.1.1 10.0.10.1 " },
    { "^=eth1", "10.0.0.1 10.0.10.1 10.1.0.1 10.2.0.1 " },
};

static void is_told(int rank, int size, void *arg)
{
    const char *told = arg;
    comm_group *world = ranks_world("cpu:tcp");
    char key[20], got[400] = "";
    void *data;
    size_t bytes;
    snprintf(key, sizeof key, "tcp/%d", (size - 1) - rank);
    CHECK_OK(comm_store_get(world->world->backends[0].store, key, 20000, &data, &bytes));
    char *page = strndup(data, bytes), *rest = page, *line;
    for (int i = 0; (line = strsep(&rest, "\n")); i++)
        if (i >= 3 && *line)
            strcat(strcat(got, line), " ");
    if (strcmp(got, told) != 0)
        ranks_fail(__FILE__, __LINE__, "%s: told '%s', not '%s'", getenv("COMM_TCP_INTERFACE"), got, told);
    free(page);
    comm_free(data);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("COMM_TCP_INTERFACE", cases[i].list, 1);
        bad |= ranks_run(2, NULL, is_told, (void *)cases[i].told);
    }
    return bad;
}
