"""Writes the head of docs/reproduction.md: how verdicts and figures are read."""

from __future__ import annotations

HEAD = """\
# The papers, reproduced

For whoever wants to know whether what the five papers claim holds in Placewire. `make reproduce`
writes this page, from the list in `benchmarks/reproduction` and from what its runs found
(`found.json` there). Each table and figure has what the paper claims and the rule that decides it;
the paper's number stands beside ours, and how the settings differ is said below.

A verdict is computed from the numbers, over models and settings (the cases):

| verdict | meaning |
| --- | --- |
| holds | the rule holds, as often as the paper claims it |
| holds so far | claimed of every case, it holds in those that are decided; others are not yet |
| does not hold | it does not, in our setting, and more time cannot change that |
| out of time | a time limit ended a search; more time could decide it, so nothing failed |
| not run yet | the command that stands with it has not been run, with these settings |
| cannot be asked here | a reason is given |

A figure that is called shorter, longer, more or less than another differs by more than 1 %, below
which two are alike. A rival without a placement within the memories here is beaten only if the
paper has none of it either (`OOM`). It is left out otherwise, which is said: a case may fail
without it, but cannot hold.

What is marked `older` was found by older sources than these: the commit stands below it. What was
found for other settings than those that are told here answers another question: it is left out, and
is `not run yet`. Figures from a report in `docs/benchmarks` are older only once its table is
another, or where nobody knows their commit; a commit that is known may be older than these sources.

`>= 10 s` and `<= 5 ms` are of searches that their time limit ended; `<= 5 ms` is also of times that
were measured beside other programs. The step of a paper's program is its own objective, of the
graph that its reduction left, as the papers report it; those of other methods are simulated. A step
of `auto` counts as shorter than a rival's only if that ended by itself, and as longer in any case.
Times that were measured beside other programs are upper limits: a claim about them is decided only
if quiet could not change it, and is `not run undisturbed` otherwise.
"""
