"""The `cluster` section of plan.yaml: its types and checks, and its conversion to a Cluster.

values      parses single values: names, addresses, quantities with units
section     the section as frozen types
checks      rules between its parts
documents   reads YAML as plans may use it, and words mistakes by YAML path
payload     converts line rates to payload rates
conversion  converts the section to a Cluster
reading     reads a plan file, or a file of the section alone, as a Cluster
"""
