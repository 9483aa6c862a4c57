"""`torch.ops`: the operations of the core by torch's names.

`ops.aten.add` is a packet of overloads, `ops.aten.add.Tensor` one of them: what a dispatch mode gets as `func`. The objects are the
core's (`_C._packet`); here are the namespaces alone.
"""

from __future__ import annotations

import sys
import types

from stowgrad import _C
from stowgrad._C import OpOverload, OpOverloadPacket

__all__ = ["OpOverload", "OpOverloadPacket", "aten", "ops"]


class _OpNamespace(types.ModuleType):
    """The operations of one namespace, by name.

    >>> import stowgrad as torch
    >>> torch.ops.aten.add.Tensor
    <OpOverload(op='aten.add', overload='Tensor')>
    >>> print(torch.ops.aten.add.Tensor._schema)
    aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    """

    def __init__(self, name: str) -> None:
        super().__init__("torch.ops." + name)
        self.name = name

    def __getattr__(self, op: str) -> OpOverloadPacket:
        if self.__dict__.get("name") != "aten" or op.startswith("__"):
            raise AttributeError(f"'_OpNamespace' '{self.__dict__.get('name')}' object has no attribute '{op}'")
        packet = _C._packet(op)
        setattr(self, op, packet)
        return packet

    def __dir__(self):
        return _C._packets() if self.name == "aten" else []

    def __iter__(self):
        return iter(dir(self))

    def __repr__(self) -> str:
        return f"<module 'torch.ops.{self.name}' from 'torch.ops'>"


class _Ops(types.ModuleType):
    """The namespaces: `aten` holds every operation here."""

    def __init__(self) -> None:
        super().__init__("torch.ops")
        self.aten = _OpNamespace("aten")

    def __getattr__(self, name: str) -> _OpNamespace:
        if name.startswith("__"):
            raise AttributeError(f"module 'torch.ops' has no attribute '{name}'")
        namespace = _OpNamespace(name)
        setattr(self, name, namespace)
        return namespace

    def __repr__(self) -> str:
        return "<module 'torch.ops' from '_ops.py'>"


ops = _Ops()
aten = ops.aten
sys.modules.setdefault("stowgrad.ops", ops)
