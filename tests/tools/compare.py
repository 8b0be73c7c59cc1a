"""tools/compare: rows of libcomm whatever peers are there, and clear words for what it cannot do.
compare.py COMPARE BUILD-FOLDER
"""
import csv
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock as mock
import xml.etree.ElementTree

COMPARE, BUILD = sys.argv[1], sys.argv[2]


COLLECTIVES = ('all_reduce', 'broadcast', 'reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'gather', 'scatter',
               'barrier')


def compare(*arguments):
    return subprocess.run([sys.executable, COMPARE, '--build', BUILD, *arguments], capture_output=True, text=True,
                          timeout=100)


def load():
    """The script as a module."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader('compare', COMPARE)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('compare', loader))
    loader.exec_module(module)
    return module


class Compare(unittest.TestCase):
    def test_a_cell_for_each_size_and_library(self):
        done = compare('-n', '2', '--ops', 'all_reduce,barrier', '--bytes', '8,1K', '--repetitions', '2', '--peers',
                       'gloo', '--csv')
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = list(csv.DictReader(done.stdout.splitlines()))
        ours = [(row['op'], row['bytes']) for row in rows if row['library'] == 'libcomm']
        self.assertEqual(ours, [('all_reduce', '8'), ('all_reduce', '1024'), ('barrier', '0')])
        medians = {(row['op'], row['bytes']): float(row['median_us']) for row in rows if row['library'] == 'libcomm'}
        for row in rows:
            self.assertGreater(float(row['median_us']), 0)
            quotient = float(row['median_us']) / medians[row['op'], row['bytes']]
            self.assertAlmostEqual(float(row['ratio_to_libcomm']), quotient, delta=0.0006)
            self.assertLessEqual(float(row['least_us']), float(row['most_us']))
        if not any(row['library'] == 'gloo' for row in rows):
            self.assertIn('gloo', done.stderr)  # left out, and says so

    def test_the_backend_mpi_needs_an_mpi(self):
        done = compare('-n', '2', '--bytes', '64', '--repetitions', '1', '--backend', 'cpu:mpi', '--peers', 'gloo')
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('--peers openmpi', done.stderr)

    def test_beside_the_mpi_in_one_process(self):
        for peer in 'openmpi', 'mpich':
            plugin = pathlib.Path(BUILD, 'backend_mpi', f'libcomm_mpi.{peer}.so')
            if not plugin.exists() or not shutil.which('mpicc.' + peer):
                continue
            with self.subTest(peer):
                done = compare('-n', '2', '--ops', ','.join(load().OPS), '--bytes', '8,5000', '--repetitions', '1',
                               '--backend', 'cpu:mpi', '--peers', peer, '--beside', '--rounds', '2', '--csv')
                self.assertEqual(done.returncode, 0, done.stderr)
                rows = list(csv.DictReader(done.stdout.splitlines()))
                self.assertEqual({row['op'] for row in rows}, set(load().OPS))
                self.assertEqual(len(rows), 2 * len(load().OPS) - 1)
                self.assertTrue(all(float(row['libcomm_us']) > 0 and float(row['mpi_us']) > 0 for row in rows))

    def test_beside_counts_the_cells_over_the_mark(self):
        times = {('reduce', 8): (1.4, 0.5), ('reduce', 1024): (2.6, 1.5), ('reduce', 1 << 20): (102.9, 100)}
        out = io.StringIO()
        load().report_beside(times, types.SimpleNamespace(csv=False, ranks=2, peers='mpich'), out)
        self.assertIn('| reduce | 1 MiB | 102.90 | 100.00 | +2.90 |', out.getvalue())
        self.assertIn('1 of 3 cells add more than 1 us and 2%; reduce 1 KiB', out.getvalue())

    def test_a_table(self):
        done = compare('-n', '2', '--bytes', '64', '--repetitions', '1', '--peers', 'gloo')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('2 ranks on ', done.stdout)
        self.assertRegex(done.stdout, r'(?m)^\| all_reduce \| 64 B \| [0-9.]+ \|')

    def test_columns_for_shared_memory_and_a_picture(self):
        compare_module = load()
        self.assertEqual(compare_module.peer_names('shm,gloo'), [*compare_module.SHARED_MEMORY, 'gloo'])
        times = {'libcomm': {('all_reduce', 8): [1], ('all_reduce', 65536): [20]},
                 'libcomm cpu:tcp': {('all_reduce', 8): [5], ('all_reduce', 65536): [40]},
                 'openmpi': {('all_reduce', 8): [2], ('all_reduce', 65536): [60]},
                 'openmpi-sm': {('all_reduce', 8): [3], ('all_reduce', 65536): [None]},
                 'mpich': {('all_reduce', 8): [4], ('all_reduce', 65536): [50]}}
        compare_module.add_best(times)
        self.assertEqual(times['best peer'], {('all_reduce', 8): [2], ('all_reduce', 65536): [50]})
        self.assertEqual(compare_module.settings_text(times), '- openmpi-sm: coll_sm_priority 100\n')
        with tempfile.TemporaryDirectory() as folder:
            with open(f'{folder}/rows', 'w') as file:
                compare_module.report(times, types.SimpleNamespace(csv=True, ranks=2), file)
            plot = str(pathlib.Path(COMPARE).with_name('plot'))
            done = subprocess.run([sys.executable, plot, f'{folder}/rows', folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            for name in 'latency', 'bandwidth':
                drawn = xml.etree.ElementTree.parse(f'{folder}/all_reduce-{name}.svg')
                texts = [item.text for item in drawn.iter('{http://www.w3.org/2000/svg}text')]
                self.assertEqual([text for text in texts if text in times],
                                 [library for library in times if library != 'best peer'
                                  and (name, library) != ('bandwidth', 'openmpi-sm')])

    def test_single_calls_beside_busy_processes(self):
        done = compare('-n', '2', '--bytes', '64', '--repetitions', '1', '--peers', 'openmpi', '--tail', '--busy', '1',
                       '--warm-up', '1', '--csv')
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = list(csv.DictReader(done.stdout.splitlines()))
        for library in {row['library'] for row in rows}:
            self.assertEqual([row['op'] for row in rows if row['library'] == library],
                             ['all_reduce', 'all_reduce median', 'all_reduce p99'])

    def test_more_ranks_than_processors_bound_after_a_barrier(self):
        ranks = len(os.sched_getaffinity(0)) + 1
        processors = sorted(os.sched_getaffinity(0))
        if ranks > 2:
            self.assertEqual(load().Libcomm(BUILD, ranks).places, [])
        self.assertEqual(load().Libcomm(BUILD, 2 * len(processors)).places, 2 * processors)
        self.assertEqual(load().Libcomm(BUILD, 2 * len(processors), bind='none').places, [])
        places = load().Libcomm(BUILD, ranks, bind='core').places
        self.assertEqual(places, processors + processors[:1])
        done = compare('-n', str(ranks), '--bytes', '64', '--repetitions', '1', '--peers', 'openmpi', '--bind', 'core',
                       '--sync', '--tail', '--backend', 'cpu:shm')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(', each bound to one, a barrier before each call, f32', done.stdout)
        rows = [line.split(' | ')[0] for line in done.stdout.splitlines() if line.startswith('| all')]
        self.assertEqual(rows, ['| all_reduce', '| all_reduce median', '| all_reduce p99'])
        done = compare('-n', '2', '--sync', '--peers', 'gloo')
        self.assertEqual(done.returncode, 2)
        self.assertIn('--sync goes neither with --beside nor with gloo', done.stderr)

    def test_ranks_that_compute_before_each_call(self):
        done = compare('-n', '2', '--bytes', '64', '--repetitions', '1', '--peers', 'openmpi', '--compute', '100',
                       '--tail', '--backend', 'cpu:shm')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(', each computing for 50 to 150 us before each call, f32', done.stdout)
        rows = [line.split(' | ')[0] for line in done.stdout.splitlines() if line.startswith('| all')]
        self.assertEqual(rows, ['| all_reduce', '| all_reduce median', '| all_reduce p99'])
        self.assertNotIn(' | - |', done.stdout)
        for other in (['--sync', '--peers', 'openmpi'], ['--peers', 'gloo']):
            done = compare('-n', '2', '--compute', '100', *other)
            self.assertEqual(done.returncode, 2)
            self.assertIn('--compute goes neither with --sync', done.stderr)

    def test_ranks_that_compute_meanwhile(self):
        done = compare('-n', '2', '--bytes', '64', '--repetitions', '1', '--peers', 'openmpi', '--overlap', '100',
                       '--tail', '--backend', 'cpu:shm', '--ops', ','.join(COLLECTIVES))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(', each computing for 100 us while the operation is under way; what that adds, f32', done.stdout)
        rows = [line.split(' | ')[0] for line in done.stdout.splitlines() if line.startswith('| all_reduce')]
        self.assertEqual(rows, ['| all_reduce', '| all_reduce median', '| all_reduce p99'])
        self.assertNotIn(' | - |', done.stdout)
        for other in (['--sync', '--peers', 'openmpi'], ['--compute', '9', '--peers', 'openmpi'], ['--peers', 'gloo']):
            done = compare('-n', '2', '--overlap', '100', *other)
            self.assertEqual(done.returncode, 2)
            self.assertIn('--overlap goes neither with --sync', done.stderr)
        done = compare('-n', '2', '--overlap', '100', '--peers', 'openmpi', '--ops', 'pingpong')
        self.assertEqual(done.returncode, 2)
        self.assertIn('--overlap is for collectives', done.stderr)

    def test_tables_by_the_distance_of_the_cores(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest('one core')
        done = compare('-n', '2', '--bytes', '64,8', '--ops', 'barrier,all_reduce', '--repetitions', '3', '--peers',
                       'openmpi', '--by-distance', '--near-ns', '1e9')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'(?m)^Two cores near each other: a line of memory takes [0-9]+ to [0-9]+ ns '
                                      r'from one to the other \(([0-9]+) of \1 rows\)\.$')
        self.assertNotIn('far', done.stdout)
        rows = [line.split(' |')[:2] for line in done.stdout.splitlines() if line.startswith(('| a', '| b'))]
        self.assertEqual(rows, [['| barrier', ' 0 B'], ['| all_reduce', ' 64 B'], ['| all_reduce', ' 8 B']])
        with tempfile.TemporaryDirectory() as folder:
            done = compare('-n', '2', '--bytes', '64', '--repetitions', '2', '--peers', 'openmpi', '--by-distance',
                           '--near-ns', '1e-9', '--save', f'{folder}/rows')
            rows = list(csv.DictReader(pathlib.Path(f'{folder}/rows.far').read_text().splitlines()))
            self.assertFalse(os.path.exists(f'{folder}/rows'))
        self.assertEqual([(row['op'], row['bytes']) for row in rows if row['library'] == 'libcomm'],
                         [('all_reduce', '64')])
        self.assertRegex(done.stdout, r'^2 ranks on [0-9]+ cores, (?s:.*)Two cores far from each other: ')
        done = compare('-n', '4', '--bind', 'core', '--bytes', '64', '--repetitions', '1', '--ms', '5', '--peers',
                       'openmpi', '--by-distance', '--near-ns', '1e9')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'^4 ranks on [0-9]+ cores, (?s:.*)Two cores near each other: ')
        for words in ['-n', '3', '--bind', 'none'], ['-n', '1'], ['-n', '2', '--peers', 'gloo'], ['-n', '2', '--csv']:
            refused = compare(*words, '--by-distance')
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn('--by-distance', refused.stderr)

    def test_rows_on_whose_way_a_core_moved_are_left_out(self):
        distances = load().Distances(150)
        places = [distances.place(ns) for ns in [(60, 70), (60, 240), (240, 60), (250, 240), (149, 26)]]
        self.assertEqual(places, ['near', None, None, 'far', 'near'])
        self.assertIn('takes 70 to 149 ns from one to the other (2 of 5 rows)', distances.text('near'))
        distances = load().Distances(150, 45)
        places = [distances.place(ns) for ns in [(30, 44), (44, 45), (30, 240), (45, 149)]]
        self.assertEqual(places, ['one', None, None, 'near'])
        self.assertEqual(distances.text('one'), 'Two threads of one core: a line of memory takes 44 to 44 ns from one '
                                                'to the other (1 of 4 rows).')

    def test_a_ratio_is_the_quotient_of_two_printed_cells(self):
        # In the second row the median of the ratios within one repetition would be 6.5.
        compare_module = load()
        times = {'libcomm': {('all_reduce', 8): [1, 4, 2], ('all_reduce', 64): [4, 20, 41]},
                 'gloo': {('all_reduce', 8): [9, 4, 4], ('all_reduce', 64): [12, None, 410]}}
        out = io.StringIO()
        compare_module.report(times, types.SimpleNamespace(csv=False, ranks=2), out)
        self.assertIn('| all_reduce | 8 B | 2.00 | 4.00 (2.0x) |', out.getvalue())
        self.assertIn('| all_reduce | 64 B | 20.0 | 211 (10.6x) |', out.getvalue())

    def test_wrong_words(self):
        for arguments, words in ((('--ops', 'all_reduced'), "no operation 'all_reduced'; there are: all_reduce"),
                                 (('--beside',), '--beside is for --backend cpu:mpi'),
                                 (('--peers', 'nccl'), "no peer 'nccl'; there are: openmpi-tcp")):
            done = compare(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_a_program_is_compiled_when_something_has_changed(self):
        libraries = sys.modules[load().build.__module__]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            compiler, header, source, library, calls, programs = (
                folder / name for name in ('cc', 'header.h', 'program.c', 'lib.so', 'calls', 'programs'))
            programs.mkdir()
            # cc -O3 -w -MD -MF NEEDS -o PROGRAM SOURCE LIBRARY...
            compiler.write_text(f'#!/bin/sh\necho x >> {calls}\ncat "$8" {header} > "$7"\n'
                                f'printf "%s: %s \\\\\n %s\n" "$7" "$8" {header} > "$5"\n')
            compiler.chmod(0o755)
            for path in header, source, library:
                path.write_text('')

            def build(*more):
                with mock.patch.object(libraries, 'SOURCES', folder):
                    program = libraries.build(programs, 'program', str(compiler), source.name, str(library), *more)
                self.assertEqual(pathlib.Path(program).read_text(), source.read_text() + header.read_text())
                return len(calls.read_text().split())

            for path in compiler, header, source, library:
                os.utime(path, (1, 1))
            self.assertEqual([build(), build()], [1, 1])
            for number, changed in enumerate([header, source, compiler, library]):
                if changed in (header, source):
                    changed.write_text(changed.name)
                os.utime(changed, (0, 0))  # as a package may bring an older file
                self.assertEqual([build(), build()], [2 + number, 2 + number], changed)
            self.assertEqual([build('-lother'), build('-lother'), build(), build()], [6, 6, 7, 7])
            os.utime(header, (2 ** 32, 2 ** 32))  # changed while it was compiled, for all that is known
            self.assertEqual([build(), build()], [8, 9])
            os.utime(header, (0, 0))
            (programs / 'program.made-of').write_text('nothing of the kind')
            self.assertEqual([build(), build()], [10, 10])
            (programs / 'program').unlink()
            self.assertEqual([build(), build()], [11, 11])
            self.assertEqual({path.name for path in programs.iterdir()}, {'program', 'program.made-of'})
            self.assertEqual(libraries.programs_folder('/nonexistent', folder), folder)

    def test_without_a_build(self):
        done = subprocess.run([sys.executable, COMPARE, '--build', '/nonexistent'], capture_output=True, text=True,
                              timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn('build first', done.stderr)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
