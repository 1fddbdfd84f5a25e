"""The published formulations, each optimising its own paper's model, as engines.

icc-p1, icc-p2               Device Placement for DNNs, ICC 2025: a fixed two-tier bandwidth
thesis-p1, -p2, -p3          the thesis' (3.1)-(3.9) and (4.2)-(4.8): P1 at a fixed bandwidth, P2
                             and P3 decide the bandwidth of each pair of servers

Common to all of them: transfers never wait for one another; every device runs its operators in the
graph's recorded topological sort; memory is a static sum. A placement found this way is scored
under the problem's own model afterwards, like any other engine's.
"""
