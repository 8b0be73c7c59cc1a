"""A store's server on another host, which is cut off: cut_off.py CUT_OFF COMM_STORE. CUT_OFF says how far it is."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import two_hosts  # noqa: E402

CUT_OFF, COMM_STORE = sys.argv[1:3]
PORT = "7902"
SERVER, CLIENT = 0, 1


class CutOff(two_hosts.TwoHosts):
    def start(self, host, *command):
        process = subprocess.Popen(self.on(host, *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def try_out(self, cut, mend):
        self.start(SERVER, COMM_STORE, "serve", "--port", PORT).stdout.readline()
        client = self.start(CLIENT, CUT_OFF, two_hosts.ADDRESS[SERVER], PORT)
        self.assertEqual(client.stdout.readline(), "connected\n")
        cut()
        print("cut", file=client.stdin, flush=True)
        self.assertEqual(client.stdout.readline(), "checked\n")
        mend()
        print("mended", file=client.stdin, flush=True)
        self.assertEqual(client.wait(), 0)

    def test_what_is_sent_is_lost(self):
        self.try_out(self.cut, self.mend)

    def test_the_servers_link_is_down(self):
        self.try_out(lambda: self.set_link(SERVER, "down"), lambda: self.set_link(SERVER, "up"))

    def test_our_own_link_is_down(self):
        self.try_out(lambda: self.set_link(CLIENT, "down"), lambda: self.set_link(CLIENT, "up"))


if __name__ == "__main__":
    two_hosts.main()
