"""Plain PyTorch and transformers, over a random GPT-2 that is drawn once: `generate`, single layers, a patching loop,
batches, an SAE; over a whole saved model; and copies between host and device.

Shapes: h_1TD hidden states of T positions. Each verb reads its own clock around the work alone."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.baselines.copies import ALIGNMENT, Copying, copier_for, seconds_of
from djinn_evaluation.baselines.eager import Beside
from djinn_evaluation.baselines.weights import (
    Decoding,
    ModelAsked,
    Timestamps,
    decoded,
    device_for,
    digest,
    hooked,
    leaving_after,
    settle,
)


def load(folder: str, shape: dict[str, int], threads: int) -> GPT2LMHeadModel:
    """Return the model of a folder, on the device; draw it and save it in the folder if it is not there."""
    torch.set_num_threads(threads)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in the engine: both sides attend by the same kernels
    if not (Path(folder) / "config.json").is_file():
        _draw(shape).save_pretrained(folder)
    model: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    loaded: GPT2LMHeadModel = model.eval().requires_grad_(False).to(device_for(None))
    return loaded


def _draw(shape: dict[str, int]) -> GPT2LMHeadModel:
    """Draw matrices at unit gain, vectors around their initial value: tensors that differ in meaning differ in bits."""
    config = GPT2Config(
        n_layer=shape["layers"],
        n_embd=shape["width"],
        n_head=shape["heads"],
        vocab_size=shape["vocabulary"],
        n_positions=shape["positions"],
        bos_token_id=None,
        eos_token_id=None,
    )
    generator = torch.Generator().manual_seed(shape["seed"])
    model: Any = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    model.tie_weights()
    drawn: GPT2LMHeadModel = model.eval()
    return drawn


SHOWN = 8  # logits of a row in a reply, to be compared with those of tools that compute other bits


class Plain:
    model: GPT2LMHeadModel
    _tokens_1T: Tensor
    _hidden: list[Tensor]
    _filled: DynamicCache
    _copying: Copying | None = None
    _copied = 0  # bytes that it copies

    @property
    def _blocks(self) -> Any:
        return self.model.transformer.h

    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
        self.model = load(folder, shape, threads)
        return {}

    def _row(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self.model.device)

    def _since(self, begun: float) -> float:
        """Wait for the device; return the seconds since `begun`."""
        settle(self.model.device)
        return perf_counter() - begun

    @torch.inference_mode()
    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate; `decoding` are the seconds from the first new token to the last."""
        return decoded(self.model, tokens, new, self.model.device, Timestamps())

    @torch.inference_mode()
    def sample_batched(self, tokens: list[int], new: int, rows: int) -> dict[str, Any]:
        """Draw `rows` continuations of one prompt in one batch."""
        return self._batched([tokens], new, do_sample=True, temperature=1.0, num_return_sequences=rows)

    @torch.inference_mode()
    def generate_batched(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        """Generate from all prompts in one batch, padded on the left."""
        return self._batched(prompts, new, do_sample=False)

    def _batched(self, prompts: list[list[int]], new: int, **options: Any) -> dict[str, Any]:
        longest, begun = max(map(len, prompts)), perf_counter()
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self.model.device
        self.model.requires_grad_()  # as it was loaded; of frozen weights torch computes a head slower
        made = self.model.generate(
            torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=0,
            **options,
        )
        return {"tokens": made[:, longest:].tolist(), "seconds": self._since(begun)}

    @torch.inference_mode()
    def remember(self, tokens: list[int]) -> dict[str, Any]:
        """Keep hidden states and the cache of a pass over `tokens`; return the last logits' digest."""
        self._tokens_1T = self._row(tokens)
        self._filled = DynamicCache(config=self.model.config)
        self.model(self._tokens_1T[:, :-1], past_key_values=self._filled, use_cache=True, logits_to_keep=1)
        hidden: list[Tensor] = []
        with hooked(self._blocks, lambda _, args: hidden.append(args[0].clone()), before=True):
            logits = self._forward(self._tokens_1T)
        self._hidden = hidden
        return {"digest": digest(logits[0, -1])}

    @torch.inference_mode()
    def first_layers(self, count: int) -> dict[str, Any]:
        """Run a pass over the remembered tokens that is left after `count` layers."""
        begun = perf_counter()
        with leaving_after(self._blocks[count - 1]):
            self._forward(self._tokens_1T)
        return {"seconds": self._since(begun)}

    @torch.inference_mode()
    def from_layer(self, layer: int) -> dict[str, Any]:
        """Run layers `layer`.. and the head over the saved state: a resume cannot beat it."""
        begun = perf_counter()
        logits = self._rest(self._hidden[layer], layer, DynamicCache(config=self.model.config))
        token = int(logits[0, -1].argmax())
        return {"seconds": perf_counter() - begun, "digest": digest(logits[0, -1]), "token": token}

    @torch.inference_mode()
    def from_layer_in_decode(self, layer: int) -> dict[str, Any]:
        """Run the same for the last token alone, over the cache of the tokens before it."""
        hidden = self._step_hidden(layer)
        settle(self.model.device)
        begun = perf_counter()
        logits = self._rest(hidden, layer, self._filled)
        token = int(logits[0, -1].argmax())
        seconds = perf_counter() - begun
        ran: Any = self._filled.layers[layer:]
        for rows in ran:
            rows.crop(-1)
        return {"seconds": seconds, "digest": digest(logits[0, -1]), "token": token}

    def _step_hidden(self, layer: int) -> Tensor:
        """Return the hidden state of the last token as it enters a layer of its own decode step."""
        found: list[Tensor] = []
        with hooked([self._blocks[layer]], lambda _, args: found.append(args[0].clone()), before=True):
            self.model(self._tokens_1T[:, -1:], past_key_values=self._filled, use_cache=True, logits_to_keep=1)
        self._filled.crop(-1)
        return found[0]

    def _rest(self, hidden_1TD: Tensor, layer: int, cache: DynamicCache) -> Tensor:
        """Run GPT-2 from a layer on under sdpa, where one causal pass or one new token needs no mask."""
        for block in self._blocks[layer:]:
            hidden_1TD = block(hidden_1TD, past_key_values=cache, attention_mask=None, use_cache=True)
        logits: Tensor = self.model.lm_head(self.model.transformer.ln_f(hidden_1TD)[:, -1:])
        return logits

    @torch.inference_mode()
    def head(self) -> dict[str, Any]:
        """Run the final norm and the head for one position."""
        row = self._hidden[-1][:, -1:]
        begun = perf_counter()
        self.model.lm_head(self.model.transformer.ln_f(row))
        return {"seconds": self._since(begun)}

    def copy(self, nbytes: int, slot: int) -> dict[str, Any]:
        """Copy `nbytes` from the host, `slot` at a time, into two slots: streaming cannot be faster."""
        if self._copying is None or self._copied != nbytes:
            device, self._copied = self.model.device, nbytes
            pieces = torch.ones(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda").split(slot)
            raw = [[torch.zeros(slot + 2 * ALIGNMENT, dtype=torch.uint8, device=device)] for _ in range(2)]
            self._copying = Copying(copier_for(device), [[piece] for piece in pieces], raw)
        return {"seconds": self._copying.copy()}

    @torch.inference_mode()
    def generate_and_copy(self, tokens: list[int], new: int, nbytes: int, slot: int) -> dict[str, Any]:
        """Run a pass of copying beside each pass of `generate`, neither waiting for the other."""
        self.copy(nbytes, slot)
        assert self._copying is not None
        return decoded(self.model, tokens, new, self.model.device, Beside(self._copying, new))

    def _forward(self, tokens_1T: Tensor, use_cache: bool = True) -> Tensor:
        logits: Tensor = self.model(tokens_1T, use_cache=use_cache, logits_to_keep=1).logits
        return logits

    @torch.inference_mode()
    def prepare_patching(self, clean: list[int], corrupted: list[int]) -> dict[str, Any]:
        self._clean: list[Tensor] = []
        with hooked(self._blocks, lambda _, args, out: self._clean.append(_hidden_of(out).clone())):
            self._forward(self._row(clean))
        self._corrupted_1T = self._row(corrupted)
        return {}

    @torch.inference_mode()
    def patch_layer(self, layer: int) -> dict[str, Any]:
        """Patch each position's residual after `layer` from the clean into the corrupted run, a full forward each."""
        found: list[Tensor] = []
        begun = perf_counter()
        for position in range(self._corrupted_1T.shape[1]):
            with hooked([self._blocks[layer]], self._patch(layer, position)):
                found.append(self._forward(self._corrupted_1T, use_cache=False)[0, -1])
        seconds = self._since(begun)
        digests = [digest(row) for row in found]
        return {"seconds": seconds, "rows": [row[:SHOWN].tolist() for row in found], "digests": digests}

    @torch.inference_mode()
    def patch_layer_batched(self, layer: int) -> dict[str, Any]:
        """Patch all positions of a layer as one batch: not bit for bit the same as one at a time."""
        length = self._corrupted_1T.shape[1]
        places = torch.arange(length, device=self.model.device)

        def patch(_: Any, args: Any, output: Any) -> Any:
            hidden = _hidden_of(output).clone()
            hidden[places, places] = self._clean[layer][0]
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        begun = perf_counter()
        with hooked([self._blocks[layer]], patch):
            self._forward(self._corrupted_1T.expand(length, -1), use_cache=False)
        return {"seconds": self._since(begun)}

    def attribute(self, clean: list[int], corrupted: list[int], token: int) -> dict[str, Any]:
        """Return (clean - corrupted) residual x gradient of a logit, by layer and position."""
        self.prepare_patching(clean, corrupted)
        kept: list[Tensor] = []

        def keep(_: Any, args: Any, output: Any) -> None:
            kept.append(_hidden_of(output))
            kept[-1].retain_grad()

        entry = self.model.get_input_embeddings()
        with hooked([entry], lambda _, args, out: out.requires_grad_()), hooked(self._blocks, keep):
            self._forward(self._corrupted_1T.clone(), use_cache=False)[0, -1, token].backward()
        scores = [((a - b.detach()) * b.grad)[0].sum(-1) for a, b in zip(self._clean, kept, strict=True)]
        return {"scores": torch.stack(scores).tolist()}

    def _patch(self, layer: int, position: int) -> Callable[..., Any]:
        def patch(_: Any, args: Any, output: Any) -> Any:
            _hidden_of(output)[:, position] = self._clean[layer][:, position]
            return output

        return patch


def _hidden_of(output: Any) -> Tensor:
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


BATCH = 32


class Batched:
    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
        self.model = load(folder, shape, threads)
        return {}

    @torch.inference_mode()
    def collect(self, prompts: list[list[int]], layer: int, path: str) -> dict[str, Any]:
        """Write the residual after `layer` at each prompt's last position; return CPU or GPU seconds."""
        clock = perf_counter if self.model.device.type == "cuda" else process_time
        begun = clock()
        rows_PD = torch.empty(len(prompts), self.model.config.n_embd)
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
        for at in range(0, len(order), BATCH):
            batch = order[at : at + BATCH]
            rows_PD[batch] = self._last([prompts[number] for number in batch], layer)
        tokens = [token for prompt in prompts for token in prompt]
        starts = [0, *torch.tensor([len(prompt) for prompt in prompts]).cumsum(0).tolist()]
        values = {f"resid_post.{layer}": rows_PD, "tokens": torch.tensor(tokens), "starts": torch.tensor(starts)}
        _save(values, Path(path))
        return {"seconds": clock() - begun}

    def _last(self, prompts: list[list[int]], layer: int) -> Tensor:
        longest = len(prompts[0])
        device = self.model.device
        filled = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
        ends = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = (torch.arange(longest, device=device) < ends[:, None]).long()
        with leaving_after(self.model.transformer.h[layer]) as found:
            self.model(filled, attention_mask=mask, use_cache=False)
        return found[0][torch.arange(len(prompts), device=device), ends - 1].cpu()


def _save(values: dict[str, Tensor], path: Path) -> None:
    """Write the file and force it to the disk, as the engine does."""
    save_file(values, path)
    with path.open("rb") as file:
        os.fdatasync(file.fileno())


SEED = 3


class Features(Plain):
    _encoder_FD: Tensor
    _decoder_FD: Tensor
    _bias_F: Tensor
    _decoder_bias_D: Tensor

    def save_sae(self, folder: str, features: int) -> dict[str, Any]:
        """Draw an SAE of standard form, keep it, and save it as SAELens does."""
        width, draw = self.model.config.n_embd, torch.Generator().manual_seed(SEED)
        encoder_DF = torch.randn(width, features, generator=draw) * width**-0.5
        self._decoder_FD = torch.randn(features, width, generator=draw) * features**-0.5
        self._encoder_FD, self._bias_F = encoder_DF.T.contiguous(), torch.zeros(features)
        self._decoder_bias_D = torch.zeros(width)
        Path(folder).mkdir(parents=True, exist_ok=True)
        declared = {"architecture": "standard", "d_in": width, "d_sae": features, "dtype": "float32"}
        (Path(folder) / "cfg.json").write_text(json.dumps(declared))
        tensors = {"W_enc": encoder_DF, "b_enc": self._bias_F, "W_dec": self._decoder_FD, "b_dec": self._decoder_bias_D}
        save_file(tensors, Path(folder) / "sae_weights.safetensors")
        return {}

    @torch.inference_mode()
    def generate_spliced(self, tokens: list[int], new: int, layer: int) -> dict[str, Any]:
        """Generate, with the reconstruction in place of the block's output at every position of every pass."""

        def splice(module: Any, args: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            made = self._active(hidden, slice(None)) @ self._decoder_FD + self._decoder_bias_D
            return (made, *output[1:]) if isinstance(output, tuple) else made

        with hooked([self._blocks[layer]], splice):
            return decoded(self.model, tokens, new, self.model.device, Timestamps())

    @torch.inference_mode()
    def row(self, calls: int, features: int) -> dict[str, Any]:
        """Compute one feature of one position, `calls` times, each of so many in turn."""
        x_1D = torch.ones(1, self.model.config.n_embd)
        begun = perf_counter()
        for call in range(calls):
            self._active(x_1D, slice(call % features, call % features + 1))
        return {"seconds": perf_counter() - begun}

    def _active(self, x: Tensor, chosen: slice) -> Tensor:
        return linear(x - self._decoder_bias_D, self._encoder_FD[chosen], self._bias_F[chosen]).relu()


TIMES = 5


class Whole(Decoding):
    def load(self, model: str, threads: int) -> dict[str, Any]:
        """Return the bytes of weights that a token reads: all but the embeddings, of which it reads one row."""
        self.device = device_for(None)
        self.model = ModelAsked(model=model, dtype=None, threads=threads).read().to(self.device)
        self.model.generation_config.eos_token_id = None
        table = self.model.get_input_embeddings().weight
        return {"read": sum(p.nbytes for p in self.model.parameters() if p is not table)}

    def copy(self, nbytes: int) -> dict[str, Any]:
        """Return the bytes a second that a copy on the device reads and writes, the best of some."""
        source, target = (torch.ones(nbytes, dtype=torch.uint8, device=self.device) for _ in range(2))
        settle(self.device)
        return {"rate": 2 * nbytes / min(seconds_of(source, target) for _ in range(TIMES))}


# Every copy begins on an idle device and is over when the device has done it.
Pair = tuple[Tensor, Tensor]
CHUNK = 4 << 20  # bytes of a read or a write


class Link:
    def __init__(self) -> None:
        self._streams: list[Any] = []

    def prepare(self, nbytes: int, threads: int, folder: str | None = None) -> dict[str, Any]:
        """Make touched buffers, pinned and not, for each direction; and a file where `folder` is given."""
        torch.set_num_threads(threads)
        self._device = device_for(None)
        pins = self._device.type == "cuda"
        self._source = torch.randint(256, (nbytes,), dtype=torch.uint8)
        self._host = {True: self._source.pin_memory() if pins else self._source.clone(), False: self._source.clone()}
        self._back = {pinned: torch.zeros_like(buffer) for pinned, buffer in self._host.items()}
        if pins:
            self._back[True] = self._back[True].pin_memory()
        self._on_device = {name: self._source.to(self._device, copy=True) for name in ("in", "out")}
        return {"device": str(self._device)} | ({} if folder is None else self._filled(folder, nbytes))

    def _filled(self, folder: str, nbytes: int) -> dict[str, Any]:
        self._file = self._opened(folder)
        self._chunk = mmap.mmap(-1, CHUNK)
        self._chunk[:] = os.urandom(CHUNK)
        for at in range(0, nbytes, CHUNK):
            os.pwrite(self._file, self._chunk, at)
        os.fsync(self._file)
        return {"direct": self._direct}

    def _opened(self, folder: str) -> int:
        path = os.path.join(folder, f"plain-{os.getpid()}")
        self._direct = True
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError:
            self._direct = False
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.unlink(path)
        return file

    def copy(self, directions: list[str], streams: int, pinned: bool) -> dict[str, Any]:
        """Copy in all directions at once, each in as many pieces as it has streams."""
        pairs = [pair for name in directions for pair in self._pieces(name, streams, pinned)]
        settle(self._device)
        begun = perf_counter()
        for number, (source, target) in enumerate(pairs):
            with self._stream(number):
                target.copy_(source, non_blocking=True)
        return {"seconds": self._since(begun)}

    def copy_to_new_memory(self) -> dict[str, Any]:
        """Copy from the host into memory of the device that has to be allocated first."""
        begun = perf_counter()
        fresh = torch.empty_like(self._on_device["in"]).copy_(self._host[True])
        seconds = self._since(begun)
        del fresh
        return {"seconds": seconds}

    def read(self) -> dict[str, Any]:
        """Read the file, chunk by chunk, past the page cache where the file system allows it."""
        begun = perf_counter()
        for at in range(0, self._source.nbytes, CHUNK):
            os.preadv(self._file, [self._chunk], at)
        return {"seconds": perf_counter() - begun}

    def write(self) -> dict[str, Any]:
        begun = perf_counter()
        for at in range(0, self._source.nbytes, CHUNK):
            os.pwrite(self._file, self._chunk, at)
        return {"seconds": perf_counter() - begun}

    def _since(self, begun: float) -> float:
        settle(self._device)
        return perf_counter() - begun

    def compare(self) -> dict[str, Any]:
        """Return `equal`: true where the bytes on the device, and those copied back from it, equal the source."""
        arrived = torch.equal(self._on_device["in"].cpu(), self._source)
        returned = all(torch.equal(buffer, self._source) for buffer in self._back.values())
        return {"equal": arrived and returned}

    def _pieces(self, direction: str, count: int, pinned: bool) -> list[Pair]:
        inward = direction == "in"
        source, target = (
            (self._host[pinned], self._on_device["in"]) if inward else (self._on_device["out"], self._back[pinned])
        )
        return list(zip(source.chunk(count), target.chunk(count), strict=True))

    def _stream(self, number: int) -> Any:
        """Return the side stream of a piece, made once; the CPU has none."""
        if self._device.type != "cuda":
            return nullcontext()
        while len(self._streams) <= number:
            self._streams.append(torch.cuda.Stream(self._device))
        return torch.cuda.stream(self._streams[number])


if __name__ == "__main__":
    serve(Plain, Batched, Features, Whole, Link)
