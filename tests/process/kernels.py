"""Other processes that load and use engines, as kernels do: each runs a few lines and prints their results."""

from __future__ import annotations

import subprocess
import sys
import textwrap


class Kernel:
    """A Python process that runs `code`, in which `dj` is the package and `tell(text)` is read by `heard`."""

    def __init__(self, code: str, holder: str | None = None) -> None:
        prelude = "import djinn_jupyter as dj\ndef tell(value): print(value, flush=True)\n"
        if holder is not None:  # what a kernel's connection file is to a real one
            prelude += (
                f"from djinn_jupyter.link import channel as channels\nchannels.holder_name = lambda: {holder!r}\n"
            )
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def heard(self) -> str:
        """Return the next line it tells; fail with its error output when it has ended instead."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"The kernel has ended: {self.process.stderr.read()}")
        return line.rstrip("\n")

    def go_on(self) -> None:
        """Answer its `input()`."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until it has ended, and close its files."""
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def kill(self) -> None:
        self.process.kill()
        self.end()
