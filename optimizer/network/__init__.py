"""The model of the network: what NICs carry, and what concurrent transfers get of it.

nics         what NICs carry, and which rates are limited together
transfers    what one transfer takes: paths past the NICs, and how it is cut over the rails
sharing      the methods that every sharing answers, and the values that it answers with
strict, even, guarantee, job, unshaped   one file for each sharing, with all that is special to it
sharings     the sharings by name
traffic      rates in proportion to known traffic
script_allocation   bandwidth for a job that places itself
"""
