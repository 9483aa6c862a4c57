"""Storages: the memory that tensors look into. `UntypedStorage` is the core's; typed ones do not exist here."""

from stowgrad._C import UntypedStorage

__all__ = ["UntypedStorage"]
