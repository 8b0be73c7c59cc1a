"""Run a test program under an MPI's mpirun: launch.py IMPLEMENTATION RANKS PLUGINS [--survive] PROGRAM ARGUMENT...

Each process is one rank of the program's runs of that size (tests/support/ranks.c, RANKS_LAUNCHED). SEED in an argument
becomes a fresh number, which is printed, and RANKS the number of ranks. --survive: mpirun lets the other ranks go on
when one is killed. Exit status 77 (skipped) where that MPI, or the plugin for it, is missing.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

MPIRUN = {'openmpi': ['mpirun.openmpi', '--oversubscribe', '--bind-to', 'none'], 'mpich': ['mpiexec.mpich']}
SURVIVE = {'openmpi': ['--enable-recovery', '--mca', 'orte_abort_on_non_zero_status', '0'],
           'mpich': ['-disable-auto-cleanup']}
ENVIRONMENT = {
    'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
    'OMPI_MCA_mpi_yield_when_idle': '1', 'OMPI_MCA_btl_base_warn_component_unused': '0',
}


def launcher(implementation):
    """The command's beginning, or a skip."""
    command = MPIRUN[implementation]
    if not shutil.which(command[0]):
        print(f'skipped: {command[0]} is not installed')
        sys.exit(77)
    return command


def main(arguments):
    implementation, ranks, plugins, *program = arguments
    command = launcher(implementation)
    if not list(pathlib.Path(plugins).glob(f'libcomm_mpi.{implementation}.so')):
        print(f'skipped: no libcomm_mpi.{implementation}.so was built, as the headers of that MPI are missing')
        return 77
    if program[0] == '--survive':
        command = command + SURVIVE[implementation]
        program = program[1:]
    seed = str(int(time.time()))
    program = [argument.replace('SEED', seed).replace('RANKS', ranks) for argument in program]
    print(' '.join([*command, '-n', ranks, *program]), flush=True)
    with tempfile.TemporaryDirectory(prefix='comm-mpi-') as folder:
        environment = {**os.environ, **ENVIRONMENT, 'COMM_PLUGIN_PATH': plugins, 'RANKS_LAUNCHED': folder,
                       'P2P_TAG_MOST': '32767'}
        return subprocess.run([*command, '-n', ranks, *program], env=environment, check=False).returncode


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
