"""Captures a PyTorch training step as an operator graph, and says how each operator runs.

capture() in `step` loads the model (`protocol`), traces forward and backward together (`joint`),
refuses what no rank could run (`refusals`), makes the graph placeable (`rewrite`, with
`micro_batches`, `writers`, `clipping` and `scaling`), and turns it into an OperatorGraph
(`operators`, with `costs`). For research, `decompositions` and `written_out` make the operators
finer, and `inference` leaves the forward pass alone. capture_part() in `partial_values` does the
same with the values of a part of the model (`deferred`). Ranks and profiles run operators by
`execute`; `allocations` and `memory` measure what they hold.

Nothing is imported here, so that only a process that captures loads torch.
"""
