"""The published formulations as engines, each optimising its own paper's model.

icc-p1, icc-p2               Device Placement for DNNs, ICC 2025: a fixed two-tier bandwidth
thesis-p1, -p2, -p3          the thesis' (3.1)-(3.9) and (4.2)-(4.8): P1 at a fixed bandwidth, P2
                             and P3 decide the bandwidth of each pair of servers
thesis-p3-fixed              P3 at a fixed bandwidth, as the thesis has it before allocation
moirai                       Moirai's (4)-(8): unlike devices and channels, an order of operators
                             that is decided, and transfers that wait for one another

They run over HiGHS, Gurobi or CP-SAT. In all of them memory is a static sum. In the first two
papers transfers never wait for one another, and every device runs its operators in a topological
sort. The placement is scored under the problem's own model afterwards, like that of any other
engine.
"""
