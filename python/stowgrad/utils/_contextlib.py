"""Context managers that decorate: the names under which programs import them. They live with the grad modes."""

from __future__ import annotations

from stowgrad.autograd.grad_mode import _DecoratorContextManager, _NoParamDecoratorContextManager, context_decorator

__all__ = ["_DecoratorContextManager", "_NoParamDecoratorContextManager", "context_decorator"]
