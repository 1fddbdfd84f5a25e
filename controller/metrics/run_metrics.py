"""Makes the metrics of the run that goes on. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from placewire.controller.metrics.run_facts import RunFacts
from placewire.controller.metrics.run_state import Rank, RunState
from placewire.exposition import Metric
from placewire.optimizer.device_names import server_of

# No pair is shown where there are more than this: Prometheus holds each, and NICs tell enough.
MOST_PAIRS = 4096

_RUN = ("plan", "run")
_RANK = (*_RUN, "rank", "server", "device")
_NIC = (*_RUN, "server", "nic")
_PAIR = (*_RUN, "server", "destination", "nic")

INFO = Metric(
    "placewire_run_info", "gauge", (*_RUN, "kind", "sharing"),
    "The run that goes on: the kind of its job and the network's sharing; always 1.",
)  # fmt: skip
BEGAN = Metric("placewire_run_start_timestamp_seconds", "gauge", _RUN, "When the job began.")
STEPS = Metric(
    "placewire_run_steps_total", "counter", _RUN,
    "Training steps that every rank has done, those before a resumed checkpoint included.",
)  # fmt: skip
PLANNED_STEPS = Metric(
    "placewire_run_planned_steps", "gauge", _RUN,
    "How many steps the job has when it is done; absent for a script.",
)  # fmt: skip
STEP_SECONDS = Metric(
    "placewire_run_step_seconds_total", "counter", _RUN,
    "How long this run's steps took together, each as long as on its slowest rank.",
)  # fmt: skip
LAST_STEP = Metric(
    "placewire_run_last_step_timestamp_seconds", "gauge", _RUN,
    "When the last rank ended the last step.",
)  # fmt: skip
PREDICTED = Metric(
    "placewire_run_predicted_step_seconds", "gauge", _RUN,
    "How long a step is predicted to take; where batches have several shapes, on average.",
)  # fmt: skip
RATIO = Metric(
    "placewire_run_step_prediction_ratio", "gauge", _RUN,
    "How many times longer than predicted the latest 20 steps took; the first step left out.",
)  # fmt: skip
REMAINING = Metric(
    "placewire_run_remaining_seconds", "gauge", _RUN,
    "How long the other steps, and the reading of their batches, take where they take as long as "
    "the latest 20.",
)  # fmt: skip
SAMPLES = Metric(
    "placewire_run_samples_total", "counter", _RUN,
    "Samples of all batches of the steps done; of a placed job.",
)  # fmt: skip
LOSS = Metric(
    "placewire_run_loss", "gauge", _RUN, "The latest step's loss; absent where it is not finite."
)
NON_FINITE = Metric(
    "placewire_run_non_finite_loss_steps_total", "counter", _RUN,
    "Steps of this run whose loss was not finite.",
)  # fmt: skip
VALIDATION_LOSS = Metric(
    "placewire_run_validation_loss",
    "gauge",
    _RUN,
    "The mean loss of the latest validation, of its batches so far while it goes on; absent where "
    "it is not finite.",
)
REPORTED = Metric(
    "placewire_run_metric", "gauge", (*_RUN, "metric"),
    "What the training step reports beside its loss, by its name: the latest value.",
)  # fmt: skip
RANK_UP = Metric(
    "placewire_run_rank_up", "gauge", _RANK,
    "1 while the rank runs; 0 where it ended before it had done all; absent once it has.",
)  # fmt: skip
RANK_SECONDS = Metric(
    "placewire_run_rank_step_seconds_total", "counter", _RANK,
    "How long this run's steps took on this rank together.",
)  # fmt: skip
RANK_MEMORY = Metric(
    "placewire_run_rank_memory_bytes", "gauge", _RANK,
    "The most that the rank's steps took, without its program; told every few seconds.",
)  # fmt: skip
RANK_MEMORY_LIMIT = Metric(
    "placewire_run_rank_memory_limit_bytes", "gauge", _RANK,
    "The memory that the rank's device has by the plan.",
)  # fmt: skip
NIC_SENT = Metric(
    "placewire_run_nic_transmit_bytes_total", "counter", _NIC,
    "Bytes that the NIC has sent since the job began, headers included, whoever sent them.",
)  # fmt: skip
NIC_PLANNED = Metric(
    "placewire_run_nic_planned_bytes_total", "counter", _NIC,
    "Payload bytes that the steps done were to send; of a script, the NIC's share of all that its "
    "server sent.",
)  # fmt: skip
PAIR_PLANNED = Metric(
    "placewire_run_pair_planned_bytes_total", "counter", _PAIR,
    "Payload bytes that the steps done were to send from server to destination by this NIC.",
)  # fmt: skip
PAIR_PROMISED = Metric(
    "placewire_run_pair_promised_bytes_per_second", "gauge", _PAIR,
    "The payload rate that was promised and measured before the job.",
)  # fmt: skip
PAIR_DELIVERED = Metric(
    "placewire_run_pair_delivered_bytes_per_second", "gauge", _PAIR,
    "The payload rate that was measured before the job, while all pairs sent.",
)  # fmt: skip

METRICS = (
    INFO, BEGAN, STEPS, PLANNED_STEPS, STEP_SECONDS, LAST_STEP, PREDICTED, RATIO, REMAINING,
    SAMPLES, LOSS, NON_FINITE, VALIDATION_LOSS, REPORTED,
    RANK_UP, RANK_SECONDS, RANK_MEMORY, RANK_MEMORY_LIMIT,
    NIC_SENT, NIC_PLANNED, PAIR_PLANNED, PAIR_PROMISED, PAIR_DELIVERED,
)  # fmt: skip


def exposition(state: RunState) -> str:
    """ "" where no job has begun."""
    facts = state.facts
    if facts is None:
        return ""
    run = (facts.plan, facts.run)
    # Counters begin with the first step: a resumed job's would jump from 0 to its checkpoint's.
    of_steps = (
        ""
        if facts.steps is None
        else STEPS.of(run, state.steps or None) + STEP_SECONDS.of(run, state.step_seconds)
    )
    non_finite = None if facts.steps is None else state.non_finite_steps
    samples = None if facts.samples is None else facts.samples * state.steps or None
    return "".join((
        INFO.of((*run, facts.kind, facts.sharing), 1),
        BEGAN.of(run, facts.started_unix),
        of_steps,
        PLANNED_STEPS.of(run, facts.steps),
        LAST_STEP.of(run, state.last_step_unix),
        PREDICTED.of(run, facts.predicted_step_seconds),
        RATIO.of(run, state.prediction_ratio),
        REMAINING.of(run, state.remaining_seconds),
        SAMPLES.of(run, samples),
        LOSS.of(run, state.loss),
        NON_FINITE.of(run, non_finite),
        VALIDATION_LOSS.of(run, state.validation_loss),
        REPORTED.text(((*run, name), value) for name, value in state.metrics.items()),
        *_of_ranks(state, facts),
        *_of_nics(state, facts),
        *_of_pairs(state, facts),
    ))  # fmt: skip


def _of_ranks(state: RunState, facts: RunFacts) -> Iterator[str]:
    def labels(rank: int) -> tuple[str, ...]:
        device = facts.devices[rank]
        return facts.plan, facts.run, str(rank), server_of(device), device

    ranks: list[tuple[tuple[str, ...], Rank]] = [
        (labels(number), rank) for number, rank in enumerate(state.ranks)
    ]
    yield RANK_UP.text((of, r.is_up) for of, r in ranks if r.is_up is not None)
    if facts.steps is not None:
        yield RANK_SECONDS.text((of, r.step_seconds) for of, r in ranks)
    yield RANK_MEMORY.text((of, r.memory_bytes) for of, r in ranks if r.memory_bytes is not None)
    limits = enumerate(facts.memory_bytes)
    yield RANK_MEMORY_LIMIT.text((labels(number), limit) for number, limit in limits)


def _of_nics(state: RunState, facts: RunFacts) -> Iterator[str]:
    sent = state.sent_bytes()
    planned: dict[tuple[str, str], float] = defaultdict(float)
    for (server, _, nic), size in state.planned_bytes.items():
        planned[server, nic] += size
    totals: dict[str, int] = defaultdict(int)
    for (server, nic), size in sent.items():
        totals[server] += size if (server, nic) in facts.shares else 0
    planned |= {place: share * totals[place[0]] for place, share in facts.shares.items()}
    yield NIC_SENT.text(((facts.plan, facts.run, *place), size) for place, size in sent.items())
    yield NIC_PLANNED.text(
        ((facts.plan, facts.run, *place), size) for place, size in planned.items()
    )


def _of_pairs(state: RunState, facts: RunFacts) -> Iterator[str]:
    planned, links = state.planned_bytes, state.links
    if len(planned) <= MOST_PAIRS:
        yield PAIR_PLANNED.text(
            ((facts.plan, facts.run, *pair), size) for pair, size in planned.items()
        )
    if len(links) <= MOST_PAIRS:
        of = [((facts.plan, facts.run, one.source, one.destination, one.nic), one)
              for one in links]  # fmt: skip
        yield PAIR_PROMISED.text((pair, one.promised_bits_per_second / 8) for pair, one in of)
        yield PAIR_DELIVERED.text((pair, one.measured_bits_per_second / 8) for pair, one in of)
