"""Estimated profiles: the tables that `interp` reads, without a GPU.

`estimate(request)` samples an estimator's step latencies on grids, `write_estimates` writes profile
directories. `request` has the values, the errors and the interface of an estimator; `aiconfigurator` is the
one over AI Configurator, whose names and quirks are in `library`.
"""
