"""What is measured on the plan's servers through the launcher, and kept.

profiles      the time of each operator, per device type
"""
