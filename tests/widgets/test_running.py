"""The card of a running generation: tokens stream in, each coloured by its probability."""

from __future__ import annotations

import html
import re

from djinn_jupyter.widgets import views
from tests.widgets import samples
from tests.widgets.static import faults_in


def test_a_running_card_colours_what_has_a_probability_and_of_much_the_end() -> None:
    view = views.running_view(samples.STREAMED, session="paris", drawn="10:20:30")
    assert re.findall(r'<bdi style="([^"]*)" title="([^"]*)">([^<]*)</bdi>', html.unescape(view.html)) == [
        ("background:#bbde2f;color:#000", "' Paris' 90 %", " Paris"),
        ("background:#3b518b;color:#fff", "'.' 25 %", "."),
    ]
    assert "&lt;b&gt;" in view.html
    assert "probability of a token" in view.html
    plain = views.running_view([(" w", None)] * 300, session="paris", drawn="10:20:30")
    assert "probability of a token" not in plain.html
    long = views.running_view([(f" w{n}", 0.5) for n in range(1000)], session="paris", drawn="10:20:30")
    assert long.html.count("title=") == 256
    assert " w743</" not in long.html
    assert " w744</bdi>" in long.html
    assert " w999" in long.plain
    assert faults_in(long.html) == []
