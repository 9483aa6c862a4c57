"""The process's random numbers: seed, state, and forks of it. The generator is the core's `default_generator`."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd.grad_mode import _DecoratorContextManager

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]

default_generator = _C.default_generator


def set_rng_state(new_state) -> None:
    """Puts the generator into a state that `get_rng_state` gave, a uint8 tensor."""
    default_generator.set_state(new_state)


def get_rng_state():
    """The generator's state, as a uint8 tensor.

    >>> import stowgrad as torch
    >>> state = torch.get_rng_state()
    >>> a = torch.rand(3)
    >>> torch.set_rng_state(state)
    >>> torch.equal(a, torch.rand(3))
    True
    """
    return default_generator.get_state()


def manual_seed(seed):
    """Seeds the generator and returns it. ValueError or TypeError if `seed` is no number, RuntimeError if it has more
    than 64 bits.
    """
    return default_generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the generator from the system's randomness, and returns the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed that was set last."""
    return default_generator.initial_seed()


class fork_rng(_DecoratorContextManager):
    """Inside, random numbers are drawn as usual; afterwards the generator is where it was. Devices other than the CPU
    are ignored.

    >>> import stowgrad as torch
    >>> _ = torch.manual_seed(0)
    >>> with torch.random.fork_rng():
    ...     a = torch.rand(2)
    >>> torch.equal(a, torch.rand(2))
    True
    """

    def __init__(
        self,
        devices=None,
        enabled: bool = True,
        _caller: str = "fork_rng",
        _devices_kw: str = "devices",
        device_type=None,
    ) -> None:
        self.arguments = (devices, enabled, _caller, _devices_kw, device_type)
        self.enabled = enabled
        self.states: list = []

    def __enter__(self) -> None:
        if self.enabled:
            self.states.append(default_generator.get_state())

    def __exit__(self, *args) -> None:
        if self.enabled:
            default_generator.set_state(self.states.pop())

    def clone(self):
        return type(self)(*self.arguments)
