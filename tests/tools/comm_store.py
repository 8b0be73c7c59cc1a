#!/usr/bin/env python3
"""comm-store's commands, as a shell uses them: comm_store.py COMM_STORE."""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

COMM_STORE = sys.argv[1]
LIMIT_S = 30
BARE = {"COMM_LOG": "error", **{k: v for k, v in os.environ.items()
                                if k in ("PATH", "LD_LIBRARY_PATH") or k.endswith("SAN_OPTIONS")}}


def comm_store(*arguments, data=b"", env=None):
    """(exit status, stdout, stderr)"""
    done = subprocess.run([COMM_STORE, *arguments], input=data, capture_output=True, timeout=LIMIT_S,
                          env={**BARE, **(env or {})})
    return done.returncode, done.stdout, done.stderr.decode()


class Server:
    def __init__(self, *options, **more):
        self.process = subprocess.Popen([COMM_STORE, "serve", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=BARE, **more)
        self.line = self.process.stdout.readline().decode()
        self.port = int(self.line.rsplit(":", 1)[1])
        self.url = f"tcp://127.0.0.1:{self.port}"

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, err.decode()

    def close(self):
        self.process.kill()
        self.process.communicate()


class Calls:
    """For each kind of store that several processes can share."""

    def call(self, *arguments, data=b"", expect=0):
        status, out, err = comm_store("--store", self.url, *arguments, data=data)
        self.assertEqual(status, expect, err)
        return out

    def start(self, *arguments):
        process = subprocess.Popen([COMM_STORE, "--store", self.url, *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=BARE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def finish(self, process, expect=0):
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, expect, err)
        return out

    def test_set_get_append_delete(self):
        self.call("set", "k", "value")
        self.assertEqual(self.call("get", "k"), b"value")
        self.call("append", "k", " and more")
        self.assertEqual(self.call("get", "k"), b"value and more")
        self.call("set", "k", "")
        self.assertEqual(self.call("get", "k"), b"")
        self.call("delete", "k")
        self.call("delete", "k", expect=4)
        self.call("set", "dashes", "--", "-x")
        self.assertEqual(self.call("get", "dashes"), b"-x")

    def test_values_come_from_stdin_byte_for_byte(self):
        data = os.urandom(300000) + b"\0\n\0"
        self.call("set", "k", "-", data=data)
        self.assertEqual(self.call("get", "k"), data)
        self.call("append", "k", "-", data=b"\n")
        self.assertEqual(self.call("get", "k"), data + b"\n")
        self.call("push", "q", "-", data=data)
        self.assertEqual(self.call("pop", "q"), data)
        limit = 8 << 20
        self.call("set", "most", "-", data=b"x" * limit)
        self.assertEqual(len(self.call("get", "most")), limit)
        self.call("set", "more", "-", data=b"x" * (limit + 1), expect=2)
        self.call("check", "more", expect=4)

    def test_add(self):
        self.assertEqual(self.call("add", "n", "5"), b"5\n")
        self.assertEqual(self.call("add", "n", "-7"), b"-2\n")
        self.assertEqual(self.call("--timeout", "9000", "add", "n", "-1", "--timeout=9000"), b"-3\n")
        self.assertEqual(self.call("add", "m", str(2**63 - 1)), b"%d\n" % (2**63 - 1))
        for bad in ("", "x", "1x", " 1", "1.5", str(2**63)):
            self.call("add", "n", bad, expect=2)
        self.call("set", "text", "words")
        self.call("add", "text", "1", expect=2)
        self.call("add", "m", "1", expect=2)
        self.assertEqual(self.call("add", "n", "0"), b"-3\n")

    def test_compare_set(self):
        self.assertEqual(self.call("compare-set", "k", "", "one"), b"one")
        self.assertEqual(self.call("compare-set", "k", "other", "two", expect=4), b"one")
        self.assertEqual(self.call("compare-set", "k", "one", "two"), b"two")
        self.assertEqual(self.call("compare-set", "absent", "x", "y", expect=4), b"x")
        self.call("check", "absent", expect=4)

    def test_keys(self):
        self.assertEqual(self.call("list"), b"")
        before = int(self.call("num-keys"))
        self.call("set", "a", "1")
        self.call("set", "b c", "2")
        self.assertEqual(sorted(self.call("list").split(b"\n")), [b"", b"a", b"b c"])
        self.assertEqual(int(self.call("num-keys")), before + 2)
        self.call("check", "a", "b c")
        self.call("check", "a", "d", expect=4)
        self.call("wait", "a", "b c", *["a"] * 20)

    def test_queues(self):
        self.assertEqual(self.call("len", "q"), b"0\n")
        self.call("pop", "q", "--no-wait", expect=4)
        self.call("push", "q", "one")
        self.call("push", "q", "")
        self.call("push", "q", "three")
        self.assertEqual(self.call("len", "q"), b"3\n")
        self.assertEqual([self.call("pop", "q"), self.call("pop", "q", "-n"), self.call("pop", "q")],
                         [b"one", b"", b"three"])

    def test_waiting_calls_are_woken(self):
        waits = [self.start("get", "k"), self.start("wait", "k", "k2"), self.start("pop", "q")]
        self.call("set", "k", "v")
        self.call("push", "q", "item")
        self.call("set", "k2", "v")
        self.assertEqual([self.finish(w) for w in waits], [b"v", b"", b"item"])

    def test_barrier(self):
        callers = [self.start("barrier", "here", "3") for _ in range(3)]
        for caller in callers:
            self.finish(caller)
        self.call("barrier", "alone", "1")
        for bad in ("0", "-1", "x"):
            self.call("barrier", "k", bad, expect=2)

    def test_timeouts_name_the_keys(self):
        for arguments in (("get", "absent"), ("wait", "absent"), ("pop", "absent"), ("barrier", "absent", "2")):
            status, out, err = comm_store("--store", self.url, "--timeout", "50", *arguments)
            self.assertEqual((status, out), (3, b""), err)
            self.assertIn("absent", err)
            self.assertIn(" ms", err)
            self.assertEqual(len(err.splitlines()), 1)

    def test_wrong_usage(self):
        for arguments in (("get",), ("get", "a", "b"), ("set", "k"), ("frobnicate",), (), ("list", "x"), ("wait",),
                          ("get", ""), ("get", "k" * 8192), ("get", "k", "--timeout", "soon"),
                          ("get", "k", "--timeout=-2"), ("--nonsense",)):
            status, out, err = comm_store("--store", self.url, *arguments)
            self.assertEqual((status, out), (2, b""), f"{arguments}: {err}")
            self.assertNotEqual(err, "")

    def test_the_store_may_be_named_in_the_environment(self):
        status, _, err = comm_store("set", "k", "v", env={"COMM_STORE_URL": self.url})
        self.assertEqual(status, 0, err)
        self.assertEqual(self.call("get", "k"), b"v")


class Tcp(Calls, unittest.TestCase):
    def setUp(self):
        self.server = Server("--port", "0", "--bind", "127.0.0.1")
        self.addCleanup(self.server.close)
        self.url = self.server.url

    def test_master_addr_and_port(self):
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.server.port)}
        self.assertEqual(comm_store("set", "k", "v", env=env), (0, b"", ""))
        self.assertEqual(self.call("get", "k"), b"v")

    def test_a_server_that_goes_is_told(self):
        waiting = self.start("barrier", "never", "2")
        while int(self.call("num-keys")) == 0:  # until it is inside
            pass
        self.server.end(signal.SIGKILL)
        out, err = waiting.communicate(timeout=LIMIT_S)
        self.assertEqual((waiting.returncode, out), (5, b""), err)
        self.assertIn(str(self.server.port), err.decode())


class File(Calls, unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name + "/a store"
        self.url = "file://" + self.path.replace(" ", "%20")

    def test_a_damaged_file_is_told(self):
        with open(self.path, "w") as f:
            f.write("these are no records\n")
        status, out, err = comm_store("--store", self.url, "get", "k")
        self.assertEqual((status, out), (5, b""))
        self.assertIn(self.path, err)

    def test_what_a_killed_caller_left_is_told(self):
        caller = self.start("get", "never")
        while not os.path.exists(self.path) or os.path.getsize(self.path) == 0:
            pass
        caller.kill()
        caller.wait()
        status, _, err = comm_store("--store", self.url, "set", "k", "v")
        self.assertEqual(status, 2)
        self.assertIn(f":{caller.pid}", err)
        self.assertIn("delete it", err)


class Serve(unittest.TestCase):
    def test_it_ends_well_and_removes_its_port_file(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            with tempfile.TemporaryDirectory() as folder:
                file = folder + "/port"
                server = Server("--port-file", file)
                self.addCleanup(server.close)
                while not os.path.exists(file):
                    pass
                with open(file) as f:
                    self.assertEqual(f.read(), f"{server.port}\n")
                self.assertEqual(comm_store("-s", server.url, "add", "n", "1"), (0, b"1\n", ""))
                self.assertEqual(server.end(how), (0, ""))
                self.assertEqual(os.listdir(folder), [])

    def test_it_takes_a_socket_over(self):
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            for given in (listening, bound):
                server = Server("--listen-fd", str(given.fileno()), pass_fds=[given.fileno()])
                self.addCleanup(server.close)
                self.assertEqual(server.port, given.getsockname()[1])
                self.assertEqual(comm_store("-s", server.url, "add", "n", "1"), (0, b"1\n", ""))
        status, _, err = comm_store("serve", "--listen-fd", "0")
        self.assertEqual(status, 1)
        self.assertIn("descriptor 0", err)

    def test_what_it_refuses(self):
        server = Server("--bind", "127.0.0.1")
        self.addCleanup(server.close)
        self.assertIn("127.0.0.1:", server.line)
        status, out, err = comm_store("serve", "--bind", "127.0.0.1", "--port", str(server.port))
        self.assertEqual((status, out), (1, b""))
        self.assertIn(str(server.port), err)
        for bad in (("--port", "65536"), ("--port", "http"), ("--port=-1",), ("--listen-fd", "x"),
                    ("--bind", "nonsense."), ("extra",)):
            status, out, err = comm_store("serve", *bad)
            self.assertIn(status, (1, 2), err)
            self.assertEqual(out, b"")
            self.assertNotEqual(err, "")
        status, _, err = comm_store("serve", "--port-file", "/nonexistent/folder/port")
        self.assertEqual(status, 1)
        self.assertIn("/nonexistent/folder/port", err)


class Words(unittest.TestCase):
    def test_help_names_every_command(self):
        status, out, err = comm_store("--help")
        self.assertEqual((status, err), (0, ""))
        for word in ("serve set get add append compare-set wait check delete list num-keys push pop len barrier "
                     "--store --timeout --no-wait --port-file stdin status").split():
            self.assertIn(word, out.decode())
        self.assertLessEqual(max(map(len, out.decode().splitlines())), 80)

    def test_version(self):
        self.assertRegex(comm_store("--version")[1], rb"^\d+\.\d+\.\d+\n$")

    def test_without_a_store_it_says_how_to_name_one(self):
        status, _, err = comm_store("get", "k")
        self.assertEqual(status, 2)
        for word in ("--store", "COMM_STORE_URL", "MASTER_ADDR"):
            self.assertIn(word, err)

    def test_bad_urls(self):
        for url in ("nonsense", "redis://x", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "file://relative"):
            status, _, err = comm_store("--store", url, "get", "k")
            self.assertEqual(status, 2, err)
            self.assertIn(url, err)

    def test_nobody_there(self):
        server = Server("--bind", "127.0.0.1")
        server.close()
        status, _, err = comm_store("--store", server.url, "--timeout", "200", "get", "k")
        self.assertEqual(status, 3, err)
        self.assertIn(str(server.port), err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
