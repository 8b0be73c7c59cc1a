"""A caller that is not C: Python's ctypes joins a world and reduces, knowing nothing but the shared library.

from_ctypes.py LIBRARY, under commrun. Each rank prints one line.
"""
import ctypes
import sys

F32, SUM = 12, 0


def main(path):
    library = ctypes.CDLL(path)
    library.comm_last_error.restype = ctypes.c_char_p
    library.comm_version.restype = ctypes.c_char_p

    def check(status):
        if status != 0:
            sys.exit(f"status {status}: {library.comm_last_error().decode()}")

    world = ctypes.c_void_p()
    check(library.comm_init(None, ctypes.byref(world)))
    rank, ranks = library.comm_group_rank(world), library.comm_group_size(world)

    count = 1000
    send = (ctypes.c_float * count)(*[rank + i for i in range(count)])
    recv = (ctypes.c_float * count)(*[-1.0] * count)
    work = ctypes.c_void_p()
    check(library.comm_all_reduce(world, send, recv, ctypes.c_size_t(count), F32, SUM, None, ctypes.byref(work)))
    check(library.comm_work_wait(work, ctypes.c_int64(0)))
    library.comm_work_release(work)
    expected = [float(sum(range(ranks)) + ranks * i) for i in range(count)]
    if list(recv) != expected:
        sys.exit(f"rank {rank}: the sum is wrong: {recv[0]} {recv[1]} ..., expected {expected[0]} {expected[1]} ...")

    # An error must come back as a status and a text, not as an end of the process.
    status = library.comm_all_reduce(world, send, recv, ctypes.c_size_t(count), 999, SUM, None, None)
    if status != -1 or not library.comm_last_error():
        sys.exit(f"rank {rank}: a dtype that does not exist gave status {status}")

    check(library.comm_group_close(world))
    print(f"rank {rank} of {ranks}: the sum is right, libcomm {library.comm_version().decode()}")


if __name__ == "__main__":
    main(sys.argv[1])
