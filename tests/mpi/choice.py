"""Which variant of the mpi backend is taken, and what is said where none can be. choice.py COMM-INFO COMM-BENCH
COMMRUN PLUGINS
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import launch

COMM_INFO, COMM_BENCH, COMMRUN, PLUGINS = sys.argv[1:5]
BOTH = [name for name in ('mpich', 'openmpi') if pathlib.Path(PLUGINS, f'libcomm_mpi.{name}.so').exists() and
        shutil.which(launch.MPIRUN[name][0])]
LIMIT_S = 60


def run(*words, **more):
    environment = {**os.environ, **launch.ENVIRONMENT, 'COMM_PLUGIN_PATH': PLUGINS, 'COMM_LOG': 'error', **more}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def backends(*words, **more):
    status, out, err = run(*words, COMM_INFO, '--json', **more)
    assert status == 0, err
    return {entry['name']: entry for entry in json.loads(out)['backends']}


class Choice(unittest.TestCase):
    def test_the_launcher_decides(self):
        for name in BOTH:
            with self.subTest(name):
                found = backends(*launch.MPIRUN[name], '-n', '1')
                self.assertTrue(found['mpi']['usable'])
                self.assertTrue(found['mpi']['origin'].endswith(f'libcomm_mpi.{name}.so'))
                self.assertEqual(found['mpi']['traits'], 'cannot_cancel')
                if name == 'openmpi' and 'mpich' in BOTH:
                    self.assertIn('started by the mpirun of Open MPI', found['mpi.mpich']['reason'])

    def test_a_named_library_decides(self):
        library = '/usr/lib/x86_64-linux-gnu/libmpi.so.40'
        if 'openmpi' not in BOTH or not os.path.exists(library):
            self.skipTest('no Open MPI where Debian has it')
        found = backends(COMM_MPI_LIBRARY=library)
        self.assertTrue(found['mpi']['origin'].endswith('libcomm_mpi.openmpi.so'))

    def test_a_library_that_is_missing(self):
        found = backends(COMM_MPI_LIBRARY='/nowhere/libmpi.so')
        for name in BOTH:
            self.assertIn('is missing', found[f'mpi.{name}']['reason'])

    def test_a_library_in_the_options_is_refused(self):
        for name in BOTH:
            with self.subTest(name):
                status, out, err = run(*launch.MPIRUN[name], '-n', '1', COMM_BENCH, 'barrier', '--backend',
                                       'cpu:mpi?library=/nowhere/libmpi.so')
                self.assertNotEqual(status, 0)
                self.assertIn('COMM_MPI_LIBRARY=/nowhere/libmpi.so', out + err)

    def test_without_mpirun_the_cure_is_said(self):
        for name in BOTH:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                only = pathlib.Path(folder, f'libcomm_mpi.{name}.so')
                only.symlink_to(pathlib.Path(PLUGINS, only.name).resolve())
                # Where two processes make it at once, Open MPI fails in one of them.
                pathlib.Path(folder, f'ompi.{socket.gethostname().split(".")[0]}.{os.getuid()}').mkdir(0o700)
                status, out, err = run(COMMRUN, '-n', '2', COMM_BENCH, 'barrier', '--backend', 'cpu:mpi',
                                       COMM_PLUGIN_PATH=folder, TMPDIR=folder)
                self.assertNotEqual(status, 0)
                self.assertIn('mpirun -n', out + err)

    def test_two_mpiruns_are_not_one(self):
        for name in BOTH:
            port = free_port()
            with self.subTest(name):
                processes = [subprocess.Popen(
                    [*launch.MPIRUN[name], '-n', '1', COMM_BENCH, 'barrier', '--backend', 'cpu:mpi', '--bytes', '8'],
                    env={**os.environ, **launch.ENVIRONMENT, 'COMM_PLUGIN_PATH': PLUGINS, 'RANK': str(rank),
                         'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)},
                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                    for rank in range(2)]
                texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
                self.assertTrue(all(process.returncode for process in processes))
                self.assertIn('not in one MPI_COMM_WORLD', ''.join(texts))

    def test_open_mpi_s_server_joins_processes(self):
        if 'openmpi' not in BOTH or not shutil.which('ompi-server'):
            self.skipTest('no ompi-server')
        with tempfile.TemporaryDirectory() as folder:
            uri = pathlib.Path(folder, 'uri')
            server = subprocess.Popen(['ompi-server', '--no-daemonize', '-r', str(uri)],
                                      env={**os.environ, **launch.ENVIRONMENT})
            try:
                while not uri.exists() or not uri.read_text().strip():
                    self.assertIsNone(server.poll())
                only = pathlib.Path(folder, 'libcomm_mpi.openmpi.so')
                only.symlink_to(pathlib.Path(PLUGINS, only.name).resolve())
                _, out, err = run(COMMRUN, '-n', '3', COMM_BENCH, 'all_reduce', '--backend', 'cpu:mpi', '--bytes',
                                       '8', '--ms', '5', '--repeats', '1', COMM_PLUGIN_PATH=folder,
                                       OMPI_MCA_pmix_server_uri=f'file:{uri}')
                # Open MPI's daemons for single processes do not always end in a good order.
                self.assertRegex(out, r'all_reduce +cpu:mpi +3 +8 ', err)
            finally:
                server.terminate()
                server.wait()


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


if __name__ == '__main__':
    if not BOTH:
        print('skipped: no MPI is installed, or no plugin was built')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
