"""tools/compare: rows of libcomm whatever peers are there, and clear words for what it cannot do. compare.py COMPARE BUILD-FOLDER"""
import csv
import subprocess
import sys
import unittest

COMPARE, BUILD = sys.argv[1], sys.argv[2]


def compare(*arguments):
    return subprocess.run([sys.executable, COMPARE, '--build', BUILD, *arguments], capture_output=True, text=True,
                          timeout=100)


class Compare(unittest.TestCase):
    def test_a_cell_for_each_size_and_library(self):
        done = compare('-n', '2', '--ops', 'all_reduce,barrier', '--bytes', '8,1K', '--repetitions', '2', '--peers', 'gloo',
                       '--csv')
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = list(csv.DictReader(done.stdout.splitlines()))
        ours = [(row['op'], row['bytes']) for row in rows if row['library'] == 'libcomm']
        self.assertEqual(ours, [('all_reduce', '8'), ('all_reduce', '1024'), ('barrier', '0')])
        for row in rows:
            self.assertGreater(float(row['median_us']), 0)
            self.assertLessEqual(float(row['least_us']), float(row['most_us']))
        if not any(row['library'] == 'gloo' for row in rows):
            self.assertIn('gloo', done.stderr)  # left out, and says so

    def test_a_table(self):
        done = compare('-n', '2', '--bytes', '64', '--repetitions', '1', '--peers', 'gloo')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('2 ranks on ', done.stdout)
        self.assertRegex(done.stdout, r'(?m)^\| all_reduce \| 64 B \| [0-9.]+ \|')

    def test_wrong_words(self):
        for arguments, words in ((('--ops', 'all_reduced'), "no operation 'all_reduced'; there are: all_reduce"),
                                 (('--peers', 'nccl'), "no peer 'nccl'; there are: openmpi-tcp")):
            done = compare(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_without_a_build(self):
        done = subprocess.run([sys.executable, COMPARE, '--build', '/nonexistent'], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn('build first', done.stderr)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
