"""A real sshd on loopback, with keys of its own, and an `ssh` on the path of the test that knows it as `box`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
SEPARATION = Path("/run/sshd")  # where sshd keeps, as root, the part of it that strangers speak to


class Sshd:
    """`bin` holds the `ssh` of this side, `far` the programs that a login finds. The far side has a HOME of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.port, self._ssh = folder, free_port(), shutil.which("ssh")
        self.bin, self.far, self.home = (folder / name for name in ("bin", "far", "home"))
        for made in (self.bin, self.far, self.home):
            made.mkdir(parents=True)
        for name in ("host", "user", "stranger"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        shutil.copy(folder / "user.pub", folder / "admitted")
        self.known = folder / "known"
        self.know((folder / "host.pub").read_text())
        self._write_client()
        self.environment = {"HOME": str(self.home), **environment, "PATH": f"{self.far}:/usr/bin:/bin"}
        self.install("djinn", f'exec {sys.executable} -m djinn_jupyter.cli.main "$@"')
        self._process: subprocess.Popen[bytes] | None = None

    def know(self, key: str) -> None:
        self.known.write_text(f"[127.0.0.1]:{self.port} {key}")

    def install(self, name: str, script: str) -> Path:
        """Put a program where a login finds it."""
        return _program(self.far / name, script)

    def start(self) -> None:
        if os.geteuid() == 0:
            SEPARATION.mkdir(mode=0o755, exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text(self._settings())
        server = shutil.which("sshd") or "/usr/sbin/sshd"
        self._process = subprocess.Popen([server, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE)
        said = []
        while not (line := self._process.stderr.readline()).startswith(b"Server listening"):
            said.append(line)
            assert line, said
        self._process.stderr.close()

    def logins(self) -> list[psutil.Process]:
        """The processes of sshd that hold a login each."""
        return [] if self._process is None else psutil.Process(self._process.pid).children()

    def cut(self) -> None:
        """End sshd and every login, as a cable does that is pulled out."""
        if self._process is None:
            return
        server = psutil.Process(self._process.pid)
        for process in (*server.children(recursive=True), server):
            with suppress(psutil.NoSuchProcess):  # a login may end by itself
                if process == server or "sshd" in process.name():
                    process.kill()
        self._process.wait()
        self._process = None

    def _settings(self) -> str:
        said = " ".join(f'"{name}={value}"' for name, value in self.environment.items())
        return (
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder / 'host'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder / 'admitted'}\nStrictModes no\nPasswordAuthentication no\n"
            f"PermitRootLogin yes\nSetEnv {said}\nLogLevel INFO\n"
        )

    def _write_client(self, key: str = "user") -> None:
        config = self.folder / "config"
        config.write_text(
            f"Host box\nHostName 127.0.0.1\nPort {self.port}\nHost *\nUserKnownHostsFile {self.known}\n"
            f"GlobalKnownHostsFile none\nStrictHostKeyChecking yes\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"IdentityFile {self.folder / key}\n"
        )
        _program(self.bin / "ssh", f'exec {self._ssh} -F {config} "$@"')

    def come_as(self, key: str) -> None:
        """Let this side prove another key."""
        self._write_client(key)


@contextmanager
def sshd(folder: Path, environment: dict[str, str]) -> Iterator[Sshd]:
    server = Sshd(folder, environment)
    server.start()
    try:
        yield server
    finally:
        server.cut()


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
