"""The placed job's figures, one or more tables per item.

    python -m benchmarks.job [--items 1 2 …] [--report FOLDER]

1 placements against one rank, to the last bit, also of steps in micro-batches and shards; 2 bytes,
counters, rails; 3 predictions; 4 sharings by replay; 5 one rank against eager, capture, memory,
Standard Evaluation; 7 one rank on CUDA, where there is a device; 8 an ordinary script on every NIC;
9 training beside PyTorch's own ways; 10 a script's collectives cut between NICs, against others'
ways; 11 ours beside DDP, FSDP and pipelines, by replay; 12 how VGG16's gradients use two NICs, as
in the thesis' figure 5.1. --report writes the tables of these items into FOLDER/job.md and leaves
those of other items. Figures of time need a machine that does nothing else; --disturbed says in the
report that other programs ran meanwhile.
"""

from __future__ import annotations

from benchmarks.report import run

HEAD = "# The placed job, measured\n\n`make bench-job`. Compare ratios; seconds are a machine's.\n"

ITEMS = {
    1: ("exact.tables", "exact_parts.tables"),
    2: ("rails.tables",),
    3: ("prediction.tables", "training.tables"),
    4: ("sharings.tables",),
    5: ("one_rank.tables", "memory.tables", "standard_evaluation.tables"),
    7: ("cuda.tables",),
    8: ("scripts.tables",),
    9: ("rivals.tables",),
    10: ("collectives.tables",),
    11: ("peers.tables",),
    12: ("vgg16_on_two_nics.tables",),
}

if __name__ == "__main__":
    run("benchmarks.job", __doc__, ITEMS, HEAD)
