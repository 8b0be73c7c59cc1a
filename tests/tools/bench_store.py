#!/usr/bin/env python3
"""`comm-bench store`: every row is there, of both servers, and the replies were right: bench_store.py COMM-BENCH. The
figures themselves are not judged."""
import subprocess
import sys
import unittest

COMM_BENCH = sys.argv[1]
HEADER = "op,server,work,clients,ops_per_s,p50_us,p99_us,server_us"
WORKS = [("set", 3), ("get", 3), ("add", 3), ("wait", 3), ("mix", 3), ("wake", 1), ("wake", 40)]
QUICK = ["--clients", "3", "--ops", "200", "--keys", "20", "--waiters", "1,40"]


def run(*words):
    done = subprocess.run([COMM_BENCH, "store", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=100)
    return done.returncode, done.stdout, done.stderr


def has_pytorch():
    try:
        return subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed as d; d.TCPStore"],
                              capture_output=True).returncode == 0
    except OSError:
        return False


class BenchStore(unittest.TestCase):
    def check(self, servers, *words):
        status, out, err = run("--csv", *QUICK, *words)
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        self.assertEqual(lines[0], HEADER)
        rows = [line.split(",") for line in lines[1:]]
        self.assertEqual([(r[1], r[2], int(r[3])) for r in rows], [(s, *work) for work in WORKS for s in servers])
        for row in rows:
            self.assertEqual((row[0], len(row)), ("store", 8))
            rate, p50, p99, server = map(float, row[4:])
            self.assertTrue(rate > 0 and 0 < p50 <= p99 and server >= 0, row)

    def test_ours(self):
        self.check(["libcomm"])

    @unittest.skipUnless(has_pytorch(), "/usr/bin/python3 has no PyTorch")
    def test_beside_pytorch(self):
        self.check(["libcomm", "pytorch"], "--peer", "pytorch")

    def test_values_of_other_sizes(self):
        for size in ("0", "100000"):
            self.check(["libcomm"], "--value-bytes", size)

    def test_a_table(self):
        status, out, err = run(*QUICK)
        self.assertEqual((status, err, len(out.splitlines())), (0, "", 1 + len(WORKS)))

    def test_a_peer_that_is_not_there(self):
        status, _, err = run(*QUICK, "--peer", "pytorch:/no/such/python")
        self.assertEqual(status, 3)
        self.assertIn("PyTorch's server did not start", err)
        status, _, err = run("--peer", "redis")
        self.assertNotEqual(status, 0)
        self.assertIn("'redis'", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
