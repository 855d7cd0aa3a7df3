"""Takes from a Python process, at its start, what Linux has and macOS has not: /proc, /sys, /dev/shm, and names of the
standard library and of libc. psutil keeps its files: on a Mac it asks the system by calls of its own. Each refused path
is noted in a file."""

import ctypes
import os
import select
import signal
import socket
import sys

import psutil  # noqa: F401 - before anything is taken away

HIDDEN = ("/proc", "/sys", "/dev/shm")
OF_LIBC = {"mallopt", "malloc_trim", "epoll_ctl", "epoll_create1", "prctl", "memfd_create", "eventfd"}
MODULES = {
    os: (
        "sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise fdatasync copy_file_range splice getrandom "
        "eventfd memfd_create pidfd_open pipe2 getxattr setxattr listxattr removexattr O_DIRECT O_TMPFILE O_PATH"
    ),
    select: "epoll",
    signal: "SIGRTMIN SIGRTMAX SIGPWR sigtimedwait sigwaitinfo pidfd_send_signal",
    socket: "SO_PEERCRED SO_DOMAIN SO_PROTOCOL TCP_INFO AF_NETLINK AF_PACKET AF_ALG SOCK_CLOEXEC SOCK_NONBLOCK",
}
NOTED = os.open(os.environ["DJINN_HIDDEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def refuse(path: object) -> None:
    """Raise FileNotFoundError for a path that a Mac lacks, unless psutil asks."""
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    if not text.startswith(HIDDEN):
        return
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("psutil"):
            return
        frame = frame.f_back
    os.write(NOTED, f"{os.getpid()} {text}\n".encode())
    raise FileNotFoundError(2, "No such file or directory", text)


def refusing(call):
    def instead(path, *arguments, **named):
        refuse(path)
        return call(path, *arguments, **named)

    return instead


class Libc(ctypes.CDLL):
    def __getattr__(self, name):
        if name in OF_LIBC:
            raise AttributeError(name)
        return super().__getattr__(name)


for module, names in MODULES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("stat", "lstat", "readlink", "access"):
    setattr(os, name, refusing(getattr(os, name)))
ctypes.CDLL = Libc
OPENING = ("open", "os.listdir", "os.scandir")
sys.addaudithook(lambda event, given: refuse(given[0]) if event in OPENING and given else None)
