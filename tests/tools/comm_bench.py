#!/usr/bin/env python3
"""comm-bench's command line and output: comm_bench.py COMM-BENCH COMMRUN. That it measures well, no test can say."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

COMM_BENCH, COMMRUN = sys.argv[1:3]
LIMIT_S = 60
BARE = {name: value for name, value in os.environ.items()
        if name in ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR") or name.endswith("SAN_OPTIONS")}
HEADER = "op,backend,ranks,bytes,mean_us,median_us,p99_us,algbw_GBps,busbw_GBps,errors"
OPS = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
       "barrier", "pingpong"]
QUICK = ["--iterations", "3", "--repeats", "2"]


def run(*words, launcher=(), env=None):
    done = subprocess.run([*launcher, COMM_BENCH, *words], env={**BARE, **(env or {})}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def bus_factor(op, ranks):
    """As nccl-tests defines it."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter") else 1


class Bench(unittest.TestCase):
    def rows(self, *words, **options):
        """The rows of a run that goes well, as lists of texts."""
        status, out, err = run(*words, "--csv", *QUICK, **options)
        self.assertEqual((status, err), (0, ""), out)
        lines = out.splitlines()
        self.assertEqual(lines[0], HEADER)
        rows = [line.split(",") for line in lines[1:]]
        for row in rows:
            self.assertEqual(len(row), 10)
            self.assertGreater(float(row[4]), 0)
            self.assertGreater(float(row[5]), 0)
            self.assertEqual(row[9], "0")
        return rows

    def refused(self, words, said, status=2, **options):
        got, out, err = run(*words, **options)
        self.assertEqual(got, status, out + err)
        self.assertIn(said, err)
        self.assertEqual(err.count(said), 1, err)
        self.assertNotIn(HEADER, out)


class Output(Bench):
    def test_groups(self):
        """Three kinds of groups, which no store is asked for; with few of them, the figures mean nothing."""
        for launcher, words in ((), ("-n", "3")), ((COMMRUN, "-n", "2", "--"), ()):
            status, out, err = run("groups", "--groups", "20", "--csv", *words, launcher=launcher)
            self.assertEqual((status, err), (0, ""), out)
            rows = [line.split("groups,", 1)[1].split(",") for line in out.splitlines()]
            self.assertEqual([row[0] for row in rows], ["kind", "dup", "create", "split"])
            for row in rows[1:]:
                self.assertEqual(row[2], "20")
                self.assertTrue(all(float(us) > 0 for us in row[3:7]), row)
                self.assertEqual(row[7:], ["0", "0"])
        self.refused(["groups", "--groups", "0"], "--groups")

    def test_core(self):
        """A call of every kind, on every number of threads; and one row alone."""
        words = ["core", "--csv", "--iterations", "100", "--repeats", "3"]
        status, out, err = run(*words)
        self.assertEqual((status, err), (0, ""), out)
        rows = [line.split(",") for line in out.splitlines()]
        self.assertEqual(rows[0], "backend,call,threads,groups,hooks,ns,cpu_ns,least_ns,most_ns".split(","))
        self.assertEqual([row[:5] for row in rows[1:]],
                         [[backend, call, *layout, hooks] for backend in ("null", "null-run")
                          for call in ("blocking", "async") for layout in ("11", "44", "41")
                          for hooks in ("off", "on")])
        for row in rows[1:]:
            ns, _, least, most = map(float, row[5:])
            self.assertTrue(0 < least <= ns <= most, row)
        status, out, err = run(*words, "--only", "null,async,4,4,on")
        self.assertEqual((status, err, len(out.splitlines())), (0, "", 2))

    def test_csv_of_every_operation(self):
        rows = self.rows("all", "-n", "4", "--bytes", "64,16K")
        self.assertEqual([row[:4] for row in rows],
                         [[op, "cpu:shm", "4", size] for op in OPS
                          for size in (["0"] if op == "barrier" else ["64", "16384"])])
        for op, _, ranks, size, mean, _, _, algbw, busbw, _ in rows:
            self.assertAlmostEqual(float(algbw), int(size) / float(mean) / 1e3, delta=float(algbw) * 0.02 + 1e-4)
            self.assertAlmostEqual(float(busbw), float(algbw) * bus_factor(op, int(ranks)),
                                   delta=float(busbw) * 0.02 + 1e-4)

    def test_each_operation_by_its_name(self):
        for op in OPS:
            self.assertEqual([row[0] for row in self.rows(op, "-n", "2", "--bytes", "8")], [op])

    def test_sizes(self):
        def sizes(*words):
            return [int(row[3]) for row in self.rows("all_reduce", "-n", "2", *words)]
        self.assertEqual(sizes("--bytes", "8:2K"), [8, 32, 128, 512, 2048])
        self.assertEqual(sizes("--bytes", "8:100", "--factor", "2"), [8, 16, 32, 64, 100])
        self.assertEqual(sizes("--bytes", "8,1024,4k"), [8, 1024, 4096])
        self.assertEqual(sizes("--bytes", "8,1K:8K"), [8, 1024, 4096, 8192])

    def test_json(self):
        status, out, err = run("all_reduce,barrier", "-n", "3", "--bytes", "1K", "--json", "--dtype", "i32", "--redop",
                               "max", *QUICK)
        self.assertEqual((status, err), (0, ""))
        told = json.loads(out)
        self.assertEqual((told["dtype"], told["redop"]), ("i32", "max"))
        self.assertEqual([(r["op"], r["backend"], r["ranks"], r["bytes"], r["errors"]) for r in told["rows"]],
                         [("all_reduce", "cpu:shm", 3, 1024, 0), ("barrier", "cpu:shm", 3, 0, 0)])
        for row in told["rows"]:
            self.assertLessEqual(row["least_us"], row["mean_us"])
            self.assertLessEqual(row["mean_us"], row["most_us"])
            self.assertLessEqual(row["median_us"], row["p99_us"])
            self.assertLess(set(HEADER.split(",")) - {"errors"}, set(row))

    def test_table(self):
        status, out, err = run("all_reduce", "-n", "2", "--bytes", "64K", *QUICK)
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        self.assertRegex(lines[0],
                         r"^op +backend +ranks +bytes +mean us +median us +p99 us +alg GB/s +bus GB/s +errors$")
        self.assertRegex(lines[1], r"^all_reduce +cpu:shm +2 +64K +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +0$")
        self.assertEqual(len(lines), 2)

    def test_roofline(self):
        """What memory does at best, of both kinds of buffers, behind the usual columns; a barrier has none."""
        behind = "copy_GBps,of_copy,update_GBps,of_update"
        for words in ([], ["--registered"], ["--registered", "--backend", "cpu:tcp"]):
            status, out, err = run("all_reduce,all_gather,barrier", "-n", "2", "--bytes", "10,1M", "--roofline",
                                   "--csv", *QUICK, *words)
            self.assertEqual((status, err), (0, ""), out)
            lines = [line.split(",") for line in out.splitlines()]
            self.assertEqual(",".join(lines[0]), f"{HEADER},{behind}")
            self.assertEqual([row[0] for row in lines[1:]], ["all_reduce"] * 2 + ["all_gather"] * 2 + ["barrier"])
            for row in lines[1:-1]:
                algbw, copy, of_copy, update, of_update = (float(row[i]) for i in (7, 10, 11, 12, 13))
                self.assertTrue(copy > 0 and update > 0, row)
                self.assertAlmostEqual(of_copy, algbw / copy, delta=of_copy * 0.02 + 2e-2)
                self.assertAlmostEqual(of_update, algbw / update, delta=of_update * 0.02 + 2e-2)
            self.assertEqual([float(value) for value in lines[-1][10:]], [0] * 4)
        status, out, err = run("all_reduce", "-n", "2", "--bytes", "64K", "--roofline", *QUICK)
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"errors +copy GB/s +of it +update GB/s +of it\nall_reduce .* 0( +[\d.]+ +\d+ %){2}\n$")
        status, out, err = run("all_reduce", "-n", "1", "--bytes", "64K", "--roofline", "--json", *QUICK)
        self.assertEqual((status, err), (0, ""))
        self.assertLess(set(behind.split(",")), set(json.loads(out)["rows"][0]))

    def test_distance(self):
        """Of the cores of ranks 0 and 1, before and after each row."""
        for ranks, words in (2, []), (3, []), (1, []), (2, ["--roofline"]):
            with tempfile.NamedTemporaryFile() as file:
                status, out, err = run("all_reduce,barrier", "-n", str(ranks), "--bytes", "8,1K", "--csv", "--distance",
                                       file.name, *QUICK, *words)
            self.assertEqual((status, err), (0, ""), out)
            rows = [line.split(",") for line in out.splitlines()]
            self.assertEqual(rows[0][:12], [*HEADER.split(","), "before_ns", "after_ns"])
            self.assertEqual(len(rows), 4)
            for row in rows[1:]:
                self.assertTrue(all((float(ns) > 0) == (ranks > 1) for ns in row[10:12]), row)
        with tempfile.NamedTemporaryFile() as file:
            status, out, err = run("all_reduce", "-n", "2", "--bytes", "8", "--json", "--distance", file.name, *QUICK)
        self.assertLess({"before_ns", "after_ns"}, set(json.loads(out)["rows"][0]))
        status, out, err = run("all_reduce", "-n", "2", "--bytes", "8", "--distance", "/nowhere/file", *QUICK)
        self.assertEqual(status, 2)
        self.assertIn("--distance: /nowhere/file: No such file", err)

    def test_many_in_flight(self):
        for op in OPS:
            with self.subTest(op):
                self.assertEqual(len(self.rows(op, "-n", "2", "--bytes", "8,64K", "--async", "4")),
                                 1 if op == "barrier" else 2)

    def test_a_barrier_before_each(self):
        for op in OPS:
            with self.subTest(op):
                self.assertEqual(len(self.rows(op, "-n", "3", "--bytes", "8,64K", "--sync")),
                                 1 if op == "barrier" else 2)

    def test_computing_before_each(self):
        for op in OPS:
            with self.subTest(op):
                self.assertEqual(len(self.rows(op, "-n", "3", "--bytes", "8,64K", "--compute", "50")),
                                 1 if op == "barrier" else 2)
        begin = time.monotonic()
        status, out, err = run("barrier", "-n", "2", "--compute", "20000", "--iterations", "10", "--repeats", "1",
                               "--no-check", "--csv")
        self.assertEqual(status, 0, err)
        self.assertGreater(time.monotonic() - begin, 10 * 2 * 0.5 * 0.02)  # of the mean, and of single ones

    def test_computing_meanwhile(self):
        for op in OPS[:-1]:
            with self.subTest(op):
                self.assertEqual(len(self.rows(op, "-n", "3", "--bytes", "8,64K", "--overlap", "50")),
                                 1 if op == "barrier" else 2)
        begin = time.monotonic()
        status, out, err = run("barrier", "-n", "2", "--overlap", "20000", "--iterations", "10", "--repeats", "1",
                               "--no-check", "--csv")
        self.assertEqual(status, 0, err)
        self.assertGreater(time.monotonic() - begin, 10 * 2 * 0.02)

    def test_types_reductions_and_roots(self):
        for dtype in ("bf16", "f64", "u8", "bool", "c64"):
            self.rows("all_reduce,broadcast", "-n", "3", "--bytes", "100", "--dtype", dtype)
        for redop in ("avg", "product", "min", "premul_sum"):
            self.rows("all_reduce,reduce,reduce_scatter", "-n", "3", "--bytes", "1K", "--redop", redop)
        self.rows("broadcast,reduce,gather,scatter", "-n", "3", "--bytes", "1K", "--root", "2")
        self.rows("all", "-n", "3", "--bytes", "1K", "--in-place")
        self.rows("all", "-n", "3", "--bytes", "1K", "--out-of-place")

    def test_one_rank(self):
        self.assertEqual([row[0] for row in self.rows(",".join(OPS[:-1]), "-n", "1", "--bytes", "1K")], OPS[:-1])
        status, out, err = run("all", "-n", "1", "--bytes", "8", *QUICK)
        self.assertEqual((status, err, len(out.splitlines())),
                         (0, "comm-bench: pingpong needs 2 ranks (world of 1)\n", 10))

    def test_a_plot(self):
        if not shutil.which("gnuplot"):
            self.skipTest("gnuplot is not installed")
        with tempfile.TemporaryDirectory() as folder:
            for ending, begins in ("png", b"\x89PNG"), ("svg", b"<?xml"):
                plot = f"{folder}/it's {ending}.{ending}"
                self.rows("all_reduce,barrier", "-n", "2", "--bytes", "8:4K", "--plot", plot)
                with open(plot, "rb") as file:
                    self.assertEqual(file.read(len(begins)), begins)


class Tuning(Bench):
    def test_its_rules_are_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            rules = f"{folder}/rules"
            for words in ([], ["--backend", "CPU:auto"], ["--backend", "SHM"], ["--backend", "cpu:shm"]):
                named = words and "auto" not in words[1]
                status, out, err = run("--tune", "all_reduce,barrier,pingpong", "-n", "2", "--bytes", "256K,8,64K",
                                       "-o", rules, *QUICK, *words)
                self.assertEqual((status, out), (0, ""), err)
                for backend in ("shm",) if named else ("shm", "tcp"):
                    self.assertRegex(err, rf"(?m)^comm-bench: {backend} all_reduce 65536 B: [\d.]+ us as it is, ")
                self.assertEqual("tcp" in err, not named)
                with open(rules) as file:
                    lines = file.read().splitlines()
                self.assertRegex("\n".join(lines), r"^# Rules for COMM_TUNING, by comm-bench --tune of libcomm \d")
                self.assertIn("# Measured with 2 ranks on 1 host: ", lines[1])
                for line in lines[3:]:
                    self.assertRegex(line, r"^(shm|tcp) ranks=2 hosts=1 (all_reduce|barrier):\w+(@\d*-\d*)?/\d+$")
                self.rows("all_reduce", "-n", "2", "--bytes", "8,64K,256K", env={"COMM_TUNING": rules})

    def test_it_keeps_the_old_rules_until_it_has_new_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            rules = f"{folder}/rules"
            with open(rules, "w") as file:
                file.write("# these\n")
            bench = subprocess.Popen([COMM_BENCH, "--tune", "-n", "2", "--backend", "cpu:shm", "-o", rules], env=BARE,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                self.assertIn("shm ", bench.stderr.readline())  # it measures
            finally:
                bench.send_signal(signal.SIGINT)
                bench.communicate(timeout=60)
            with open(rules) as file:
                self.assertEqual(file.read(), "# these\n")

    def test_what_it_cannot_do(self):
        self.refused(["--tune", "-n", "2", "--backend", "cpu:shm?lanes=2"], "name the backend without options")
        self.refused(["--tune", "pingpong", "-n", "2", "--backend", "cpu:shm"], "has no algorithms to choose from",
                     status=3)
        self.refused(["--tune", "-n", "2", "-o", "/no/such/folder/file", "--bytes", "8"], "No such file")
        self.refused(["--tune", "-n", "2", "--backend", "cpu:mine"], "there is no backend 'mine'", status=3)


class Launchers(Bench):
    def test_a_loopback_interface_that_is_down_is_named(self):
        inside = ["unshare", "--user", "--map-root-user", "--net"]
        if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
            self.skipTest("no network name spaces here")
        status, _, err = run("barrier", "-n", "2", *QUICK, launcher=inside)  # or it is tried again for minutes
        self.assertEqual(status, 1)
        self.assertIn("Network is unreachable: the loopback interface is down: `ip link set lo up`\n", err)

    def test_commrun(self):
        rows = self.rows("all_reduce", "--backend", "cpu:tcp", "--bytes", "8:1K",
                         launcher=[COMMRUN, "-n", "4", "--no-prefix"])
        self.assertEqual([row[:4] for row in rows],
                         [["all_reduce", "cpu:tcp", "4", size] for size in ("8", "32", "128", "512", "1024")])

    def test_mpirun(self):
        for mpirun in ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], ["mpiexec.mpich"]:
            if shutil.which(mpirun[0]):
                status, out, err = run("all_reduce", "--bytes", "8", "--csv", *QUICK, launcher=[*mpirun, "-n", "3"])
                self.assertEqual(status, 0, out + err)
                self.assertRegex(out, rf"^{HEADER}\nall_reduce,cpu:shm,3,8,[^\n]*,0\n$")

    def test_one_rank_complains_and_helps(self):
        launcher = [COMMRUN, "-n", "3", "--no-prefix"]
        for words, said in ((["all_reduce", "--bogus"], "unrecognized option"),
                            (["broadcast", "--root", "5"], "no such root"),
                            (["all_reduce", "--backend", "cpu:nosuch"], "there is no backend 'nosuch'")):
            status, _, err = run(*words, launcher=launcher)
            self.assertIn(status, (2, 3))
            self.assertEqual(err.split("commrun: ")[0].count(said), 1, err)
        for option, said in ("--help", "Usage:"), ("-?", "Usage:"), ("--usage", "Usage:"), ("--version", "\n"):
            status, out, err = run("all_reduce", option, launcher=launcher)
            self.assertEqual((status, out.count(said), err), (0, 1, ""), option)


class Refusals(Bench):
    def test_without_a_launcher(self):
        self.refused(["all_reduce"], "no launcher has started this process: give -n RANKS")

    def test_arguments(self):
        for words, said in ((["all_reduce", "-n", "0"], "'0' is not a number from 1"),
                            (["all_reduce", "-n", "two"], "'two' is not a number"),
                            (["-n", "2"], "which operation?"),
                            (["all_reduce", "broadcast", "-n", "2"], "unexpected argument 'broadcast'"),
                            (["all_redude", "-n", "2"], "there is no operation 'all_redude'"),
                            (["all_reduce,,barrier", "-n", "2"], "there is no operation ''"),
                            (["all_reduce", "-n", "2", "--bytes", "1T"], "'1T' is not a number of bytes"),
                            (["all_reduce", "-n", "2", "--bytes", "8,,9"], "'' is not a number of bytes"),
                            (["all_reduce", "-n", "2", "--bytes", "-8"], "'-8' is not a number of bytes"),
                            (["all_reduce", "-n", "2", "--bytes", "99999999999G"],
                             "'99999999999G' is not a number of bytes"),
                            (["all_reduce", "-n", "2", "--bytes", "1K:8"], "must go upwards"),
                            (["all_reduce", "-n", "2", "--factor", "1"], "--factor"),
                            (["all_reduce", "-n", "2", "--dtype", "f99"], "there is no dtype 'f99'"),
                            (["all_reduce", "-n", "2", "--redop", "plus"], "plus"),
                            (["all_reduce", "-n", "2", "--redop", "bxor"], "bxor does not reduce f32"),
                            (["all_reduce", "-n", "2", "--async", "0"], "--async"),
                            (["all_reduce", "-n", "2", "--async", "2", "--sync"], "--sync is for calls that wait"),
                            (["all_reduce", "-n", "2", "--compute", "0"], "--compute"),
                            (["all_reduce", "-n", "2", "--compute", "9", "--sync"], "--compute is for calls that wait"),
                            (["all_reduce", "-n", "2", "--async", "2", "--compute", "9"], "--compute is for calls"),
                            (["all_reduce", "-n", "2", "--overlap", "0"], "--overlap"),
                            (["all_reduce", "-n", "2", "--overlap", "9", "--sync"], "--overlap goes neither with"),
                            (["all_reduce", "-n", "2", "--overlap", "9", "--compute", "9"], "--overlap goes neither"),
                            (["pingpong", "-n", "2", "--overlap", "9"], "--overlap is for collectives: pingpong"),
                            (["all_reduce", "-n", "2", "--bind", "socket"], "'socket' is none of"),
                            (["all_reduce", "-n", "2", "--plot", "/tmp/a.bmp"], "must end with .png, .svg or .pdf"),
                            (["all_reduce", "-n", "2", "--plot", "/no/such/folder/a.png"], "cannot be written")):
            with self.subTest(words):
                self.refused(words, said)

    def test_what_the_world_cannot_do(self):
        for words, said, status in ((["pingpong", "-n", "1", "--bytes", "8"], "pingpong needs 2 ranks", 2),
                                    (["broadcast", "-n", "2", "--root", "2", "--bytes", "8"], "no such root", 2),
                                    (["all_reduce", "-n", "2", "--backend", "cpu:nosuch"],
                                     "there is no backend 'nosuch'", 3)):
            got, _, err = run(*words)
            self.assertEqual(got, status, err)
            self.assertIn(said, err)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([COMM_BENCH, "all_reduce", "-n", "2", "--bytes", "8", "--csv", *QUICK], env=BARE,
                                  stdout=full, stderr=subprocess.PIPE, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"could not be written", done.stderr)

    def test_help(self):
        status, out, err = run("--help")
        self.assertEqual((status, err), (0, ""))
        for word in (*OPS, "--bytes", "--async", "--plot", "--roofline", "store"):
            self.assertIn(word, re.sub(r"\s+", " ", out))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
