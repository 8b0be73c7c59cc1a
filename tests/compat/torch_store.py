#!/usr/bin/env python3
"""PyTorch's TCPStore and ours, each as client of the other's server: torch_store.py COMM_STORE FOREIGN.

Runs with whatever PyTorch python3 has, else with Debian's (/usr/bin/python3); skips (77) where there is none. What a
release does not have is left out, so the same file serves 1.13 and the newest."""
import datetime
import os
import subprocess
import sys
import threading
import unittest

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    if sys.executable != "/usr/bin/python3" and os.access("/usr/bin/python3", os.X_OK):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    print("skipped: no PyTorch here:", error)
    sys.exit(77)

COMM_STORE, FOREIGN = sys.argv[1:3]
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split("a")[0].split(".")[:2])
LIMIT = datetime.timedelta(seconds=30)
SOON = datetime.timedelta(milliseconds=200)


def has(call):
    return hasattr(dist.TCPStore, call)


class Server:
    """`comm-store serve`, on a port that the system chooses."""

    def __init__(self):
        self.process = subprocess.Popen([COMM_STORE, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def close(self):
        self.process.terminate()
        status = self.process.wait(30)
        self.process.stdout.close()
        return status


def connect(port, timeout=LIMIT, **options):
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout, **options)


def in_threads(count, function):
    """Run function(0), function(1), ... at the same time; the first exception is raised here."""
    errors = []

    def run(index):
        try:
            function(index)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            raise AssertionError("a thread is stuck")
    if errors:
        raise errors[0]


class TheirClient(unittest.TestCase):
    """PyTorch's client, our server."""

    def setUp(self):
        self.server = Server()
        self.store = connect(self.server.port)

    def tearDown(self):
        del self.store
        self.assertEqual(self.server.close(), 0)

    def test_values(self):
        for value in (b"v", b"", bytes(range(256)), b"x" * (1 << 20), b"y" * (8 << 20)):
            self.store.set("k", value)
            self.assertEqual(self.store.get("k"), value)
        self.store.set("schlüssel \U0001f511", "wert")
        self.assertEqual(self.store.get("schlüssel \U0001f511"), b"wert")
        self.store.set("x" * 8000, "long")
        self.assertEqual(self.store.get("x" * 8000), b"long")

    def test_add(self):
        self.assertEqual([self.store.add("n", d) for d in (5, -7, 0, 1 << 40)], [5, -2, -2, (1 << 40) - 2])
        self.assertEqual(self.store.get("n"), str((1 << 40) - 2).encode())
        self.store.set("m", "10")
        self.assertEqual(self.store.add("m", 1), 11)

    def test_compare_set(self):
        self.assertEqual(self.store.compare_set("c", "wrong", "new"), b"wrong")
        self.assertEqual(self.store.num_keys(), 0)
        for expected, desired, after in (("", "a", b"a"), ("a", "b", b"b"), ("x", "y", b"b"), ("", "z", b"b")):
            self.assertEqual(self.store.compare_set("c", expected, desired), after)
        self.assertEqual(self.store.get("c"), b"b")

    def test_delete_and_num_keys(self):
        self.assertEqual(self.store.num_keys(), 0)
        self.store.set("a", "1")
        self.store.set("b", "2")
        self.assertEqual(self.store.num_keys(), 2)
        self.assertEqual((self.store.delete_key("a"), self.store.delete_key("a")), (True, False))
        self.assertEqual(self.store.num_keys(), 1)

    def test_joining_counts_one_key(self):
        stores = []
        in_threads(3, lambda _: stores.append(connect(self.server.port, world_size=3)))
        self.assertEqual((self.store.num_keys(), stores[0].num_keys()), (1, 1))

    def test_waits_of_all_sorts(self):
        self.store.set("here", "1")
        self.store.wait(["here"])
        self.store.wait(["here", "here"], SOON)
        other = connect(self.server.port)

        def wait(index):
            if index:
                connect(self.server.port).wait([f"late{i}" for i in range(index)])
            else:
                for i in range(8):
                    [lambda k: other.set(k, "x"), lambda k: other.add(k, 1), lambda k: other.compare_set(k, "", "x"),
                     lambda k: dist.PrefixStore("", other) and other.set(k, "")][i % 4](f"late{i}")

        in_threads(8, wait)

    def test_a_timeout_leaves_the_client_in_step(self):
        self.store.set("a", "1")
        for i in range(3):
            with self.assertRaises(RuntimeError) as caught:
                self.store.wait([f"absent{i}"], SOON)
            if VERSION >= (2, 5):
                self.assertIn(f"absent{i}", str(caught.exception))
            self.assertEqual(self.store.get("a"), b"1")
            self.assertEqual(self.store.add("n", 1), i + 1)
        self.store.set_timeout(SOON)
        with self.assertRaises(RuntimeError):
            self.store.get("absent")
        self.store.set_timeout(LIMIT)
        self.assertEqual((self.store.get("a"), self.store.num_keys()), (b"1", 2))

    def test_prefixes(self):
        outer = dist.PrefixStore("outer", self.store)
        inner = dist.PrefixStore("inner", outer)
        inner.set("k", "v")
        self.assertEqual(self.store.get("outer/inner/k"), b"v")
        self.assertEqual((outer.add("n", 2), self.store.add("outer/n", 2)), (2, 4))
        self.assertEqual(inner.compare_set("k", "v", "w"), b"w")
        self.assertTrue(inner.delete_key("k"))
        with self.assertRaises(RuntimeError):
            inner.wait(["k"], SOON)
        for prefix in ("", "a/", "/", "0//cpu//0"):
            view = dist.PrefixStore(prefix, self.store)
            view.set("k", prefix)
            self.assertEqual((view.get("k"), self.store.get(prefix + "/k")), (prefix.encode(),) * 2)

    def test_many_clients_and_threads(self):
        def work(index):
            mine = self.store if index % 4 == 0 else connect(self.server.port)
            for i in range(100):
                mine.add("sum", 1)
                mine.set(f"{index}/{i}", str(i))
            self.assertEqual([mine.get(f"{index}/{i}") for i in range(100)], [str(i).encode() for i in range(100)])

        in_threads(16, work)
        self.assertEqual(self.store.add("sum", 0), 1600)

    def test_a_hundred_clients_wait_for_one_key(self):
        stores = [connect(self.server.port) for _ in range(100)]

        def work(index):
            store = stores[index]
            if store.add("here", 1) == len(stores):
                self.store.set("go", "x" * 1000)
            self.assertEqual(store.get("go"), b"x" * 1000)

        in_threads(len(stores), work)

    def test_too_long_a_value_costs_only_its_own_connection(self):
        bad = connect(self.server.port)
        with self.assertRaises(RuntimeError):
            bad.set("big", "x" * ((8 << 20) + 1))
            bad.get("big")
        self.store.set("k", "v")
        self.assertEqual((self.store.get("k"), self.store.num_keys()), (b"v", 1))

    @unittest.skipUnless(has("check"), "this release has no check")
    def test_check(self):
        self.store.set("a", "1")
        self.assertEqual([self.store.check(keys) for keys in (["a"], ["a", "b"], ["b"])], [True, False, False])

    @unittest.skipUnless(has("append"), "this release has no append")
    def test_append_and_several_at_once(self):
        for part in ("ab", "", "c"):
            self.store.append("log", part)
        self.assertEqual(self.store.get("log"), b"abc")
        keys = [f"m{i}" for i in range(500)]
        self.store.multi_set(keys, [k * 3 for k in keys])
        self.assertEqual(self.store.multi_get(keys), [(k * 3).encode() for k in keys])
        waiter = connect(self.server.port)
        in_threads(2, lambda i: self.store.multi_set(["late"], ["x"]) if i else waiter.wait(["late"]))

    @unittest.skipUnless(has("queue_push"), "this release has no queues")
    def test_queues(self):
        for value in ("1", "", "3"):
            self.store.queue_push("q", value)
        self.assertEqual(self.store.queue_len("q"), 3)
        self.assertEqual([self.store.queue_pop("q") for _ in range(3)], [b"1", b"", b"3"])
        with self.assertRaises(Exception):
            self.store.queue_pop("q", False)
        self.assertEqual((self.store.queue_len("q"), self.store.num_keys()), (0, 0))
        taken = []
        clients = [connect(self.server.port) for _ in range(8)]

        def work(index):
            if index < 8:
                taken.append(clients[index].queue_pop("q2"))
            else:
                for i in range(8):
                    self.store.queue_push("q2", str(i))

        in_threads(9, work)
        self.assertEqual(sorted(taken), [b"%d" % i for i in range(8)])

    @unittest.skipUnless(has("list_keys"), "this release has no list_keys")
    def test_list_keys(self):
        self.assertEqual(self.store.list_keys(), [])
        connect(self.server.port, world_size=1)
        for i in range(100):
            self.store.set(f"k{i}", "")
        self.assertEqual(sorted(self.store.list_keys()), sorted(f"k{i}" for i in range(100)))

    @unittest.skipUnless(has("barrier"), "this release has no barrier")
    def test_barrier(self):
        clients = [connect(self.server.port) for _ in range(6)]
        in_threads(6, lambda i: clients[i].barrier("b", 6, LIMIT))
        with self.assertRaises(RuntimeError):
            self.store.barrier("b2", 2, SOON)
        self.assertEqual((self.store.get("b"), self.store.get("b2")), (b"6", b"1"))

    @unittest.skipUnless(has("clone"), "this release has no clone")
    def test_clone(self):
        other = self.store.clone()
        in_threads(2, lambda i: self.store.get("late") if i else other.set("late", "x"))
        self.assertEqual(other.num_keys(), 1)


class OurClient(unittest.TestCase):
    """Our client, PyTorch's server (each that this release has)."""

    def serve(self, **options):
        return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=LIMIT, wait_for_workers=False, **options)

    def servers(self):
        yield self.serve()
        try:
            yield self.serve(use_libuv=False)
        except TypeError:
            pass

    def call(self, port, *words, status=0):
        done = subprocess.run([COMM_STORE, "--store", f"tcp://127.0.0.1:{port}", "--timeout", "20000", *words],
                              capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout

    def test_every_call(self):
        for theirs in self.servers():
            uv = getattr(theirs, "libuvBackend", False)
            lacking = [] if uv and VERSION >= (2, 8) else ["queues"]
            lacking += [] if has("list_keys") else ["list_keys"]
            before = theirs.num_keys()
            done = subprocess.run([FOREIGN, f"tcp://127.0.0.1:{theirs.port}", *lacking], capture_output=True, text=True,
                                  timeout=100)
            self.assertEqual((done.returncode, theirs.num_keys()), (0, before), done.stdout + done.stderr)

    def test_they_see_what_we_set_and_we_what_they_set(self):
        for theirs in self.servers():
            theirs.set("from them", b"hello")
            self.assertEqual(self.call(theirs.port, "get", "from them"), b"hello")
            self.call(theirs.port, "set", "from us", "hi")
            self.assertEqual(theirs.get("from us"), b"hi")
            self.assertEqual((theirs.add("n", 3), self.call(theirs.port, "add", "n", "4"), theirs.add("n", 0)),
                             (3, b"7\n", 7))
            self.assertEqual(dist.PrefixStore("p", theirs).add("n", 1), 1)
            self.assertEqual(self.call(theirs.port, "get", "p/n"), b"1")
            self.call(theirs.port, "delete", "from them")
            self.call(theirs.port, "delete", "from them", status=4)
            in_threads(2, lambda i: self.call(theirs.port, "wait", "late") if i else theirs.set("late", "x"))
            in_threads(2, lambda i: theirs.wait(["later"]) if i else self.call(theirs.port, "set", "later", "x"))


def rank_main(rank, size, how, port):
    """One rank of a Gloo world whose store is our server."""
    if how == "agent":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size),
                          TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
        dist.init_process_group("gloo", timeout=LIMIT)
    else:
        dist.init_process_group("gloo", store=dist.PrefixStore("job", connect(port)), rank=rank, world_size=size,
                                timeout=LIMIT)
    tensor = torch.arange(1000, dtype=torch.float64) * (rank + 1)
    dist.all_reduce(tensor)
    expected = torch.arange(1000, dtype=torch.float64) * (size * (size + 1) // 2)
    assert torch.equal(tensor, expected), "all_reduce is wrong"
    group = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        number = torch.tensor([rank])
        dist.broadcast(number, src=size - 1, group=group)
        assert number.item() == size - 1
    dist.barrier()
    dist.destroy_process_group()


class Gloo(unittest.TestCase):
    """PyTorch's process groups come together over our server."""

    def run_ranks(self, size, how):
        server = Server()
        ranks = [subprocess.Popen([sys.executable, __file__, COMM_STORE, FOREIGN, "--rank", str(rank), str(size), how,
                                   str(server.port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
                 for rank in range(size)]
        try:
            for rank in ranks:
                out, _ = rank.communicate(timeout=100)
                self.assertEqual(rank.returncode, 0, out)
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
            self.assertEqual(server.close(), 0)

    def test_two_ranks_with_a_store_object(self):
        self.run_ranks(2, "object")

    def test_three_ranks_as_under_torchrun(self):
        self.run_ranks(3, "agent")


if __name__ == "__main__":
    if sys.argv[3:4] == ["--rank"]:
        rank_main(int(sys.argv[4]), int(sys.argv[5]), sys.argv[6], int(sys.argv[7]))
        sys.exit(0)
    print("PyTorch", torch.__version__, flush=True)
    sys.argv[1:3] = []
    result = unittest.main(verbosity=2, exit=False).result
    for test, reason in result.skipped:
        print(f"skipped in part: {test.id()}: {reason}", flush=True)
    sys.exit(not result.wasSuccessful())
