"""Sweep an engine: prefill over ISLs, decode over KV usage and context length.

    measurements = open_measurements(path, question)
    done = await sweep(target, sweep_points(limits), measurements, options)
    tables = swept_tables(measurements.points, gpus=1, max_kv_tokens=limits.max_kv_tokens)

`points` has the grid and the order in which it is measured. `measure` runs one point, or all of them, on a
`Target`. `measurements` keeps the runs, finds points that contradict each other, and makes the tables.
`endpoint` is the target behind HTTP.
"""
