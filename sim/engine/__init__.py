"""The discrete-event simulator: the only place that imports SimPy.

A run is read in this order: `run` sets the scene, `lanes` plays a schedule and `actors` a program, both hand ready ops
to `core`, which starts and ends them on the stations of `gpu`, `link`, `fair_share` and `parameter_server`, and
`allocator` counts their memory. Where it is placed, `blocks` does that, and in `waiting` ops wait for it. `draws` says
how long each op of a program takes, `faults` what dies when.
"""
