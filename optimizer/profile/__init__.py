"""What each operator of a captured step costs.

    interpret   runs a captured step operator by operator
    measure     the median time of each operator on this machine, alone and with fixed threads
    cache       measured profiles kept by structure, device type, processor, threads and torch
    scale       a profile times a constant

Nothing is imported here: torch is loaded only by who measures.
"""
