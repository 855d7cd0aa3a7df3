"""The evaluation of Djinn: experiments that answer the original's claims, and benchmarks against other tools."""

from pathlib import Path
from typing import Final

EVALUATION: Final = Path(__file__).parents[1]
"""The folder of this distribution in a checkout, with the results."""
CHECKOUT: Final = EVALUATION.parent
