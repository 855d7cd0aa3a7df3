"""The adapter's capabilities, returned by initialize."""

from __future__ import annotations

from typing import Any, Final

CAPABILITIES: Final[dict[str, Any]] = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsBreakpointLocationsRequest": True,
    "supportsEvaluateForHovers": True,
    "supportsSetVariable": True,
    "supportsStepBack": True,
    "supportsCompletionsRequest": True,
    "supportsLoadedSourcesRequest": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsSingleThreadExecutionRequests": True,
    "supportsTerminateRequest": True,
    "supportTerminateDebuggee": True,
    "supportsLogPoints": False,
    "supportsRestartRequest": False,
    "supportsExceptionInfoRequest": False,
    "exceptionBreakpointFilters": [],
}
