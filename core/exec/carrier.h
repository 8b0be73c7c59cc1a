/* Who carries frames for a domain is mostly who drives it, too. A carrier that can also belong to another one's domain
 * knows its driver by this. */
#ifndef COMM_EXEC_CARRIER_H
#define COMM_EXEC_CARRIER_H

struct domain;

struct carrier_driver {
    /* The domain's lock, for a thread that does not have it; for a short time. */
    void (*enter)(struct domain *d);
    void (*leave)(struct domain *d);
    /* There is something for the helper thread alone to do. */
    void (*wake_helper)(struct domain *d);
    /* If the helper sleeps, it must look again at what it sleeps for. */
    void (*rouse_helper)(struct domain *d);
};

#endif
