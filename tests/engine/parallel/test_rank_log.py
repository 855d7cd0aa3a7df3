"""What another rank logs of a layer: with the request that rank 0 is at work on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from djinn_jupyter.engine.system.log import LoggedRequest, PlainLines
from djinn_jupyter.parallel.follower import LayerFailed, layer_told
from djinn_jupyter.wire.logs import Trace

SECRET = "a secret of the prompt"
RUN = LoggedRequest(trace=Trace("3f2a9c01" * 4, "9b1c7d42" * 2, "%djinn_run"), verb="Run", person="anna")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.handler.setFormatter(PlainLines())
    with caplog.at_level(logging.DEBUG, "djinn_jupyter"):
        yield caplog


def test_a_layer_that_fails_is_told_with_its_request_and_without_the_error_s_text(lines: Any) -> None:
    with pytest.raises(LayerFailed), layer_told(3, 1, RUN):
        raise ValueError(SECRET)
    (failed,) = lines.records
    assert vars(failed)["fields"] == {"layer": 3, "error_type": "ValueError"}
    said = lines.text
    assert "The pass failed in layer 3 on rank 1, which ends [3f2a9c01 9b1c7d42 Run of %djinn_run, anna]" in said
    assert SECRET not in said


def test_the_loss_of_rank_0_is_no_failure_of_a_layer(lines: Any) -> None:
    with pytest.raises(EOFError), layer_told(3, 1, RUN):
        raise EOFError
    assert not lines.records


def test_layers_of_no_request_are_not_told(lines: Any) -> None:
    with layer_told(0, 1, None):
        pass
    assert not lines.records
    with layer_told(1, 1, RUN):
        pass
    (ran,) = lines.records
    assert vars(ran)["fields"] == {"layer": 1}
    assert "[3f2a9c01 9b1c7d42 Run of %djinn_run, anna]" in lines.text
