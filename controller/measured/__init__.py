"""What is measured on the plan's servers through the launcher, and kept.

profiles      the time of each operator, per device type
calibration   set-up latency and throughput of messages between servers
table         the same for people
digests       what answers are kept under
"""
