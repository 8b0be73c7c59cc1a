"""libcomm and its peers, as tools/compare launches them: each gives rows of (operation, bytes, microseconds,
distances): with `distance`, a file, how far the cores of ranks 0 and 1 were from each other before and after, in ns."""
import csv
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

SOURCES = pathlib.Path(__file__).resolve().parent
PUBLIC_HEADERS = SOURCES.parent.parent / 'include'

# Ours, and what the peers' programs call it.
OPS = {'all_reduce': 'allreduce', 'broadcast': 'broadcast', 'reduce': 'reduce', 'all_gather': 'allgather',
       'reduce_scatter': 'reduce_scatter', 'all_to_all': 'alltoall', 'gather': 'gather', 'scatter': 'scatter',
       'barrier': 'barrier', 'pingpong': 'pingpong'}

# A peer's program: compiler, source, libraries.
PROGRAMS = {'openmpi': ('mpicc.openmpi', 'mpi_bench.c'), 'mpich': ('mpicc.mpich', 'mpi_bench.c'),
            'gloo': ('g++', 'gloo_bench.cc', '-std=c++17', '-lgloo', '-lpthread')}

# Started by an MPI's launcher: the rank runs the rest of the words on its own of the processors in the first.
ON_ITS_PROCESSOR = ['sh', '-c', 'rank=${OMPI_COMM_WORLD_LOCAL_RANK:-$PMI_RANK}; '
                                'exec taskset -c "$(echo "$0" | cut -d, -f$((rank + 1)))" "$@"']


class Unavailable(Exception):
    pass


# ---- Where ranks run ----

def processors_in_turn():
    """Those that this process may use, by number; those that share a core with an earlier one come last."""
    firsts, others, cores = [], [], set()
    for number in sorted(os.sched_getaffinity(0)):
        try:
            core = pathlib.Path(f'/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list').read_text()
        except OSError:
            core = number
        (others if core in cores else firsts).append(number)
        cores.add(core)
    return firsts + others


def are_enough(ranks):
    return ranks <= len(os.sched_getaffinity(0))


def places(ranks, bind='auto'):
    """A processor for each rank, the same ones for all libraries. If there are too few, they are dealt out, as commrun
    does it: with 'auto' if each has as many ranks then, else none."""
    available = sorted(processors_in_turn()[:ranks])
    is_even = are_enough(ranks) or ranks % len(available) == 0
    if not shutil.which('taskset') or bind == 'none' or (bind == 'auto' and not is_even):
        return []
    return [available[rank % len(available)] for rank in range(ranks)]


def words_of(numbers):
    return ','.join(map(str, numbers))


# ---- Programs ----

def programs_folder(build_folder, otherwise):
    """Where programs stay compiled for the next call; `otherwise`, a folder, if nothing can be written there."""
    folder = pathlib.Path(build_folder).resolve() / 'peers'
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return pathlib.Path(otherwise)
    return folder if os.access(folder, os.W_OK) else pathlib.Path(otherwise)


def state_of(command, paths):
    """What a program is made of: the command, and all files that the compiler has read, as they are now."""
    stats = [(os.stat(path), path) for path in sorted(set(paths))]
    return '\n'.join([shlex.join(command), *(f'{stat.st_mtime_ns} {stat.st_size} {path}' for stat, path in stats)])


def is_made(made_of, command):
    """Does the file say that the program was made so?"""
    try:
        text = made_of.read_text()
        return text == state_of(command, [line.split(' ', 2)[2] for line in text.splitlines()[1:]])
    except (OSError, IndexError):
        return False


def build(folder, name, compiler, source, *libraries):
    """Compile a peer's program, if the command or anything that it reads has changed; say in one line why that is not
    possible."""
    program, found = pathlib.Path(folder) / name, shutil.which(compiler)
    if not found:
        raise Unavailable(f'{compiler} is not installed')
    command, made_of = [os.path.realpath(found), str(SOURCES / source), *libraries], program.with_suffix('.made-of')
    if program.exists() and is_made(made_of, command):
        return str(program)
    with tempfile.TemporaryDirectory(dir=folder) as work:  # another call may be running the program, or making it
        made, needs, began_ns = pathlib.Path(work, name), pathlib.Path(work, 'needs'), time.time_ns()
        done = subprocess.run([found, '-O3', '-w', '-MD', '-MF', str(needs), '-o', str(made), *command[1:]],
                              capture_output=True, text=True)
        if done.returncode != 0:
            reasons = [line for line in done.stderr.splitlines() if 'error' in line] or ['no message']
            raise Unavailable(f'{compiler} failed: {reasons[0]}')
        read = needs.read_text().replace('\\\n', ' ').split(': ', 1)[1].split()
        paths = [command[0], *read, *(library for library in libraries if os.path.isfile(library))]
        made_of.unlink(missing_ok=True)
        made.replace(program)
        if all(os.stat(path).st_mtime_ns < began_ns for path in paths):  # else it may have read the old file
            pathlib.Path(work, 'made-of').write_text(state_of(command, paths))
            pathlib.Path(work, 'made-of').replace(made_of)
    return str(program)


def library_path(folder):
    return os.pathsep.join(filter(None, [str(folder), os.environ.get('LD_LIBRARY_PATH')]))


class Source:
    """Where peers' programs come from: compiled into a folder, or in one that packing.py has made."""

    def __init__(self, folder, packed=None):
        self.folder, self.packed = folder, packed and pathlib.Path(packed).resolve()

    def program(self, name):
        if not self.packed:
            return build(self.folder, name, *PROGRAMS[name])
        if not (self.packed / 'bin' / name).exists():
            raise Unavailable(f'it is not in {self.packed}')
        return str(self.packed / 'bin' / name)

    def environment(self):
        if not self.packed:
            return {}
        lib, share = self.packed / 'lib', self.packed / 'share'
        return {'PATH': f"{self.packed / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                'LD_LIBRARY_PATH': library_path(lib), 'OPAL_PREFIX': str(self.packed), 'OPAL_LIBDIR': str(lib),
                'OPAL_PKGLIBDIR': str(lib / 'openmpi'), 'OPAL_DATADIR': str(share),
                'OPAL_PKGDATADIR': str(share / 'openmpi'), 'OPAL_SYSCONFDIR': str(self.packed / 'etc/openmpi'),
                'PMIX_INSTALL_PREFIX': str(self.packed / 'pmix'), 'UCX_MODULE_DIR': str(lib / 'ucx')}


def run(arguments, environment, timeout):
    """What the command printed, as far as it came, and what went wrong, or None."""
    process = subprocess.Popen(arguments, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    problem = None
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        problem = f'not finished within {timeout:.0f} s'
        process.terminate()  # a launcher ends its ranks then, which are not all in its process group
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        out, err = process.communicate()
    if problem is None and process.returncode != 0:
        problem = f"{' '.join(arguments[:3])} ... exited with {process.returncode}: {err.strip()[-600:]}"
    return out[:out.rfind('\n') + 1], problem


# ---- Libraries ----

class Library:
    """`run` gives rows as far as they came, and raises RuntimeError if some did not."""

    tail, sync, compute, overlap, ms, warm_up, distance = False, False, 0, 0, 60, 0, None

    def run(self, ops, sizes, timeout):
        text, problem = run(*self.command_for(ops, sizes), timeout)
        yield from self.rows(text)
        if problem:
            raise RuntimeError(problem)


class Libcomm(Library):
    """The column that the others are compared with."""

    launcher, environment = None, None  # else mpirun's, for the backend mpi

    def __init__(self, folder, ranks, backend='cpu:tcp', bind='auto'):
        folder = pathlib.Path(folder).resolve()
        self.program = str(folder / 'tools' / 'comm-bench')
        if not os.access(self.program, os.X_OK):
            raise SystemExit(f'compare: {self.program} is not there; build first: '
                             'meson setup build && meson compile -C build')
        if (folder / 'lib/comm').is_dir():  # packed by tools/test-gpu
            self.environment = {'LD_LIBRARY_PATH': library_path(folder / 'lib')}
        self.ranks, self.backend, self.places = ranks, backend, places(ranks, bind)

    def command(self):
        if self.launcher is not None:
            return [*self.launcher, self.program, '--bind', 'none']
        pinned = ['taskset', '-c', words_of(self.places)] if self.places else []
        return [*pinned, self.program, '-n', str(self.ranks), '--bind', 'core' if self.places else 'none']

    def command_for(self, ops, sizes):
        return [*self.command(), ','.join(ops), '--backend', self.backend, '--bytes', words_of(sizes), '--repeats', '1',
                '--ms', str(self.ms), '--csv', *(['--warm-up', str(self.warm_up)] if self.warm_up else []),
                *(['--distance', self.distance] if self.distance else []),
                *(['--sync'] if self.sync else []),
                *(['--compute', str(self.compute)] if self.compute else []),
                *(['--overlap', str(self.overlap)] if self.overlap else [])], self.environment

    def rows(self, text):
        for row in csv.DictReader(text.splitlines()):
            if row['errors'] != '0':
                raise SystemExit(f'compare: wrong results: {row}')
            distances = float(row.get('before_ns', 0)), float(row.get('after_ns', 0))
            yield row['op'], int(row['bytes']), float(row['mean_us']), distances
            if self.tail:
                yield f"{row['op']} median", int(row['bytes']), float(row['median_us']), distances
                yield f"{row['op']} p99", int(row['bytes']), float(row['p99_us']), distances


class Peer(Library):
    def __init__(self, command, environment=None):
        self.command, self.environment = command, environment or {}

    def command_for(self, ops, sizes):
        work = ['--ops=' + ','.join(OPS[op] for op in ops), '--sizes=' + words_of(sizes), f'--ms={self.ms}',
                f'--warm-up={self.warm_up}']
        work += [f'--distance={self.distance}'] if self.distance else []
        work += ['--sync'] if self.sync else []
        work += [f'--compute={self.compute}'] if self.compute else []
        work += [f'--overlap={self.overlap}'] if self.overlap else []
        return [*self.command, *work, *(['--tail'] if self.tail else [])], self.environment

    def rows(self, text):
        names = {theirs: ours for ours, theirs in OPS.items()}
        for line in text.splitlines():
            if line.startswith('ROW,'):
                _, _, _, op, _, size, microseconds, _, *distances = line.split(',')
                distances = tuple(map(float, distances)) or (0, 0)
                yield names[op], int(size), float(microseconds), distances
            elif line.startswith('TAIL,'):
                _, _, _, op, _, size, middle, p99 = line.split(',')
                yield f'{names[op]} median', int(size), float(middle), distances
                yield f'{names[op]} p99', int(size), float(p99), distances


def on_places(ranks, bind):
    chosen = places(ranks, bind)
    return [*ON_ITS_PROCESSOR, words_of(chosen)] if chosen else []


def open_mpi(source, ranks, settings, bind):
    """Its ranks yield where they are more than the processors: said here, as its slots are cores, not processors."""
    program, pinned = source.program('openmpi'), on_places(ranks, bind)
    command = ['mpirun.openmpi', '--oversubscribe', '--bind-to', 'none', '--mca', 'mpi_yield_when_idle',
               '0' if are_enough(ranks) else '1']
    for name, value in settings.items():
        command += ['--mca', name, value]
    return Peer([*command, '-np', str(ranks), *pinned, program],
                {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
                 'OMPI_MCA_btl_base_warn_component_unused': '0', 'OMPI_MCA_plm': 'isolated',  # without ssh
                 **source.environment()})


def mpich(source, ranks, settings, bind):
    program = source.program('mpich')
    return Peer(['mpiexec.mpich', '-n', str(ranks), *on_places(ranks, bind), program],
                {**settings, **source.environment()})


def gloo(source, ranks, _settings, bind):
    program, chosen = source.program('gloo'), places(ranks, bind)
    pinned = ['taskset', '-c', words_of(chosen)] if chosen else []
    return Peer([*pinned, program, f'--ranks={ranks}', '--transport=tcp', '--bind=' + ('core' if chosen else 'none')],
                source.environment())


# Each with its settings: MCA parameters of Open MPI, variables of MPICH's environment.
MAKERS = {
    'openmpi-tcp': (open_mpi, {'pml': 'ob1', 'btl': 'self,tcp', 'btl_tcp_if_include': 'lo'}),
    'openmpi': (open_mpi, {}),
    'openmpi-copy': (open_mpi, {'btl_vader_single_copy_mechanism': 'none'}),  # without cross-memory attach
    'openmpi-sm': (open_mpi, {'coll_sm_priority': '100'}),
    'openmpi-han': (open_mpi, {'coll_han_priority': '100'}),
    'mpich-tcp': (mpich, {'MPIR_CVAR_NOLOCAL': '1', 'UCX_TLS': 'tcp,self', 'UCX_NET_DEVICES': 'lo'}),
    'mpich': (mpich, {}),
    'mpich-gather': (mpich, {f'MPIR_CVAR_{op}_POSIX_INTRA_ALGORITHM': 'release_gather'
                             for op in ('ALLREDUCE', 'BCAST', 'REDUCE', 'BARRIER')}),
    'mpich-ucx': (mpich, {'MPIR_CVAR_NOLOCAL': '1', 'UCX_TLS': 'posix,sysv,cma,self'}),
    'gloo': (gloo, {}),
}
SHARED_MEMORY = ['openmpi', 'openmpi-copy', 'openmpi-sm', 'openmpi-han', 'mpich', 'mpich-gather', 'mpich-ucx']


def peer_names(text):
    return [name for word in text.split(',') for name in (SHARED_MEMORY if word == 'shm' else [word])]
