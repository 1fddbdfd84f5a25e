"""One chain of simulated annealing, walked from move to move in compiled chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.bundling import with_fewer_messages
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.layout import USUAL_CUTS, Cuts
from placewire.optimizer.engines.neighbourhood import make_neighbourhood
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.kernels.annealing import proposals
from placewire.optimizer.kernels.annealing.anneal_held import anneal_held
from placewire.optimizer.kernels.annealing.anneal_turns import anneal_turns
from placewire.optimizer.kernels.annealing.anneal_whole import anneal
from placewire.optimizer.kernels.graphs.construct import longest_tails
from placewire.optimizer.kernels.simulation.transfers import device_traffic, rates_by_volume
from placewire.optimizer.kernels.tables import FIRST_COME
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import starting_rates
from placewire.optimizer.simulation.simulate import simulate

# How often each kind of move is tried at first, in the order of kernels/annealing/proposals.py.
_FIRST_WEIGHTS = (0.30, 0.15, 0.12, 0.03, 0.12, 0.08, 0.05, 0.08, 0.07)
# The part of its first weight that a kind always keeps, and how fast older successes fade.
_LEAST_PART, _FADING = 0.4, 0.5
# Every pair's traffic is raised by this part of the largest, so that a move may use any pair.
_TRACE = 1e-4


@dataclass
class Chain:
    """device int64[n] and priority float64[n] change with every accepted move. usual
    float64[KINDS]: how often each kind of move is tried at first; weights: how often now. cuts: as
    in Solution; a walk keeps them."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None
    cuts: Cuts | None
    usual: FloatArray
    weights: FloatArray
    tries: FloatArray = field(default_factory=lambda: np.zeros(len(_FIRST_WEIGHTS)))
    wins: FloatArray = field(default_factory=lambda: np.zeros(len(_FIRST_WEIGHTS)))

    def restart(self, start: Solution) -> None:
        self.device = start.device.astype(np.int64).copy()
        self.priority = start.priority.astype(np.float64).copy()
        self.rates, self.cuts = start.rates, start.cuts

    def adapt(self) -> None:
        """Makes the weights follow how often each kind of move was an improvement."""
        rate = (self.wins + 0.5) / (self.tries + 20.0)
        rate = np.where(self.usual > 0, rate, 0.0)
        self.weights = _LEAST_PART * self.usual + (1 - _LEAST_PART) * rate / rate.sum()
        self.tries *= _FADING
        self.wins *= _FADING


class Walker:
    """The compiled search loops on one problem; several chains may walk at once, one per thread."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.problem = problem
        self.costing = Costing(problem)
        self.tables = self.costing.tables
        self.neighbourhood = make_neighbourhood(problem)
        self.is_first_come = self.tables.discipline == FIRST_COME
        # With a budget of moves, the answers for other graphs are to remain the same.
        is_fine = bool(graph.notes.get("decompose"))
        self.takes_turns = is_fine and problem.model == "thesis"
        fastest = problem.seconds.min(axis=1, initial=np.inf)
        self.tails = longest_tails(
            graph.topological_order, *graph.outputs, graph.consumers_start, graph.consumers,
            fastest, np.zeros(graph.tensor_count),
        ) - fastest  # fmt: skip

    def chain(self, start: Solution) -> Chain:
        usual = np.array(_FIRST_WEIGHTS)
        if not self.neighbourhood.table.size:
            usual[[proposals.BLOCKS_MOVE, proposals.BLOCKS_COPY]] = 0.0
        if self.takes_turns:
            usual[[proposals.RUN_NEAR, proposals.HASTEN]] = 0.0
        usual /= usual.sum()
        chain = Chain(start.device, start.priority, start.rates, start.cuts, usual, usual)
        chain.restart(start)
        return chain

    def improve_cuts(
        self, chain: Chain, tries: int, seed: int, is_late: Callable[[], bool]
    ) -> None:
        """Gives the chain the best of so many other cuts, where it is better; fewer are tried where
        it is late."""
        if self.costing.bundles is None:
            return
        chance = np.random.default_rng(seed)
        best = self.costing.cost(Solution(chain.device, chain.priority, chain.rates, chain.cuts))
        for _ in range(tries):
            if is_late():
                break
            tried = replace(best.solution, cuts=(best.cuts or USUAL_CUTS).moved(chance))
            best = min(best, self.costing.cost(tried), key=lambda found: found.key)
        chain.cuts = best.cuts

    def walk(
        self, chain: Chain, moves: int, hot: float, cold: float, seed: int, *, hold: bool
    ) -> Found:
        """The best state of `moves` tries, from temperature hot to cold (seconds).

        hold: decided rates stay as they are: the chain's own, or by the rule for the traffic at
        the beginning. Otherwise they follow the traffic of each state.
        """
        decides = self.problem.decides_rates
        rates = self.held_rates(chain) if hold and decides else None
        scoring = self.costing.scoring(rates)
        device, priority = chain.device.copy(), chain.priority.copy()
        walked = (
            chain.device, chain.priority, device, priority, moves, hot, cold, seed,
            chain.weights, chain.tries, chain.wins,
        )  # fmt: skip
        if self.is_first_come and (hold or not decides):
            seconds, excess = anneal_held(
                self.tables, scoring.rates, self.costing.check_memory, self.costing.reference,
                self.neighbourhood, self.tails, *walked,
            )  # fmt: skip
        elif self.takes_turns and (hold or not decides):
            seconds, excess = anneal_turns(
                self.tables, scoring.rates, self.costing.check_memory, self.costing.reference,
                self.neighbourhood, self.tails, chain.device, device, *walked[4:],
            )  # fmt: skip
        else:
            guide = self.guide(chain)
            seconds, excess = anneal(
                self.tables, self.costing.labels(chain.cuts), scoring, self.neighbourhood, guide,
                *walked,
            )  # fmt: skip
        return Found(device, priority, rates, seconds, excess, chain.cuts)

    def held_rates(self, chain: Chain) -> FloatArray:
        """float64[S, S, R]: the chain's own rates where it has some, else rates by the rule, a
        little for pairs that exchange nothing yet."""
        servers, rails = self.tables.nic_rates.shape
        if chain.rates is not None and chain.rates.shape == (servers, servers, rails):
            return np.ascontiguousarray(chain.rates)
        traffic = device_traffic(self.tables, chain.device)
        traffic = traffic + max(_TRACE * float(traffic.max(initial=0.0)), 1.0)
        np.fill_diagonal(traffic, 0.0)
        return rates_by_volume(self.tables, traffic)

    @cached_property
    def _without_bundles(self) -> Problem:
        """The problem as the simulator sees it, which counts no bundles itself."""
        counts = self.costing.bundles is not None
        return with_fewer_messages(self.problem) if counts else self.problem

    def guide(self, chain: Chain) -> proposals.Guide:
        graph, problem = self.problem.graph, self._without_bundles
        rates = chain.rates
        if problem.decides_rates and rates is None:
            rates = starting_rates(problem, chain.device)
        timeline = simulate(problem, chain.device, chain.priority, None, rates)
        arrival = np.zeros((graph.tensor_count, len(problem.cluster.devices)))
        for message in timeline.messages:
            arrival[message.tensor, message.destination] = message.finish_seconds
        start, tensor = graph.inputs
        consumer = np.repeat(np.arange(graph.operator_count), np.diff(start))
        producer = graph.tensor_producer[tensor]
        sent = (chain.device[consumer] != chain.device[producer]) & (graph.tensor_bytes[tensor] > 0)
        there = np.where(sent, arrival[tensor, chain.device[consumer]], timeline.finish[producer])
        order = np.argsort(timeline.start, kind="stable").astype(np.int64)
        place = np.argsort(order)
        path, reason = proposals.critical_path(
            self.tables, chain.device, order, timeline.start, timeline.finish, there
        )
        return proposals.Guide(order, place, path, reason)
