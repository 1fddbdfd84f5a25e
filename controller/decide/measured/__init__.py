"""What is measured on the plan's servers through the launcher, and kept.

profiles              the time of each operator, per device type
standard_evaluation   the same for a step that no device can hold, on this machine
calibration           set-up latency and throughput of messages between servers
table                 these, for people
digests               what answers are kept under
"""
