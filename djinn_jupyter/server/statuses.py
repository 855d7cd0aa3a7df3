"""The HTTP status of an error, chosen by the nearest class of its inheritance chain."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from djinn_jupyter import errors
from djinn_jupyter.server.http_errors import NoSuchEngine, NotForBrowsers, TookTooLong

STATUSES: Final[dict[type[errors.DjinnError], HTTPStatus]] = {
    errors.DjinnError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.UsageError: HTTPStatus.BAD_REQUEST,
    NotForBrowsers: HTTPStatus.METHOD_NOT_ALLOWED,
    errors.UnknownSession: HTTPStatus.NOT_FOUND,
    errors.IllegalMove: HTTPStatus.CONFLICT,
    errors.SessionHeld: HTTPStatus.CONFLICT,
    errors.SessionsWouldSuffer: HTTPStatus.CONFLICT,
    errors.CheckpointRefused: HTTPStatus.CONFLICT,
    errors.StorageFailed: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.OverQuota: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.MemoryShortage: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.EngineUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    NoSuchEngine: HTTPStatus.NOT_FOUND,
    TookTooLong: HTTPStatus.GATEWAY_TIMEOUT,
    errors.VersionMismatch: HTTPStatus.CONFLICT,
    errors.MalformedMessage: HTTPStatus.BAD_REQUEST,
    errors.MessageTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}


def status_of(error: errors.DjinnError) -> HTTPStatus:
    nearest = next(kind for kind in type(error).__mro__ if kind in STATUSES)
    return STATUSES[nearest]
