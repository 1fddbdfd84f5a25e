"""A PyTorch training step as an operator graph.

    protocol    what a model file provides: `module:function` -> TrainingStep
    joint       the joint forward and backward graph (the one place that calls torch's private API)
    refusals    what no rank could run, with the user's source line
    rewrite     that graph made placeable: split convolutions, merged ties, one update per parameter
    layout      how a tensor of given shape and strides crosses a wire
    execute     how one operator runs, on whatever rank: seeds, layouts
    updates     one optimizer step for one parameter
    operators   the rewritten graph as an OperatorGraph
    state       what a checkpoint calls parameters and buffers
    sources     which files it came from
    step        capture(): all of it
    deferred    a model built without memory, and values of it made afterwards
    part        capture_part(): all of it, with the values of a part of the model

Nothing is imported here: torch is loaded only by who captures.
"""
