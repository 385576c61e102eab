"""Speed, always as a ratio against a named reference that is measured in the same run: `python -m benchmarks`."""
