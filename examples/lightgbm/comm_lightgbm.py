"""LightGBM over libcomm, from Python:

    import lightgbm
    from comm_lightgbm import network

    with network() as (rank, size):
        data = lightgbm.Dataset(my_rows(rank, size), params={"pre_partition": True})
        model = lightgbm.train({"tree_learner": "data"}, data)

What fails on the network is a LightGBMError with libcomm's text.
"""
import contextlib
import ctypes
import os
import pathlib

from lightgbm.basic import _LIB, _safe_call


def adapter():
    """libcomm_lightgbm.so: COMM_LIGHTGBM, or beside this file, or in a build folder."""
    here = pathlib.Path(__file__).resolve().parent
    places = [os.environ.get("COMM_LIGHTGBM"), here / "libcomm_lightgbm.so",
              here.parent.parent / "build/examples/lightgbm/libcomm_lightgbm.so", "libcomm_lightgbm.so"]
    found = next((str(place) for place in places[:-1] if place and os.path.exists(place)), places[-1])
    library = ctypes.CDLL(found)
    library.comm_last_error.restype = ctypes.c_char_p
    return library


@contextlib.contextmanager
def network(backend=None):
    """Give (rank, size) of a world that LightGBM's calls of this thread use as their network."""
    library = adapter()
    rank, size = ctypes.c_int32(), ctypes.c_int32()
    if library.comm_lightgbm_begin(backend.encode() if backend else None, ctypes.byref(rank), ctypes.byref(size)) != 0:
        raise RuntimeError(library.comm_last_error().decode())
    try:
        _safe_call(_LIB.LGBM_NetworkInitWithFunctions(
            size, rank, ctypes.cast(library.comm_lightgbm_reduce_scatter, ctypes.c_void_p),
            ctypes.cast(library.comm_lightgbm_all_gather, ctypes.c_void_p)))
        yield rank.value, size.value
    finally:
        _LIB.LGBM_NetworkFree()
        library.comm_lightgbm_end()
