"""The requests to an engine, in the imperative. Each gets exactly one reply: one from its class line, or Failed."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.wire.greeting import *
from djinn_jupyter.wire.looks import *
from djinn_jupyter.wire.modules import *
from djinn_jupyter.wire.people import *
from djinn_jupyter.wire.pieces import *
from djinn_jupyter.wire.readings import *
from djinn_jupyter.wire.request_base import OwnerRequest, RequestBase, RequestMeta, SessionRequest, StopRequest
from djinn_jupyter.wire.running import *
from djinn_jupyter.wire.sessions import *
from djinn_jupyter.wire.weights import *

Request = RequestBase[Any]
