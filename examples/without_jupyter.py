"""Djinn without Jupyter: stop inside a forward pass, look, edit, resume, go back. Run it with `python` on any model.

python examples/without_jupyter.py                  the demo model
python examples/without_jupyter.py PATH-OR-NAME     another one
"""

from __future__ import annotations

import sys

import numpy as np

import djinn_jupyter as dj


def main(model: str) -> None:
    engine = dj.load(model, progress=print)  # starts the engine, or attaches to the one that runs
    print(engine)

    session = engine.session("without-jupyter", fresh=True)
    middle = engine.description.layers // 2
    prompt = "The capital of France is" if engine.description.has_tokenizer else [1, 2, 3, 4, 5]
    plain = session.run(prompt, max_new_tokens=8)
    print("plain:  ", plain)

    session.breakpoint(f"resid_post.{middle}", when="step == 0")
    stop = session.run(prompt, max_new_tokens=8)
    print("stopped:", stop)
    print("value:  ", stop.hidden.shape, stop.hidden.dtype, "norms", np.round(stop.norms, 1))
    print(stop.lens(3))

    resumed = session.resume()
    print("resumed:", resumed)
    print("the same bits as the plain run:", plain.logits.tobytes() == resumed.logits.tobytes())

    session.back()  # to the same stop, as often as you like
    edited = session.edit(dj.scale(0.0), positions=-1)
    print(f"edited:  {edited.edit} over {edited.shape}, relative size {edited.relative_size:.2f}")
    print(session.effect())
    print("then:   ", session.resume())

    session.close()
    print("The engine keeps running for the next script or notebook; `djinn stop` ends it.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "demo")
