from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from transformers import BatchEncoding

from djinn_jupyter.api import edits
from djinn_jupyter.api.arrays import from_any, from_numpy, to_numpy, token_ids
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire.arrays import ITEM_BYTES, Array
from tests.wire.strategies import arrays


@settings(max_examples=80, deadline=None)
@given(array=arrays().filter(lambda a: a.dtype != "bool"))
def test_every_array_goes_to_numpy_and_back_bit_for_bit(array: Array) -> None:
    values = to_numpy(array)
    assert (values.dtype.name, values.shape) == (array.dtype, array.shape)
    assert from_numpy(values) == array


def test_arrays_of_every_dtype_and_order_go_to_numpy() -> None:
    for name in ITEM_BYTES:
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
        assert from_numpy(np.ones(2, dtype)).dtype == name
    values = to_numpy(Array(dtype="float32", shape=(2,), data=bytes(8)))
    values[0] = 1
    values = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert to_numpy(from_numpy(values)).tolist() == values.tolist()
    assert to_numpy(from_numpy(np.zeros((3, 0)))).shape == (3, 0)
    assert from_any(2).shape == ()
    assert to_numpy(from_any([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]
    assert from_any(np.float32(2)).dtype == "float32"
    for value in ["text", b"text", [[1], [2, 3]], {"a": 1}, None, np.ones(2, complex)]:
        with pytest.raises(InvalidEdit, match=r"holds no numbers|have no shape|dtype complex128"):
            from_any(value)


def test_torch_tensors_cross_with_their_bits() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        tensor = torch.randn(2, 3, requires_grad=True).to(dtype).t()
        values = to_numpy(from_any(tensor))
        assert values.shape == (3, 2)
        assert values.astype(np.float32).tolist() == tensor.float().tolist()


def test_torch_is_not_imported_to_find_out() -> None:
    code = (
        "import sys, djinn_jupyter as dj, numpy as np; dj.set_to(np.ones(3)); "
        "import djinn_jupyter.api.loading; sys.exit('torch' in sys.modules or 'IPython' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_imports_nothing_large() -> None:
    code = (
        "import sys, djinn_jupyter as dj; dir(dj); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'IPython', 'plotly', 'numpy', 'zmq', 'msgspec')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_prompts_of_token_ids() -> None:
    assert token_ids([1, 2]) == token_ids(np.array([1, 2])) == token_ids((1, 2)) == (1, 2)
    for prompt in ([1.5], [[1]], "text"):
        with pytest.raises(UsageError):
            token_ids(prompt)
    with pytest.raises(UsageError, match=r"^A token id is 0 or more; -3, at position 1, is none\.$"):
        token_ids([5, -3, 7])
    for encoded in [
        {"input_ids": [1, 2]},
        {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]},
        BatchEncoding({"input_ids": np.array([[1, 2]]), "attention_mask": np.array([[1, 1]])}),
    ]:
        assert token_ids(encoded) == (1, 2)
    for encoded, said in [
        ({"ids": [1]}, "no input_ids"),
        ({"input_ids": [1, 0], "attention_mask": [1, 0]}, "is padded"),
        ({"input_ids": [[1], [2]]}, "one list of token ids, not int64 of shape"),
        ([[1], [2, 3]], "one list of token ids"),
        ([object()], "one list of token ids"),
    ]:
        with pytest.raises(UsageError, match=said):
            token_ids(encoded)


def test_edits_say_what_they_are() -> None:
    assert edits.scale(2).factor == 2.0
    assert edits.add([1.0, 0.0], coef=4).coef == 4.0
    assert edits.patch_from("rome", site="resid_post.3", positions="0:2").positions == (0, 1)
    with pytest.raises(InvalidEdit):
        edits.clamp()
    with pytest.raises(InvalidEdit, match="both ends"):
        edits.patch_from("rome", positions=slice(1, None))
