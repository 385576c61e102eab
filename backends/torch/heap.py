"""The C library's heap of a process that computes: what is freed stays for what comes next."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Parameters of glibc's ``mallopt`` (malloc.h)."""


def keep_freed_memory() -> None:
    """Give nothing back to the system, as the allocator of a GPU does not either.

    Else every step asks for its activations anew, and clearing their pages takes a fifth of a step, more or less
    from one moment to the next. Where there is no glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)
