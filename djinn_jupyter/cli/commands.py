"""What a family of commands is given to add its own to.

Every command sets the default `command`: a function of the parsed options that returns the exit status.
"""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
