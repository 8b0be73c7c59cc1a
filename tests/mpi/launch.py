"""Run a test program under an MPI's mpirun: launch.py IMPLEMENTATION RANKS PLUGINS [--library FILE] [--survive |
--says TEXT] PROGRAM ARGUMENT...

Each process is one rank of the program's runs of that size (tests/support/ranks.c, RANKS_LAUNCHED). SEED in an argument
becomes a fresh number, which is printed, and RANKS the number of ranks. --library: the plugin takes it for the MPI.
--survive: one rank is killed, which must not end the others; they say "as expected", and what mpirun thinks of it does
not count. --says: the program must print TEXT, and the exit status does not count: operations that cannot end are left
in MPI, which is not finalised then. Exit status 77 (skipped) where that MPI, or the plugin for it, is missing.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

MPIRUN = {'openmpi': ['mpirun.openmpi', '--oversubscribe', '--bind-to', 'none'], 'mpich': ['mpiexec.mpich']}
# MPICH's mpiexec ends all ranks when one dies, or ends without finalising MPI, so each one's parent does as if it lived
# while the others go on.
SURVIVE = {'openmpi': (['--enable-recovery', '--mca', 'orte_abort_on_non_zero_status', '0'], []),
           'mpich': ([], ['sh', '-c', '"$0" "$@"; for i in $(seq 300); do set -- "$RANKS_LAUNCHED"/over-*; '
                          '[ $# -ge $((RANKS - 1)) ] && exit; sleep 0.1; done'])}
# The same, where all end without finalising MPI: the parents wait until all have ended.
TOGETHER = ['sh', '-c', '"$0" "$@"; : > "$RANKS_LAUNCHED/ended-$$"; for i in $(seq 300); do '
            'set -- "$RANKS_LAUNCHED"/ended-*; [ $# = $RANKS ] && exit; sleep 0.1; done']
# Leaks are the MPI's if it is on the stack, which AddressSanitizer finds only by the slow way to unwind.
SUPPRESSIONS = pathlib.Path(__file__).resolve().with_name('lsan.supp')
ENVIRONMENT = {
    'LSAN_OPTIONS': f'suppressions={SUPPRESSIONS}:print_suppressions=0',
    'ASAN_OPTIONS': os.environ.get('ASAN_OPTIONS', '') + ':fast_unwind_on_malloc=0',
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
    if not list(pathlib.Path(plugins.split(':')[0]).glob(f'libcomm_mpi.{implementation}.so')):
        print(f'skipped: no libcomm_mpi.{implementation}.so was built, as the headers of that MPI are missing')
        return 77
    library = {}
    if program[0] == '--library':
        library = {'COMM_MPI_LIBRARY': program[1]}
        program = program[2:]
    survives = program[0] == '--survive'
    if survives:
        command = command + SURVIVE[implementation][0]
        program = SURVIVE[implementation][1] + program[1:]
    says = program[1] if program[0] == '--says' else None
    program = TOGETHER + program[2:] if says else program
    seed = str(int(time.time()))
    program = [argument.replace('=SEED', f'={seed}').replace('=RANKS', f'={ranks}') for argument in program]
    program = [seed if argument == 'SEED' else argument for argument in program]
    print(' '.join([*command, '-n', ranks, *program]), flush=True)
    with tempfile.TemporaryDirectory(prefix='comm-mpi-') as folder:
        environment = {**os.environ, **ENVIRONMENT, **library, 'COMM_PLUGIN_PATH': plugins, 'RANKS_LAUNCHED': folder,
                       'RANKS': ranks, 'P2P_TAG_MAX': '32767'}
        done = subprocess.run([*command, '-n', ranks, *program], env=environment, check=False, text=True,
                              stdout=subprocess.PIPE if survives or says else None)
        if says:
            print(done.stdout)
            return says not in done.stdout
        if survives:
            print(done.stdout)
            return done.stdout.count('as expected') != int(ranks) - 1
        return done.returncode


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
