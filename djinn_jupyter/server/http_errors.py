"""Errors raised by the server itself. A browser receives each with the code of an error in `errors.py`.

UsageError
└── NotForBrowsers      a request that belongs to a kernel's client
EngineUnavailable
├── NoSuchEngine        no engine of that id is in the registry
└── TookTooLong         no answer within the time limit
"""

from __future__ import annotations

from djinn_jupyter.errors import EngineUnavailable, UsageError


class NotForBrowsers(UsageError):
    @property
    def code(self) -> str:
        return UsageError.__name__


class NoSuchEngine(EngineUnavailable):
    @property
    def code(self) -> str:
        return EngineUnavailable.__name__


class TookTooLong(EngineUnavailable):
    @property
    def code(self) -> str:
        return EngineUnavailable.__name__
