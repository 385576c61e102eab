"""Colours of plots."""

from __future__ import annotations

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart by the colour-blind."""
