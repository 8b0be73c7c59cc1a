"""The sum of the ranks, by ctypes alone: commrun -n 4 -- python3 hello.py"""
import ctypes

comm = ctypes.CDLL("libcomm.so.0")
comm.comm_last_error.restype = ctypes.c_char_p
COMM_DTYPE_F32, COMM_REDOP_SUM = 12, 0


def check(status):
    if status != 0:
        raise RuntimeError(comm.comm_last_error().decode())


world = ctypes.c_void_p()
check(comm.comm_init(None, ctypes.byref(world)))
value = ctypes.c_float(comm.comm_group_rank(world))
pointer, count = ctypes.byref(value), ctypes.c_size_t(1)
check(comm.comm_all_reduce(world, pointer, pointer, count, COMM_DTYPE_F32, COMM_REDOP_SUM, None, None))
print(f"the ranks add up to {value.value:g}", flush=True)
check(comm.comm_group_close(world))
