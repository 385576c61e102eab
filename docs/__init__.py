"""The pages, and the script that computes their tables."""
