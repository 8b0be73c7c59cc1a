"""torch.distributed over libcomm: init_process_group("libcomm"), or "cpu:libcomm,cuda:nccl".

Two layers do the same. The native one is a c10d::Backend in C++, compiled for the PyTorch that is installed
(python3 -m torch_libcomm.build); the other one is a ProcessGroup in Python, for every release from 1.13 on and without
a compiler. TORCH_LIBCOMM_LAYER=python or native chooses; otherwise it is the native one where it has been built.

PyTorch is imported by the functions: it may be PyTorch that imports this module while it is imported itself.
"""
import os
import signal

__version__ = "0.1.0"
NAME = "libcomm"


def layer():
    """The layer in use: "native" or "python"."""
    from . import build
    wanted = os.environ.get("TORCH_LIBCOMM_LAYER", "")
    if wanted not in ("", "python", "native"):
        raise RuntimeError(f"libcomm: TORCH_LIBCOMM_LAYER is '{wanted}'; it can be python or native")
    if wanted == "native" and not build.built():
        raise RuntimeError("libcomm: the native layer has not been built for this PyTorch: "
                           "python3 -m torch_libcomm.build")
    return wanted or ("native" if build.built() else "python")


def create(options, _backend_options=None):
    """What init_process_group and new_group call."""
    if layer() == "python":
        from .group import Group
        return Group.create(options)
    from . import build, world
    native = build.load()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        native.listen_to_interrupts()
    return native.create(*world.arguments(options), build.parent(options), options.global_ranks_in_group)


def library_path():
    """libcomm.so: TORCH_LIBCOMM_LIBRARY, else the one of this package, else the one that the loader finds."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libcomm.so")
    return os.environ.get("TORCH_LIBCOMM_LIBRARY") or (own if os.path.exists(own) else "libcomm.so.0")


def register():
    """Make the name known to PyTorch. Newer releases call it by themselves, by the entry points of this package."""
    import torch.distributed as dist
    if NAME.upper() in dist.Backend._plugins:
        return
    try:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    except TypeError:  # 1.13 knows no devices
        dist.Backend.register_backend(NAME, create, extended_api=True)


register()
