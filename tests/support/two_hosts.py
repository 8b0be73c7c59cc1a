"""Two hosts for tests, which are network name spaces with a link between them, and what can happen to it. A test
derives from TwoHosts and has two hosts of its own. Its program ends with main(), which runs all tests at once, as they
mostly wait, and skips (77) where no name spaces may be made."""
import concurrent.futures
import itertools
import os
import subprocess
import sys
import unittest

ADDRESS = ["10.211.8.1", "10.211.8.2"]  # ports are free there: nobody else is inside
BOGUS = "02:00:00:00:00:99"
numbers = itertools.count()


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class TwoHosts(unittest.TestCase):
    def setUp(self):
        number = next(numbers)
        self.names = [f"comm{os.getpid()}-{number}-{i}" for i in range(2)]
        self.addCleanup(self.remove_hosts)
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "name", "veth0", "netns",
           self.names[1])
        for i, name in enumerate(self.names):
            ip("-n", name, "address", "add", f"{ADDRESS[i]}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")

    def remove_hosts(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def on(self, host, *command):
        """The command that runs another one on a host."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def ip_on(self, host, *words):
        ip("-n", self.names[host], *words)

    def lose(self, host, address):
        """What the host sends there is lost without an error: the entry in its table of neighbours is wrong."""
        self.ip_on(host, "neigh", "replace", address, "lladdr", BOGUS, "dev", "veth0", "nud", "permanent")

    def cut(self):
        for host in range(2):
            self.lose(host, ADDRESS[1 - host])

    def mend(self):
        for host in range(2):
            self.ip_on(host, "neigh", "del", ADDRESS[1 - host], "dev", "veth0")

    def set_link(self, host, state):
        self.ip_on(host, "link", "set", "veth0", state)


def run(case):
    result = unittest.TestResult()
    case.run(result)
    return case.id(), [text for _, text in result.failures + result.errors]


def main():
    trial = TwoHosts()
    try:
        trial.setUp()
    except (OSError, subprocess.CalledProcessError) as reason:
        print("no network name spaces here:", getattr(reason, "stderr", None) or reason)
        sys.exit(77)
    finally:
        trial.doCleanups()
    groups = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    cases = [case for group in groups for case in group]
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        results = list(pool.map(run, cases))
    for name, complaints in results:
        print(name, "failed" if complaints else "passed", *complaints, sep="\n" if complaints else " ")
    sys.exit(any(complaints for _, complaints in results))
