"""How long ranks waited for a processor, and what that says of a step that took too long. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.controller.few_names import few_names
from placewire.optimizer.device_names import server_of

# Any server has programs that run for a moment, and a step that is a little longer has many causes.
_WORTH_TELLING = 0.05
_LONGER = 0.05


def about_waits(waits: Mapping[str, float], prediction_error: float | None) -> tuple[str, ...]:
    """Returns a sentence where the step took longer than predicted and ranks waited."""
    if prediction_error is None or prediction_error <= _LONGER:
        return ()
    on: dict[str, float] = {}
    for device, part in waits.items():
        if part > _WORTH_TELLING:
            on[server_of(device)] = max(part, on.get(server_of(device), 0.0))
    if not on:
        return ()
    worst = sorted(on, key=lambda server: -on[server])
    least, most = f"{on[worst[-1]]:.0%}", f"{on[worst[0]]:.0%}"
    waited = most if least == most else f"{least} to {most}"
    return (
        f"the step took {prediction_error:.0%} longer than predicted, and ranks of "
        f"{few_names(worst)} waited {waited} of the time for a processor: more ran there at once "
        "than it has processors: other programs, other ranks, or the threads of one (job.threads)",
    )
