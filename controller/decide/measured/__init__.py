"""Measures operators and messages, through the launcher, and keeps the results.

profiles              the time of each operator, per device type
standard_evaluation   the same for a step that no device can hold, on this machine
calibration           set-up latency and throughput of messages between servers
optimizer_process     runs the optimizer's commands
digests               the names that results are kept under
"""
