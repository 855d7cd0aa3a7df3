"""The step of quantized weights: which kinds pass the load-time self-test on the device of the run.

The self-test compares with `generate` of the same load, bit for bit. A kind whose library is not installed is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import transformers

from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_least
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import DjinnError, MissingDependency, ModelRefused
from tests.device import DEVICE
from tests.engine.quantized.files import plain_folder, write_fp8, write_mxfp4

WIDTH, DEPTH = 2048, 8  # of the plain model at its usual size; half a gigabyte in 16 bits
DTYPE: Final = "float16"  # what a T4 computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of quantized weights: `write` makes its folder from the plain one, `options` are those of the load."""

    name: str
    write: Callable[[Path, Path], Path] = lambda plain, to: plain
    options: dict[str, Any]


def _by_bitsandbytes(plain: Path, to: Path, **wish: Any) -> Path:
    made = transformers.BitsAndBytesConfig(**wish)
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=made, dtype=DTYPE)
    model.save_pretrained(to)
    return to


KINDS: Final = (
    Kind(name="--quantize int8", options={"quantize": "int8", "dtype": DTYPE}),
    Kind(
        name="4 bits by bitsandbytes",
        write=partial(_by_bitsandbytes, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=DTYPE),
        options={},
    ),
    Kind(
        name="8 bits by bitsandbytes without a threshold",
        write=partial(_by_bitsandbytes, load_in_8bit=True, llm_int8_threshold=0.0),
        options={},
    ),
    Kind(name="fp8", write=write_fp8, options={}),
    Kind(name="mxfp4", write=lambda plain, to: write_mxfp4(to), options={}),
)


def run_quantized(setting: Setting) -> Result:
    size = {} if setting.quick else {"hidden": WIDTH, "wide": 2 * WIDTH, "layers": DEPTH}
    plain = plain_folder(setting.home / "plain", **size)
    figures: list[Figure] = []
    for kind in KINDS:
        figures += _figures(kind, plain, setting.home / f"kind {len(figures)}")
        setting.so_far(figures, f"up to {kind.name}")
    return Result(benchmark="quantized", settings={"dtype": DTYPE, **size}, figures=tuple(figures))


def _figures(kind: Kind, plain: Path, to: Path) -> list[Figure]:
    """Return whether a kind passes the self-test, and the bytes that its weights take."""
    passes, nbytes, why = None, None, None
    try:
        path = kind.write(plain, to)
        engine = open_engine(EngineConfig(model=str(path), device=str(DEVICE), data_folder=to / "data", **kind.options))
        passes, nbytes = 1.0, float(engine.description.weight_bytes)
        engine.close()
    except (ImportError, MissingDependency) as error:
        why = str(error).strip().splitlines()[0]
    except ModelRefused as error:
        passes, why = 0.0, str(error)
    except DjinnError as error:
        why = str(error)
    return [
        Figure(
            name=f"{kind.name} passes the self-test{f': {why}' if passes == 0 else ''}",
            unit="of 1",
            value=None if passes is None else Spread.of([passes]),
            bar=at_least(1.0),
            not_run=why if passes is None else None,
        ),
        Figure(
            name=f"weights of {kind.name}",
            unit="bytes",
            value=None if nbytes is None else Spread.of([nbytes]),
            not_run=why if nbytes is None else None,
        ),
    ]
