"""The program that runs on a server for each rank of a job: `python -m placewire.job SPEC.json`.

contract     what a launcher gives a rank, what the rank reports, and what a checkpoint folder holds
messages     which messages a rank sends and receives, how they are cut, and which part leaves next
transport    how ranks find each other, connect, and send over gloo or NCCL
supervision  events, signals, heartbeats between ranks, and the end of the network's lease
placed       a placed or replayed job: from the captured step or the graph to checkpoints and traces
calibration  instead of a job: set-up latency and throughput between servers, over its transport
script       a script of the user's own, started as torchrun would start it
"""
