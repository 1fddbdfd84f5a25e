"""A PyTorch training step as an operator graph.

    protocol    what a model file provides: `module:function` -> TrainingStep
    joint       the joint forward and backward graph (the one place that calls torch's private API)
    branches    torch.cond as one operator
    refusals    what no rank could run, with the user's source line
    rewrite     that graph made placeable: split convolutions, micro-batches, constants
    micro_batches   the graph of one micro-batch as often as gradients are accumulated
    writers     merged ties, one update per parameter, one copy per buffer
    clipping    the norm of all gradients, and the coefficient that updates take
    nodes       which memory a node's tensor lies in, and other small questions
    layout      how a tensor of given shape and strides crosses a wire
    execute     how one operator runs, on whatever rank: seeds, updates, layouts
    stepped     what must be told the number of the step
    schedule    the learning rate of a step
    updates     one optimizer step for one parameter
    costs       what an operator computes and moves
    operators   the rewritten graph as an OperatorGraph
    state       what a checkpoint calls parameters and buffers
    sources     which files it came from
    step        capture(): all of it
    collector   Python's garbage collector, paused meanwhile
    moving      a step on another device than it was built on
    deferred    a model built without memory, and values of it made afterwards
    part        capture_part(): all of it, with the values of a part of the model
    allocations what each operator holds only while it runs
    memory      what the steps of a process take, and what its program does
    allocator   how whoever runs a step allocates memory

Nothing is imported here: torch is loaded only by who captures.
"""
