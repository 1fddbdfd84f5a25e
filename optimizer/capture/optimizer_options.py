"""Names and options of optimizers as a user gives them. Does not import torch.

adamw, adam and sgd are those of torch, by its fused kernels. Any other name is `module:Class`: a
class that is made like those of torch.optim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.optimizer.capture.errors import CaptureError

Option = float | bool | tuple[float, ...]

# Accepted options and their defaults, which are those of torch.optim.
DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2},
    "sgd": {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": 0.0},
}
_BETAS = "betas"


def is_class_path(name: str) -> bool:
    """Whether it has the form of `module:Class`."""
    module, colon, kind = name.partition(":")
    return bool(module and colon and kind)


def options_of(name: str, given: Mapping[str, object]) -> dict[str, Option]:
    """The options as values that can be compared; `betas` of adam and adamw become beta1 and beta2.
    Raises CaptureError for an unknown name or option, and for a value that is none."""
    if name not in DEFAULTS:
        if not is_class_path(name):
            raise CaptureError(
                f"optimizer {name!r} is not known; accepted: {', '.join(DEFAULTS)}, or "
                "`module:Class`, for example torch.optim:RMSprop"
            )
        return {key: _value(key, value) for key, value in given.items()}
    found: dict[str, Option] = {}
    for key, value in given.items():
        if key == _BETAS and "beta1" in DEFAULTS[name]:
            if not isinstance(value, Sequence) or len(value) != 2:
                raise CaptureError(f"optimizer {name}: betas {value!r} must be two numbers")
            found |= {f"beta{k + 1}": float(one) for k, one in enumerate(value)}
        elif key not in DEFAULTS[name]:
            accepted = [*DEFAULTS[name], *([_BETAS] if "beta1" in DEFAULTS[name] else [])]
            raise CaptureError(
                f"optimizer {name} has no option {key!r}; accepted: {', '.join(accepted)}"
            )
        elif isinstance(value, bool | int | float):
            found[key] = float(value)
        else:
            raise CaptureError(f"optimizer {name}: {key} {value!r} must be a number")
    return found


def _value(key: str, value: object) -> Option:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(float(one) for one in value)
    raise CaptureError(
        f"optimizer option {key!r} is {value!r}; accepted: a number, true, false, or a list of "
        "numbers"
    )
