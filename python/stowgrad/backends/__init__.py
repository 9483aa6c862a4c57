"""`torch.backends`: libraries that torch may be built with, none of which is here. Flags can be set and are kept;
nothing reads them.
"""

from __future__ import annotations

from types import ModuleType as _ModuleType

__all__ = ["cpu", "cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp", "opt_einsum", "quantized"]


def _no() -> bool:
    """False: this library is not part of stowgrad."""
    return False


def _nothing(*args, **kwargs):
    """None: there is nothing to ask or to set."""


def _backend(name: str, doc: str, **flags) -> _ModuleType:
    import sys

    module = _ModuleType(f"{__name__}.{name}", doc)
    module.is_available = module.is_built = _no
    for flag, value in flags.items():
        setattr(module, flag, value)
    sys.modules[module.__name__] = module
    return module


cudnn = _backend(
    "cudnn",
    "NVIDIA's kernels for networks: not here.",
    enabled=False,
    benchmark=False,
    benchmark_limit=10,
    deterministic=False,
    allow_tf32=False,
    version=_nothing,
    is_acceptable=lambda tensor: False,
)
cuda = _backend("cuda", "Settings of CUDA: not here.", matmul=_ModuleType("matmul"))
cuda.matmul.allow_tf32 = False
mkl = _backend("mkl", "Intel's linear algebra: not here.")
mkldnn = _backend("mkldnn", "Intel's kernels for networks: not here.", enabled=False)
mps = _backend("mps", "Apple's GPUs: not here.", is_macos_or_newer=lambda major, minor: False)
openmp = _backend("openmp", "OpenMP: not here.")
opt_einsum = _backend("opt_einsum", "Chooses the order of an einsum: not here.", enabled=False, strategy=None)
quantized = _backend("quantized", "Quantised kernels: not here.", supported_engines=[], engine="none")
cpu = _backend("cpu", "What the CPU can do.")


def _capability() -> str:
    """The vector instructions in use, by the name that the core gives them."""
    from stowgrad import _C

    return _C.simd_level()


cpu.get_cpu_capability = _capability
cpu.is_available = cpu.is_built = lambda: True
