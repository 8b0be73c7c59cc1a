"""PyTorch's own distributed_test.py over libcomm: distributed_suite.py [--gloo] [TEST...]

The tests that PyTorch runs for Gloo, with libcomm where they say "gloo": its name is given to our creator, and the
profiler's spans are looked for under ours. --gloo leaves Gloo in its place, to compare. Each test runs in processes of
its own, WORLD_SIZE of them (3). Tests that need GPUs skip by themselves.
"""
import os
import sys
import tempfile
import unittest

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

# Why a test does not pass, and is not meant to.
KNOWN = {}


def replace_gloo():
    import torch_libcomm
    torch_libcomm.register()
    dist.Backend._plugins["GLOO"] = dist.Backend._plugins["LIBCOMM"]

    class Options:
        """Older releases do not look for Gloo there: they make its group by themselves, with these arguments."""

        def __init__(self, store, rank, size, timeout):
            self.store, self.group_rank, self.group_size, self.timeout = store, rank, size, timeout
            self.group_id, self.global_ranks_in_group = "gloo", []

    def create(store, rank, size, timeout=None):
        return torch_libcomm.create(Options(store, rank, size, timeout))

    distributed_c10d.ProcessGroupGloo = create


def make_cases(ours):
    from torch.testing._internal.distributed import distributed_test
    if ours:
        find = distributed_test.get_profiling_event
        distributed_test.get_profiling_event = lambda name, *arguments, **options: find(
            name.replace("gloo:", "libcomm:"), *arguments, **options)

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Suite.__module__, Suite.__qualname__ = "__main__", "Suite"
    return Suite


def main():
    arguments = sys.argv[1:]
    ours = "--gloo" not in arguments
    chosen = [argument for argument in arguments if argument != "--gloo"]
    torch.set_num_threads(1)
    if ours:
        replace_gloo()
    suite = make_cases(ours)
    names = chosen or [name for name in unittest.TestLoader().getTestCaseNames(suite)]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(suite(name) for name in names))
    failed = {case.id().rpartition(".")[2] for case, _ in result.failures + result.errors}
    unexpected = failed - set(KNOWN)
    passed = result.testsRun - len(failed) - len(result.skipped)
    print(f"PyTorch {torch.__version__}, {'libcomm' if ours else 'Gloo'}, {os.environ['WORLD_SIZE']} ranks: "
          f"{passed} passed, {len(result.skipped)} skipped, failed: {sorted(failed)}")
    sys.exit(1 if ours and unexpected else 0)


if __name__ == "__main__":
    main()
