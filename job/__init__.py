"""The program of one rank: `python -m placewire.job SPEC.json`.

messages    which messages a rank sends and receives, cut over the rails (pure)
transport   gloo: posting, sending, waiting, counting
rendezvous  how ranks find each other, and learn early that one of them failed
device      what a rank's tensors are on
lower       a captured step and a placement -> one straight-line module for this rank
replay      a graph and a placement -> the same messages around operators that only take time
calibrate   instead of a job: set-up latency and throughput between servers, over its transport
exchanges   which servers measure when, and with messages of what size (pure)
path_fit    set-up latency and throughput from round trips (pure)
emulated    what a replay adds to the real network: the set-up of messages
state       what a rank keeps from step to step, by the names of a checkpoint
checkpoint  saving and loading it, whole or not at all
resume      at which step a job begins
runtime     the step loop of both
recorder    when operators and messages of the last steps ran, where the job asks for a trace
clocked     a recorded step of a captured job, with a clock after each operator
heart       how ranks learn that one of them is lost
hold        until when a rank may run
events      JSON lines on standard output; signals
"""
