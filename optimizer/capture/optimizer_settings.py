"""What updates the parameters, as a user gives it, and its text. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.given_numbers import with_floats
from placewire.optimizer.capture.gradient_scaler import GradientScaler
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.optimizer_options import DEFAULTS, Option, options_of
from placewire.optimizer.capture.parameter_groups import ParameterGroup


@dataclass(frozen=True)
class OptimizerSettings:
    """name: one of DEFAULTS, with its options there, or `module:Class`, with the class's own beside
    lr. Raises CaptureError for any other.

    clip_norm: the gradients of all parameters are scaled by one coefficient, so that their norm
    together is at most this, as in torch.nn.utils.clip_grad_norm_. scaler: scales the loss, and
    updates nothing where a gradient is not finite, as torch.amp.GradScaler does. groups: a
    parameter belongs to the first that has it, if any.
    """

    name: str = "adamw"
    lr: float = 1e-3
    options: Mapping[str, Option] = field(default_factory=dict)
    clip_norm: float | None = None
    scaler: GradientScaler | None = None
    schedule: LearningRateSchedule = field(default_factory=LearningRateSchedule)
    groups: tuple[ParameterGroup, ...] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """document: the fields, and in `schedule`, `scaler` and `groups` their fields. Raises
        CaptureError, and TypeError for an unknown field."""
        name = str(document.get("name", cls.name))
        schedule = LearningRateSchedule.of(document.get("schedule") or {})
        scaler = document.get("scaler")
        groups = (ParameterGroup.of(one) for one in document.get("groups") or ())
        return cls(
            **{
                **with_floats(document, ("lr", "clip_norm")),
                "options": options_of(name, document.get("options") or {}),
                "schedule": schedule,
                "scaler": None if scaler is None else GradientScaler.of(scaler),
                "groups": tuple(
                    replace(group, options=options_of(name, group.options)) for group in groups
                ),
            }
        )

    def __post_init__(self) -> None:
        for options in (self.options, *(group.options for group in self.groups)):
            options_of(self.name, options)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise CaptureError(f"clip_norm {self.clip_norm:g} must be more than 0")

    @property
    def all_options(self) -> Mapping[str, Any]:
        return {**DEFAULTS.get(self.name, {}), **self.options}

    @property
    def signature(self) -> str:
        """The whole of it as text; capture notes it, and the step's structure has it."""
        options = ",".join(f"{k}={v!r}" for k, v in sorted(self.all_options.items()))
        clip = "" if self.clip_norm is None else f"clip_norm={self.clip_norm!r}"
        groups = ",".join(group.signature for group in self.groups)
        scaler = "" if self.scaler is None else self.scaler.signature
        parts = (f"lr={self.lr!r}", options, clip, scaler, self.schedule.signature, groups)
        return f"{self.name}({','.join(part for part in parts if part)})"
