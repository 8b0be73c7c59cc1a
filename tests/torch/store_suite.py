"""PyTorch's own test_store.py with comm-store as the server: store_suite.py COMM-STORE FOLDER

Wherever a test makes a TCPStore that serves, `comm-store serve` serves instead, and PyTorch's client is connected to
it; where the server does not start, the error has PyTorch's words before the server's. What fails is compared with a
control run over PyTorch's own server: nothing may fail only with ours.

The file is no part of PyTorch's packages. It comes from Debian's source package of the same release, or else of the
newest one, through apt (kept in FOLDER); or it is the one that TORCH_LIBCOMM_TEST_STORE names. Skips (77) and says why
where there is none.
"""
import concurrent.futures
import datetime
import importlib.util
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tarfile
import time
import unittest

import torch
import torch.distributed as dist

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split("a")[0].split(".")[:2])
SOURCES = "http://deb.debian.org/debian"
# The distribution of Debian that has a release's sources.
SUITE = "bookworm" if VERSION < (2, 0) else "trixie"
FILE = "test/distributed/test_store.py"
# Its client asks DNS for a name that is nowhere, within a time limit: no server takes part.
WITHOUT_SERVER = {"test_dns_timeout"}


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def fetch(folder):
    """Through apt, with lists of its own: those of the machine stay as they are, and need not name sources."""
    target = folder / FILE
    if target.exists():
        return target
    for name in ("lists/partial", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"deb-src {SOURCES} {SUITE} main\n")
    (folder / "apt.conf").write_text("".join(f'{name} "{folder}/{path}";\n' for name, path in (
        ("Dir::Etc::sourcelist", "sources.list"), ("Dir::Etc::sourceparts", "none"), ("Dir::State::Lists", "lists"),
        ("Dir::Cache", "cache"))) + 'APT::Sandbox::User "";\n')
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    for command in (["update"], ["--tar-only", "--download-only", "source", "pytorch"]):
        try:
            subprocess.run(["apt-get", "-q", *command], cwd=folder, env=environment, check=True, timeout=300,
                           stdout=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            skip(f"no sources of PyTorch: {error}")
    with tarfile.open(next(folder.glob("*.orig.tar.*"))) as archive:
        for member in archive:
            if member.name.endswith("/" + FILE):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())
                return target
    skip(f"Debian's sources of PyTorch have no {FILE}")


def await_workers(port, count, timeout):
    """As PyTorch's server does, when its own client has joined. A client cannot ask for that key: it takes VALIDATE,
    then ADD of 0 (docs/store_protocol.md)."""
    deadline = time.monotonic() + timeout.total_seconds()
    with socket.create_connection(("localhost", port)) as connection:
        connection.sendall(struct.pack("<BI", 0, 0x3C85F7CE))
        while True:
            connection.sendall(struct.pack("<BQ5sq", 4, 5, b"init/", 0))
            joined = struct.unpack("<q", connection.recv(8, socket.MSG_WAITALL))[0]
            if joined >= count:
                return
            if time.monotonic() > deadline:
                raise getattr(dist, "DistStoreError", RuntimeError)(
                    f"Timed out after {int(timeout.total_seconds())} seconds waiting for clients. "
                    f"{joined}/{count} clients joined.")
            time.sleep(0.01)


def serve_by(comm_store):
    """Put comm-store in the place of PyTorch's server. The servers of several stores of one port in a process are one
    where the test asks for that (multi_tenant)."""
    connect, servers = dist.TCPStore.__init__, {}

    def init(self, host_name, port=0, world_size=None, is_master=False, timeout=datetime.timedelta(seconds=300),
             wait_for_workers=True, multi_tenant=False, master_listen_fd=None, **newer):
        if master_listen_fd is not None and newer.get("use_libuv"):  # PyTorch refuses that, whichever server it is
            return connect(self, host_name, port, world_size, is_master, timeout, wait_for_workers, multi_tenant,
                           master_listen_fd, **newer)
        if is_master and not (multi_tenant and port in servers):
            given = master_listen_fd is not None
            place = ["--listen-fd", str(master_listen_fd)] if given else ["--port", str(port)]
            server = subprocess.Popen([comm_store, "serve", *place], text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, pass_fds=[master_listen_fd] if given else [])
            line = server.stdout.readline()
            if not line:
                raise getattr(dist, "DistNetworkError", RuntimeError)(
                    f"The server socket has failed to listen on any local network address. {server.stderr.read()}")
            port = int(line.rsplit(":", 1)[1])
            servers[port] = server
        connect(self, host_name, port, world_size, False, timeout, wait_for_workers, **newer)
        if is_master and wait_for_workers and world_size:
            await_workers(port, world_size, timeout)

    dist.TCPStore.__init__ = init
    return servers


def run(file, comm_store):
    """The tests' results by name: "ok", "failed" or "skipped"."""
    spec = importlib.util.spec_from_file_location("test_store", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_store"] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        skip(f"{file} cannot be imported: {error}")
    servers = serve_by(comm_store) if comm_store else {}
    suite = unittest.TestSuite(unittest.TestLoader().loadTestsFromTestCase(case) for case in vars(module).values()
                               if isinstance(case, type) and issubclass(case, unittest.TestCase)
                               and case.__module__ == "test_store")
    names = [case.id() for group in suite for case in group]
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    for server in servers.values():
        server.kill()
    failed = {case.id() for case, _ in result.failures + result.errors}
    skipped = {case.id() for case, _ in result.skipped}
    for name in names:
        print("RESULT", name.partition(".")[2], "failed" if name in failed else "skipped" if name in skipped else "ok")


def results(file, server):
    done = subprocess.run([sys.executable, __file__, "--run", str(file), *server], stdout=subprocess.PIPE, text=True,
                          timeout=400)
    if done.returncode == 77:
        skip(done.stdout.rpartition("skipped: ")[2].strip())
    found = dict(line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("RESULT "))
    if not found:
        sys.exit(f"no results: exit status {done.returncode}")
    return found


def main(comm_store, folder):
    file = os.environ.get("TORCH_LIBCOMM_TEST_STORE") or fetch(pathlib.Path(folder).absolute() / SUITE)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ours, control = pool.map(results, [file] * 2, [[comm_store], []])
    count = lambda found: list(found.values()).count("ok")
    print(f"PyTorch {torch.__version__}, {file}: {count(ours)} of {len(ours)} pass with our server, {count(control)} "
          f"with PyTorch's")
    bad = [name for name in ours if ours[name] == "failed" and control[name] != "failed"
           and name.rpartition(".")[2] not in WITHOUT_SERVER]
    for name in bad:
        print(f"{name} passes only with PyTorch's server")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    else:
        main(*sys.argv[1:])
