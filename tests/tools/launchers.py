#!/usr/bin/env python3
"""Ranks find their place and each other under real launchers, and under simulated ones.
launchers.py COMMRUN PLACE WORLDS
"""
import glob
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

COMMRUN, PLACE, WORLDS = sys.argv[1:4]
LIMIT_S = 60
BARE = {name: value for name, value in os.environ.items()
        if name in ("PATH", "LD_LIBRARY_PATH") or name.endswith("SAN_OPTIONS")}


def free_port():
    """Not one that the kernel gives to other tests' connections before the launcher listens there."""
    first_ephemeral = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10000, max(first_ephemeral, 10100))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def output(command, env):
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, sorted(done.stdout.split("\n")), done.stderr


def worlds(size):
    """What WORLDS prints on all ranks."""
    return ["", *(f"rank {r} of {size}: 4 worlds" for r in range(size))]


def together(environments, program=PLACE):
    """One process per environment; their outputs, in order."""
    ranks = [subprocess.Popen([program], env={**BARE, **e}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for e in environments]
    try:
        return [(*rank.communicate(timeout=LIMIT_S), rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


class Launchers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.env = {**BARE, "HOME": os.environ.get("HOME", "/"), "TMPDIR": self.folder.name}
        self.addCleanup(self.folder.cleanup)

    def assert_no_meeting_file_left(self):
        self.assertEqual(glob.glob(self.folder.name + "/libcomm-*"), [])

    def mpirun(self, program, options, name):
        if not shutil.which(program):
            self.skipTest(f"{program} is not installed")
        status, out, err = output([program, *options, "-n", "3", PLACE], self.env)
        self.assertEqual((status, out), (0, ["", f"{name} 0/3", f"{name} 1/3", f"{name} 2/3"]), err)
        self.assert_no_meeting_file_left()
        # Open MPI itself has something to say where there is no /sys, so its stderr may hold more than ours.
        status, out, err = output([program, *options, "-n", "3", WORLDS], self.env)
        self.assertEqual((status, out), (0, worlds(3)), err)
        self.assert_no_meeting_file_left()
        met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        status, out, err = output([program, *options, "-n", "3", WORLDS], {**self.env, **met})
        self.assertEqual((status, out), (0, worlds(3)), err)

    def test_open_mpi(self):
        self.mpirun("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe"], "openmpi")

    def test_mpich(self):
        self.mpirun("mpiexec.mpich", [], "mpich")

    def torchrun(self, *words):
        if not shutil.which("torchrun"):
            self.skipTest("torchrun is not installed")
        return output(["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()),
                       # Values 0 and 3 crash torchrun 1.13 under Python 3.11.
                       "--redirects", "2", "--tee", "2", "--log_dir", self.folder.name, *words], self.env)

    def test_torchrun(self):
        status, out, err = self.torchrun("--no_python", PLACE)
        self.assertEqual((status, [line for line in out if "/" in line]), (0, ["torchrun 0/2", "torchrun 1/2"]), err)

    def test_worlds_under_torchrun_also_after_a_restart(self):
        status, out, err = self.torchrun("--max_restarts", "1", "--monitor_interval", "0.1", "--no_python", WORLDS,
                                         "fail-first")
        self.assertEqual((status, [line for line in out if "worlds" in line]), (0, worlds(2)[1:]), err)

    def test_commrun(self):
        status, out, err = output([COMMRUN, "-n", "3", "--no-prefix", PLACE], self.env)
        self.assertEqual((status, out), (0, ["", "commrun 0/3", "commrun 1/3", "commrun 2/3"]), err)

    def test_worlds_under_commrun(self):
        status, out, err = output([COMMRUN, "-n", "3", "--no-prefix", WORLDS], self.env)
        self.assertEqual((status, out, err), (0, worlds(3), ""))

    def test_pytorch_under_commrun(self):
        python = "/usr/bin/python3"
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
            self.skipTest("PyTorch is not installed")
        program = ("import torch, torch.distributed as d; d.init_process_group('gloo'); "
                   "x = torch.ones(1) + d.get_rank(); d.all_reduce(x); print(x.item())")
        status, out, err = output([COMMRUN, "-n", "2", "--no-prefix", python, "-c", program], self.env)
        self.assertEqual((status, out), (0, ["", "3.0", "3.0"]), err)

    def slurm(self, rank, **more):
        return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0",
                "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "TMPDIR": self.folder.name, **more}

    def test_srun_on_one_host(self):
        ranks = together([self.slurm(r, SLURM_STEP_NUM_NODES="1") for r in range(3)])
        self.assertEqual(ranks, [(f"slurm {r}/3\n", "", 0) for r in range(3)])
        self.assert_no_meeting_file_left()

    def test_worlds_under_srun(self):
        ranks = together([self.slurm(r, SLURM_STEP_NUM_NODES="1") for r in range(3)], WORLDS)
        self.assertEqual(ranks, [(line + "\n", "", 0) for line in worlds(3)[1:]])
        self.assert_no_meeting_file_left()

    def test_srun_on_several_hosts_meets_on_the_first(self):
        ranks = together([self.slurm(r, SLURM_STEP_NUM_NODES="2", SLURM_STEP_NODELIST="localhost,elsewhere")
                          for r in range(3)])
        self.assertEqual(ranks, [(f"slurm {r}/3\n", "", 0) for r in range(3)])

    def test_a_stale_meeting_file_is_passed_over(self):
        # A job of the same name leaves a file with a port without a listener: rank 1 comes before rank 0.
        lone = self.slurm(1, SLURM_STEP_NUM_NODES="1")
        late = subprocess.Popen([PLACE], env={**BARE, **self.slurm(0, SLURM_STEP_NUM_NODES="1")},
                                stdout=subprocess.PIPE)
        try:
            name = None
            while not name and late.poll() is None:
                name = next(iter(glob.glob(self.folder.name + "/libcomm-*-0")), None)
        finally:
            late.kill()
            late.wait()
            late.stdout.close()
        self.assertTrue(name and os.path.exists(name))
        ranks = together([lone, self.slurm(2, SLURM_STEP_NUM_NODES="1"), self.slurm(0, SLURM_STEP_NUM_NODES="1")])
        self.assertEqual([r[2] for r in ranks], [0, 0, 0], ranks)
        self.assert_no_meeting_file_left()

    def test_mpirun_on_several_hosts_asks_for_master_addr(self):
        (_, err, status), = together([{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}])
        self.assertEqual(status, 1)
        self.assertIn("set MASTER_ADDR", err)

    def test_plain_variables(self):
        port = str(free_port())
        ranks = together([{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                          for r in range(2)])
        self.assertEqual(ranks, [(f"env {r}/2\n", "", 0) for r in range(2)])
        ranks = together([{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
                          for r in range(2)], WORLDS)
        self.assertEqual(ranks, [(line + "\n", "", 0) for line in worlds(2)[1:]])

    def test_without_a_launcher_the_error_says_how(self):
        (_, err, status), = together([{}])
        self.assertEqual(status, 1)
        self.assertIn("commrun -n 4", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
