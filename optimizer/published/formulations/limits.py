"""Refuses programs that are too large to be built, and says what to do instead."""

from __future__ import annotations

from placewire.optimizer.published.formulations import (
    cp_sat,
    gurobi,
    moirai_intervals,
    sorted_intervals,
)
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.highs import tangent_rows
from placewire.optimizer.published.formulations.papers import Formulation
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.formulations.whole_numbers import refuse_beyond_64_bits

HIGHS_ROWS = 1_500_000
HIGHS_BYTES = 3 * 2**30
# What is held at once while HiGHS solves: its matrices by row and by column, ours, the presolved
# ones. 1.3 GiB were resident for 506,000 rows with 2.0 million non-zeros.
_BYTES_PER_ROW, _BYTES_PER_NONZERO = 900, 450


def highs_bytes(formulation: Formulation) -> int:
    """The estimated peak of memory while HiGHS solves."""
    size, tangents = formulation.draft.size, tangent_rows(formulation.draft.hyperbolas)
    rows, nonzeros = size.rows + tangents, size.nonzeros + 3 * tangents
    return rows * _BYTES_PER_ROW + nonzeros * _BYTES_PER_NONZERO


def cp_sat_parts(formulation: Formulation) -> int:
    """The size of a model of CP-SAT: its intervals, rows and clauses."""
    if formulation.name == "moirai":
        return moirai_intervals.part_count(formulation.instance)
    return sorted_intervals.part_count(formulation)


def refuse_too_large(formulation: Formulation, solver: SolverName) -> None:
    """Raises FormulationTooLargeError."""
    if solver == "cp-sat":
        cp_sat.refuse_too_large(formulation.name, cp_sat_parts(formulation))
        refuse_beyond_64_bits(formulation)
        return
    size = formulation.draft.size
    if solver == "gurobi":
        cones = size.hyperbolas > 0
        columns = gurobi.FREE_COLUMNS_WITH_CONES if cones else gurobi.FREE_COLUMNS
        if (size.columns > columns or size.rows > gurobi.FREE_ROWS) and (
            not gurobi.has_full_licence()
        ):
            raise FormulationTooLargeError(
                f"{_words(formulation)}; the licence that comes with gurobipy takes at most "
                f"{columns} columns{' where there are quadratic rows' if cones else ''} and "
                f"{gurobi.FREE_ROWS} rows. Name the file of a full licence in GRB_LICENSE_FILE or "
                "put it at ~/gurobi.lic, or use the open solver: --solver highs"
            )
        return
    rows, needed = size.rows + tangent_rows(formulation.draft.hyperbolas), highs_bytes(formulation)
    if rows > HIGHS_ROWS or needed > HIGHS_BYTES:
        raise FormulationTooLargeError(
            f"{_words(formulation)}; with tangents that is {rows:,} rows and about "
            f"{needed / 2**30:.1f} GiB for HiGHS, of which at most {HIGHS_ROWS:,} rows and "
            f"{HIGHS_BYTES / 2**30:.0f} GiB are tried. Engine auto takes graphs of this size, and "
            "cp-sat needs no such rows (--solver cp-sat); a reduction makes them smaller "
            "(--reduction thesis)"
        )


def _words(formulation: Formulation) -> str:
    size = formulation.draft.size
    most = max(formulation.draft.families, key=lambda family: family.rows)
    return (
        f"{formulation.name} is too large: {size.rows:,} rows, of them {most.rows:,} of "
        f"{most.equations}, and {size.columns:,} columns"
    )
