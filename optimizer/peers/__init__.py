"""What users would take instead of a search: DistributedDataParallel, FSDP and pipelines.

Each is a graph and a placement of its own, simulated as ours are, on all NICs of the same cluster.
"""
