"""A simulator of sessions that leave and return, played over traces: Djinn's policy beside others. No engine runs."""

from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).parent / "recorded" / "demo.json"
LATENCY: Final = 0.001  # of a move between the verb and its first byte, seconds
