"""The profile of a fleet that serves: what its traffic shows, and careful probes, within minutes.

`loads` has what replicas say of themselves, and the latencies that follow from two such readings. `probing`
asks replicas one request at a time where little is known, and stops while an SLO is at risk. `endpoint` is a
replica behind HTTP, by its metrics.
"""
