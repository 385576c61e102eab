"""Training steps and service demands from captured packets, and captures from simulated runs.

capture → decode → streams → steps → demands; `reading` plays them in a row, `synthesis` goes the other way.
"""
