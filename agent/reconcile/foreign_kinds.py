"""The kinds of what others may have on what is ours: on bridges and on queues.

It goes with what it is on, whoever removes that (hold_back.py). ON_BRIDGES and ON_QUEUES list what
is looked for.
"""

from __future__ import annotations

# Collections of a ForeignEntry on what is ours; the key of the first two is our bridge, or our NIC.
PORTS = "ports"
SHAPERS = "shapers"
FEATURES = "features"
OTHER_FLOWS = "other flows"  # Groups and meters are among them.
OTHER_ROUTES = "other routes"
OTHER_RULES = "other rules"
# On a NIC (its name is the key): Open vSwitch takes it off when it opens the NIC.
RECEIVERS = "receiving disciplines"
# Rules of routing that name an interface (`iif`, `oif`). The remedy has all words of the rule;
# there is none where some of its conditions are not known, and the text then ends in "...".
INTERFACE_RULES = "rules by interface"
NEIGHBOURS = "neighbours"
NEXTHOPS = "nexthop objects"
INTERFACES = "interfaces"
DISCIPLINES = "queueing disciplines"
CLASSES = "classes"
FILTERS = "filters"
# Rows of others that refer to a QoS or queue of ours, which the database then does not remove.
USERS = "users of our rows"
# What is looked for on each bridge of ours, and on each HTB of ours (with all of its classes). What
# the kernel or Open vSwitch makes by itself is not foreign: IPv6 link-local addresses, routes of
# `proto kernel`, the one flow of a new bridge.
ON_BRIDGES = (
    PORTS, FEATURES, "flows", OTHER_FLOWS, "addresses", "routes", OTHER_ROUTES, NEIGHBOURS,
    NEXTHOPS, INTERFACES, DISCIPLINES,
)  # fmt: skip
ON_QUEUES = ("classifiers", FILTERS, DISCIPLINES, CLASSES, "queues", USERS)
# At most so many objects on one bridge or NIC are named one by one.
MOST_NAMED = 50
