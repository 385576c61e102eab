"""Which activations to keep: objectives (what a plan's peak is) and solvers (the plan of least peak).

A chain has outputs y_0 … y_n of sizes d_0 … d_n, y_0 being the input. A plan is the set of checkpoints that are kept
from the forward pass until they are used; 0 and n are always among them. Between two checkpoints the outputs are
recomputed from the first.
"""
