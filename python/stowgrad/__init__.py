"""stowgrad: tensors and autograd shaped like torch; the values saved for backward belong to the user.

This file holds what ``import stowgrad`` gives at once: the native core and ``autograd``. Everything else is loaded when first named.
Invariant: numpy, typing, dataclasses, inspect, logging, tempfile and pickle stay off the import path.
"""

from __future__ import annotations

from . import _C
