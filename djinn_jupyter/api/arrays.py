"""Convert arrays between user code (numpy, torch if already imported, numbers, lists) and the wire.

bfloat16 becomes `ml_dtypes.bfloat16`, bit for bit. numpy is imported at the first conversion, torch never.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from djinn_jupyter.api.arguments import shown
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire.arrays import ITEM_BYTES, Array

if TYPE_CHECKING:
    import numpy as np


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return a writable numpy copy of a wire Array."""
    return shared_numpy(array).copy()


def shared_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return the values of a wire Array without a copy, for reading."""
    import numpy as np

    return np.frombuffer(array.data, dtype=_numpy_dtype(array.dtype)).reshape(array.shape)


def from_any(value: object) -> Array:
    """Convert a number, list, numpy array, torch tensor or wire Array. InvalidEdit for a value without numbers."""
    if isinstance(value, Array):
        return value
    if isinstance(value, bool | int | float):
        return Array.scalar(float(value))
    return from_numpy(_as_numpy(value))


def from_numpy(values: np.ndarray[Any, Any]) -> Array:
    """Convert a numpy array. Shares memory with a contiguous `values`: do not change it before the reply."""
    import numpy as np

    dtype = values.dtype.name
    if dtype not in ITEM_BYTES:
        raise InvalidEdit(
            f"Values of dtype {dtype} do not cross the wire; convert them to one of {', '.join(ITEM_BYTES)}."
        )
    ordered = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False)).reshape(values.shape)
    return Array(dtype=dtype, shape=tuple(values.shape), data=ordered.reshape(-1).view(np.uint8).data)


def same(array: Array, values: np.ndarray[Any, Any]) -> bool:
    """Return whether an array has these values, where any NaN is another: JSON keeps no sign of one."""
    import numpy as np

    return array.dtype == from_numpy(values).dtype and np.array_equal(to_numpy(array), values, equal_nan=True)


def largest(values: np.ndarray[Any, Any], count: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the `count` numbers of largest magnitude with their indices, the largest first; NaN is left out."""
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    known = int(np.count_nonzero(~np.isnan(numbers)))
    order = np.argsort(-np.abs(numbers), kind="stable")[: min(max(count, 0), known)]
    return [(tuple(map(int, np.unravel_index(at, values.shape))), float(numbers[at])) for at in order]


def token_ids(prompt: object) -> tuple[int, ...]:
    """Return token ids from a list, array or tensor of integers with one axis, or from what a tokenizer returns for one
    text. Raises UsageError for another shape, a padded text, or a negative id."""
    import numpy as np

    values = _of_a_tokenizer(prompt) if isinstance(prompt, Mapping) else _numbers(prompt)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        raise UsageError(f"A prompt is text or one list of token ids, not {values.dtype} of shape {values.shape}.")
    if values.size and values.min() < 0:
        raise UsageError(f"A token id is 0 or more; {int(values.min())}, at position {int(values.argmin())}, is none.")
    return tuple(int(token) for token in values)


def _of_a_tokenizer(encoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the ids of a BatchEncoding or dict with `input_ids`, which may have an axis for a batch of one."""
    if "input_ids" not in encoded:
        raise UsageError("A prompt is text or one list of token ids; this dict has no input_ids.")
    if not _numbers(encoded.get("attention_mask", 1)).all():
        raise UsageError("This text is padded (attention_mask has zeros); tokenize it without padding.")
    ids = _numbers(encoded["input_ids"])
    return ids[0] if ids.ndim == 2 and len(ids) == 1 else ids


def _numbers(values: object) -> np.ndarray[Any, Any]:
    try:
        return _as_numpy(values)
    except InvalidEdit:
        raise UsageError(f"A prompt is text or one list of token ids, not {shown(values)}.") from None


def _as_numpy(value: object) -> np.ndarray[Any, Any]:
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, torch)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidEdit(f"These values have no shape: {error}.") from None
    if array.dtype.kind not in "biufcV":  # V: a dtype of ml_dtypes
        raise InvalidEdit(f"A {type(value).__name__} holds no numbers that could be sent.")
    return array


def _from_torch(tensor: Any, torch: Any) -> np.ndarray[Any, Any]:
    values = tensor.detach().cpu().contiguous()
    if values.dtype is torch.bfloat16:
        bits: np.ndarray[Any, Any] = values.view(torch.int16).numpy()
        return bits.view(_numpy_dtype("bfloat16"))
    array: np.ndarray[Any, Any] = values.numpy()
    return array


def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name).newbyteorder("<")
