"""comm-bench with buffers on a device, on the stand-in: comm_bench_gpu.py COMM-BENCH PLUGIN-FOLDER STANDIN-FOLDER"""
import csv
import os
import pathlib
import subprocess
import sys
import unittest

COMM_BENCH, PLUGINS, STANDIN = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
ON_STANDIN = {**os.environ, "COMM_PLUGIN_PATH": PLUGINS, "COMM_NCCL_CUDART": str(STANDIN / "libstandin_cudart.so"),
              "COMM_NCCL_LIBRARY": str(STANDIN / "libstandin_nccl_22809.so")}
SHORT = ["--repeats", "1", "--iterations", "4", "--csv"]
OPS = 10


def bench(*words, **more):
    return subprocess.run([COMM_BENCH, *words, *SHORT], env={**ON_STANDIN, **more}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)


class Devices(unittest.TestCase):
    def rows(self, *words, **more):
        done = bench(*words, **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = list(csv.DictReader(done.stdout.splitlines()))
        self.assertEqual({row["errors"] for row in rows}, {"0"})
        return rows

    def test_every_operation_blocking_asynchronous_on_a_stream_and_captured(self):
        for how in ([], ["--async", "3"], ["--on-stream"], ["--captured"]):
            rows = self.rows("all", "-n", "2", "--backend", "cuda:nccl", "--bytes", "8,20K", *how)
            self.assertEqual(len(rows), 2 * OPS - 1)
            self.assertEqual({row["backend"] for row in rows}, {"cuda:nccl"})

    def test_in_place_and_out_of_place(self):
        for how in ("--in-place", "--out-of-place"):
            self.rows("all_gather,all_reduce,reduce_scatter", "-n", "3", "--backend", "cuda:nccl", "--bytes", "1K", how)

    def test_one_device_of_several(self):
        mixed = ["all_reduce", "--backend", "cpu:tcp,cuda:nccl", "--bytes", "64"]
        for ranks, device in ((2, "cuda"), (1, "cuda:1"), (2, "cpu")):
            rows = self.rows(*mixed, "-n", str(ranks), "--device", device)
            self.assertEqual(rows[0]["backend"], "cpu:tcp,cuda:nccl")
        self.assertIn("say in options->device", bench(*mixed, "-n", "2").stderr)

    def test_what_cannot_be(self):
        for words, expected in ((["--backend", "cpu:tcp", "--on-stream"], "not on a device with streams"),
                                (["--backend", "cpu:tcp", "--captured"], "--captured: the buffers are not on a device"),
                                (["--backend", "cuda:nccl", "--captured", "--async", "2"], "give one"),
                                (["--backend", "cuda:nccl", "--on-stream", "--async", "2"], "give one"),
                                (["--device", "abacus"], "abacus")):
            done = bench("all_reduce", "-n", "2", "--bytes", "8", *words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(expected, done.stderr)
        done = bench("all_reduce", "-n", "2", "--bytes", "8", "--backend", "cuda:nccl", COMM_NCCL_CUDART="/no/such.so")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the CUDA runtime is missing: /no/such.so", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
