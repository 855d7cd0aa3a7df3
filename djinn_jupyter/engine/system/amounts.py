"""Format byte counts for people."""


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def amount(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
