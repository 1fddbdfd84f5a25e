"""What each operator of a captured step costs.

    interpret   runs a captured step operator by operator
    straight    the step as a rank runs it, with a clock between operators
    measure     the median time of each operator on this machine, alone and with fixed threads
    sampling    how many steps that takes
    joining     profiles of several servers as one graph, a column per device type
    exchange    a profile that another machine asks for
    standing    whether a kept profile still holds on this machine
    processor   which processor this is
    rough       times and workspace at a large batch from profiles at small ones
    recorded    a profile from the traces of ranks, and how far an estimate was off
    cache       measured profiles kept by structure, device type, processor, threads and torch
    devices     named devices: what their data sheets say, and what kernels reach of it
    modelled    the time of each operator from its FLOPs and bytes, and how far off that is
    scale       a profile times a constant

Nothing is imported here: torch is loaded only by who measures.
"""
