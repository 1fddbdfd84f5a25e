"""Runs one optimizer step for one parameter, in place.

The fused kernels of torch make one pass over memory and need no workspace, but for the scaled
gradient where gradients are clipped or their loss is scaled; other classes of optimizers run as
they are. A parameter's update uses only its own gradient and state, the number of the step, and
what is computed of all gradients once, so that it gives the same bits wherever it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from placewire.optimizer.capture.foreign_optimizer import ForeignOptimizer, stepped, tried
from placewire.optimizer.capture.optimizer_options import is_class_path
from placewire.optimizer.capture.optimizer_settings import OptimizerSettings
from placewire.optimizer.capture.stepped import Stepped

# The shape of a parameter that every class takes, and what JSON can hold of its options.
_PROBE, _WRITABLE = (2, 2), (bool, int, float, str, tuple, type(None))


@dataclass(frozen=True)
class OptimizerChoice(OptimizerSettings):
    """The settings, and what torch makes of them. Raises CaptureError where it cannot use them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._each_foreign  # Raises where the class cannot be used.

    def lr_at(self, step: int) -> float:
        """step: the step's number, from 0."""
        return self.lr * self.schedule.factor_at(step)

    def of_parameter(self, names: Sequence[str]) -> OptimizerChoice:
        """Returns the choice, without groups, for the parameter that has these names."""
        for group in self.groups:
            if any(group.has(name) for name in names):
                lr = self.lr if group.lr is None else group.lr
                options = {**self.options, **group.options}
                return replace(self, lr=lr, options=options, groups=())
        return replace(self, groups=())

    @property
    def rescales(self) -> bool:
        """Whether the update makes another gradient of the one that it takes."""
        return self.clip_norm is not None or (self.scaler is not None and self.unscales)

    @property
    def unscales(self) -> bool:
        """Whether the update itself takes a scaled gradient, as torch's fused kernels do."""
        return self.clip_norm is None and not is_class_path(self.name)

    @property
    def foreign(self) -> ForeignOptimizer | None:
        """The class that updates, where it is none of DEFAULTS. Raises CaptureError where it cannot
        be used."""
        if not is_class_path(self.name):
            return None
        return tried(self.name, tuple(sorted(self.options.items())))

    @property
    def elementwise(self) -> bool:
        """Whether parts of a parameter may be updated apart, and several parameters as one."""
        return all(one.elementwise for one in self._each_foreign)

    @property
    def _each_foreign(self) -> list[ForeignOptimizer]:
        """With the options of all parameters and of each group."""
        options = [self.options, *({**self.options, **group.options} for group in self.groups)]
        if not is_class_path(self.name):
            return []
        return [tried(self.name, tuple(sorted(one.items()))) for one in options]

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Returns how much the optimizer keeps for a parameter of that shape and type."""
        if (foreign := self.foreign) is not None:
            return foreign.state_bytes(parameter)
        if self.name != "sgd":
            return 2 * parameter.nbytes
        return parameter.nbytes if self.all_options["momentum"] else 0

    @property
    def torch_options(self) -> Mapping[str, object]:
        """The options as in an entry of torch.optim's param_groups."""
        options = dict(self.all_options)
        if (foreign := self.foreign) is not None:
            (entry,) = foreign.of(torch.zeros(_PROBE), self.lr).param_groups
            return {k: v for k, v in entry.items() if isinstance(v, _WRITABLE)}
        if self.name != "sgd":
            betas = (options.pop("beta1"), options.pop("beta2"))
            return {"lr": self.lr, "betas": betas, **options, "amsgrad": False}
        return {"lr": self.lr, **options, "nesterov": bool(options["nesterov"])}


class Update(Stepped, ABC):
    """A module (parameter, gradient) -> None that holds the optimizer state of the parameter.

    Further arguments are scalars. coefficient: of clipping. found_inf: not 0 where nothing is to be
    updated, because a gradient is not finite. scale: of the gradient, which is still to be
    unscaled; never with a coefficient.
    """

    @property
    def has_updated(self) -> bool:
        """Whether a step has updated the parameter, where there is no state before."""
        return True

    @abstractmethod
    def state(self, parameter: torch.Tensor, steps_done: int) -> dict[str, torch.Tensor]:
        """What torch.optim keeps for the parameter after so many steps, by torch's names; the
        tensors are the module's own, to be read or overwritten."""


class Adam(Update):
    """Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2: Adam with L2
    regularization, and AdamW."""

    def __init__(self, choice: OptimizerChoice, parameter: torch.Tensor) -> None:
        super().__init__()
        self.choice = choice
        self.average = torch.zeros_like(parameter)
        self.average_of_squares = torch.zeros_like(parameter)
        # On the parameter's device, where the fused kernel reads it.
        self.steps = torch.zeros((), device=parameter.device)

    def state(self, parameter: torch.Tensor, steps_done: int) -> dict[str, torch.Tensor]:
        return {
            "step": self.steps,
            "exp_avg": self.average,
            "exp_avg_sq": self.average_of_squares,
        }

    def forward(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        coefficient: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> None:
        options = self.choice.all_options
        adam(
            [parameter],
            [_taken(gradient, coefficient, scale)],
            [self.average],
            [self.average_of_squares],
            [],
            [self.steps],
            fused=True,
            found_inf=found_inf,
            grad_scale=scale,
            decoupled_weight_decay=self.choice.name == "adamw",
            amsgrad=False,
            beta1=options["beta1"],
            beta2=options["beta2"],
            lr=self.choice.lr_at(self.step),
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            maximize=False,
        )


class Sgd(Update):
    """By torch's convention the first momentum buffer is the first gradient, undamped."""

    def __init__(self, choice: OptimizerChoice) -> None:
        super().__init__()
        self.choice = choice
        self.momentum_buffers: list[torch.Tensor | None] = [None]

    @property
    def has_updated(self) -> bool:
        return self.momentum_buffers[0] is not None

    def state(self, parameter: torch.Tensor, steps_done: int) -> dict[str, torch.Tensor]:
        if not self.choice.all_options["momentum"] or not steps_done:
            return {}
        buffer = self.momentum_buffers[0]
        if buffer is None:
            self.momentum_buffers[0] = buffer = torch.zeros_like(parameter)
        return {"momentum_buffer": buffer}

    def forward(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        coefficient: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> None:
        options = self.choice.all_options
        # The kernel would leave a new momentum buffer without values.
        if options["momentum"] and not self.has_updated and _is_set(found_inf):
            return
        sgd(
            [parameter],
            [_taken(gradient, coefficient, scale)],
            self.momentum_buffers,
            fused=True,
            found_inf=found_inf,
            grad_scale=scale,
            weight_decay=options["weight_decay"],
            momentum=options["momentum"],
            lr=self.choice.lr_at(self.step),
            dampening=options["dampening"],
            nesterov=bool(options["nesterov"]),
            maximize=False,
        )


class Foreign(Update):
    """Holds an optimizer object of the class for the one parameter. held: the tensors of its state,
    which stay between steps."""

    def __init__(
        self, choice: OptimizerChoice, kind: ForeignOptimizer, parameter: torch.Tensor
    ) -> None:
        super().__init__()
        self.choice = choice
        self.kind = kind
        self.optimizer = kind.of(parameter, choice.lr)
        self.began = False
        self.held: list[torch.Tensor] = []
        # What the state has as numbers, not as tensors, in the form in which a checkpoint has it;
        # until the next update takes them, since a checkpoint may be loaded into them.
        self.numbers: dict[str, torch.Tensor] = {}

    @property
    def has_updated(self) -> bool:
        return self.began

    def state(self, parameter: torch.Tensor, steps_done: int) -> dict[str, torch.Tensor]:
        if not steps_done:
            return {}
        if not self.began:
            # A step makes the state. It will be overwritten, and the parameter keeps its value.
            before = parameter.clone()
            self.forward(parameter, torch.zeros_like(parameter))
            parameter.copy_(before)
        state = self.optimizer.state[parameter]
        for key, value in state.items():
            if isinstance(value, int | float) and key not in self.numbers:
                self.numbers[key] = torch.full((), value, dtype=torch.float64)
        return {**{k: v for k, v in state.items() if torch.is_tensor(v)}, **self.numbers}

    def forward(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        coefficient: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        if _is_set(found_inf):
            return
        (entry,), state = self.optimizer.param_groups, self.optimizer.state
        before = entry["params"][0]
        if before is not parameter:  # A profile may run a copy.
            entry["params"][0] = parameter
            if before in state:
                state[parameter] = state.pop(before)
        for key, number in self.numbers.items():
            state[parameter][key] = type(state[parameter][key])(number.item())
        self.numbers.clear()
        entry["lr"] = self.choice.lr_at(self.step)
        stepped(self.optimizer, self.kind.path, [parameter], [_taken(gradient, coefficient)])
        self.began = True
        self.held = [value for value in state[parameter].values() if torch.is_tensor(value)]


def _taken(
    gradient: torch.Tensor, coefficient: torch.Tensor | None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns what a kernel takes: clipped, or a copy where the kernel will write the unscaled
    gradient into it. Others may still read the gradient, or send it."""
    if coefficient is not None:
        return gradient * coefficient
    return gradient if scale is None else gradient.clone()


def _is_set(found_inf: torch.Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf.item())


def parameter_update(choice: OptimizerChoice, parameter: torch.Tensor) -> Update:
    """Raises CaptureError where the optimizer refuses the parameter."""
    if (foreign := choice.foreign) is not None:
        return Foreign(choice, foreign, parameter)
    return Sgd(choice) if choice.name == "sgd" else Adam(choice, parameter)
