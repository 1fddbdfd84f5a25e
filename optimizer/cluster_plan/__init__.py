"""plan.yaml's cluster: the one typed form of it, and the one way from it to a Cluster.

values      one value each: names, addresses, quantities with units
section     the cluster as frozen types
checks      what its parts must hold together
documents   YAML as plans may use it, and its mistakes by YAML path
payload     line rates as payload rates
conversion  the section as a Cluster
reading     a plan file, or a file of the section alone, as a Cluster
"""
