"""What the network does with transfers: the one model that everything else reads.

nics         what NICs carry, and which rates together stay within a limit
transfers    what one transfer takes: paths past the NICs, cutting over rails
sharing      what a sharing is asked, and the values that it answers with
strict, even, guarantee, job, unshaped   one file for each sharing: everything that is special to it
sharings     the sharings by name
traffic      bandwidth for a job that places itself
"""
