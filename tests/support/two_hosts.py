"""Two hosts for tests, which are network name spaces with a link between them, and what can happen to it. A test
derives from TwoHosts, and its program ends with main(), which skips (77) where no name spaces may be made."""
import os
import subprocess
import sys
import unittest

ADDRESS = ["10.211.8.1", "10.211.8.2"]  # ports are free there: nobody else is inside
BOGUS = "02:00:00:00:00:99"
NAMES = [f"comm{os.getpid()}-{i}" for i in range(2)]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def on(host, *command):
    """The command that runs another one on a host."""
    return ["ip", "netns", "exec", NAMES[host], *command]


def make_hosts():
    for name in NAMES:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "veth0", "netns", NAMES[0], "type", "veth", "peer", "name", "veth0", "netns", NAMES[1])
    for i, name in enumerate(NAMES):
        ip("-n", name, "address", "add", f"{ADDRESS[i]}/24", "dev", "veth0")
        ip("-n", name, "link", "set", "veth0", "up")


def remove_hosts():
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def lose(host, address):
    """What the host sends to the address is lost without an error: the entry in its table of neighbours is wrong."""
    ip("-n", NAMES[host], "neigh", "replace", address, "lladdr", BOGUS, "dev", "veth0", "nud", "permanent")


def cut():
    for host in range(2):
        lose(host, ADDRESS[1 - host])


def mend():
    for host in range(2):
        ip("-n", NAMES[host], "neigh", "del", ADDRESS[1 - host], "dev", "veth0")


def set_link(host, state):
    ip("-n", NAMES[host], "link", "set", "veth0", state)


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.addCleanup(remove_hosts)
        make_hosts()


def main():
    try:
        make_hosts()
    except (OSError, subprocess.CalledProcessError) as reason:
        print("no network name spaces here:", getattr(reason, "stderr", None) or reason)
        sys.exit(77)
    finally:
        remove_hosts()
    unittest.main(argv=[sys.argv[0], "-v"])
