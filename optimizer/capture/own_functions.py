"""Keeps the backward pass that a model's own torch.autograd.Function has.

By itself torch.export runs a Function's forward pass alone, and the derivative of that replaces
the one that the Function defines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch._export import wrappers
from torch._functorch.autograd_function import custom_function_call
from torch.autograd import function
from torch.autograd.function import _SingleLevelFunction
from torch.export import custom_ops


@contextlib.contextmanager
def keeping_own_functions() -> Iterator[None]:
    """Inside, an exported graph calls each Function as a whole. A private interface of torch."""
    found: dict[str, Any] = {}
    emit = wrappers._emit_flat_apply_call
    inside = False

    def noting(run: Callable[..., Any]) -> Callable[..., Any]:
        # torch exports what has this name alone.
        def apply(cls: Any, *arguments: Any, **options: Any) -> Any:
            return run(cls, *arguments, **options)

        exported = wrappers.allow_in_pre_dispatch_graph(apply)

        def noted(cls: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal inside
            found[f"{cls.__module__}.{cls.__qualname__}"] = cls
            # Not those that another one runs, as vmap does; torch exports some of its own anyway,
            # and their `apply` comes by here.
            whole = not (inside or hasattr(cls.apply, "__wrapped__"))
            before, inside = inside, True
            try:
                return (exported if whole else apply)(cls, *arguments, **options)
            finally:
                inside = before

        return noted

    def plainly(cls: Any, *arguments: Any, **options: Any) -> Any:
        return super(_SingleLevelFunction, cls).apply(*arguments, **options)

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        return found[name].apply(*arguments, **options)

    def emit_with_values(*, tracer: Any, **options: Any) -> None:
        emit(tracer=tracer, **options)
        # Without this torch refuses the constants that name a Function under autocast.
        for node in tracer.graph.find_nodes(op="get_attr"):
            node.meta.setdefault("val", None)

    with (
        # What Function.apply calls: its base's `apply`, and this where a transform of torch.func
        # is at work, as vmap is. A model can have taken Function.apply itself before, as in
        # `scaled = Scaled.apply` of a module that is imported by now.
        mock.patch.object(_SingleLevelFunction, "apply", classmethod(noting(plainly)), create=True),
        mock.patch.object(function, "custom_function_call", noting(custom_function_call)),
        # It would find classes by import, and none that is inside another or in a function.
        mock.patch.object(custom_ops, "_call_custom_autograd_function_in_pre_dispatch", call),
        mock.patch.object(wrappers, "_emit_flat_apply_call", emit_with_values),
    ):
        yield
