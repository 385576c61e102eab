"""Handwritten digits, 8 × 8 pixels, 1,797 of them, 360 for testing (UCI, shipped with scikit-learn)."""

from __future__ import annotations

import numpy as np

from backends.torch.tasks import Task, split


def load() -> Task:
    """Pixels with mean 0 and variance 1 over the whole set."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    pixels = ((pixels - pixels.mean()) / pixels.std()).astype(np.float32)
    return split(pixels, digits.astype(np.int64), test=360)
