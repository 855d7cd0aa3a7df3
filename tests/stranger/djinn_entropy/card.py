"""The entropies as a table, layers down and heads across."""

from djinn_entropy.api import HeadEntropies
from djinn_jupyter.widgets import html as markup
from djinn_jupyter.widgets import html as theme
from djinn_jupyter.widgets import spelling
from djinn_jupyter.widgets.view import View


def entropy_view(found: HeadEntropies) -> View:
    head = ["layer", *(f"head {head}" for head in range(found.values.shape[1]))]
    rows = [[str(at), *map(spelling.figure, row)] for at, row in zip(found.layers, found.values.tolist(), strict=True)]
    title = "Entropy of attention, in nats"
    html = theme.card(theme.part(markup.table(head, rows)), title=title, beside=f"at {found.reply.site}")
    return View(plain=f"{title}\n{spelling.columns(rows, head)}", html=html)
