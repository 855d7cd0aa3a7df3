"""Plain PyTorch and transformers: `generate`, single layers from a saved hidden state, and a patching loop with hooks.

Shapes: h_1TD hidden states of T positions. Each verb reads its own clock around the work alone.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GPT2LMHeadModel

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.by_hand import Beside
from djinn_evaluation.baselines.copies import ALIGNMENT, Copying, copier_for
from djinn_evaluation.baselines.decoding import Timestamps, decoded
from djinn_evaluation.baselines.weights import digest, leaving_after, settle
from djinn_evaluation.benchmarks.workers import gpt2

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
        self.model = gpt2.load(folder, shape, threads)
        return {"threads": torch.get_num_threads()}

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

    # ------------------------------------------------------------------------------------------- parts of a pass

    @torch.inference_mode()
    def remember(self, tokens: list[int]) -> dict[str, Any]:
        """Keep the hidden state at every boundary of a pass over `tokens`, and the cache after it less its last token;
        return the digest of the logits of the last position."""
        self._tokens_1T = self._row(tokens)
        self._filled = DynamicCache(config=self.model.config)
        self.model(self._tokens_1T[:, :-1], past_key_values=self._filled, use_cache=True, logits_to_keep=1)
        hidden: list[Tensor] = []
        keep = [
            block.register_forward_pre_hook(lambda _, args: hidden.append(args[0].clone())) for block in self._blocks
        ]
        logits = self._forward(self._tokens_1T)
        for hook in keep:
            hook.remove()
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
        """Run layers `layer`.. and the head over the saved hidden state of the whole prompt, into an empty cache: the
        ideal that a resume cannot beat."""
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
        hook = self._blocks[layer].register_forward_pre_hook(lambda _, args: found.append(args[0].clone()))
        self.model(self._tokens_1T[:, -1:], past_key_values=self._filled, use_cache=True, logits_to_keep=1)
        hook.remove()
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
        """Copy `nbytes` from the host, `slot` at a time into two slots of the device in turn: streaming them cannot be
        faster."""
        if self._copying is None or self._copied != nbytes:
            device, self._copied = self.model.device, nbytes
            pieces = torch.ones(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda").split(slot)
            raw = [[torch.zeros(slot + 2 * ALIGNMENT, dtype=torch.uint8, device=device)] for _ in range(2)]
            self._copying = Copying(copier_for(device), [[piece] for piece in pieces], raw)
        return {"seconds": self._copying.copy()}

    @torch.inference_mode()
    def generate_and_copy(self, tokens: list[int], new: int, nbytes: int, slot: int) -> dict[str, Any]:
        """Run a pass of copying beside each pass of `generate`, neither waiting for a layer of the other: the speed
        that two cores on one memory bus attain. `decoding` as of `generate`."""
        self.copy(nbytes, slot)
        assert self._copying is not None
        return decoded(self.model, tokens, new, self.model.device, Beside(self._copying, new))

    @torch.inference_mode()
    def forward(self) -> dict[str, Any]:
        """Run a whole pass over the remembered tokens."""
        begun = perf_counter()
        self._forward(self._tokens_1T)
        return {"seconds": self._since(begun)}

    def _forward(self, tokens_1T: Tensor, use_cache: bool = True) -> Tensor:
        logits: Tensor = self.model(tokens_1T, use_cache=use_cache, logits_to_keep=1).logits
        return logits

    # -------------------------------------------------------------------------------------------------- patching

    @torch.inference_mode()
    def prepare_patching(self, clean: list[int], corrupted: list[int]) -> dict[str, Any]:
        self._clean: list[Tensor] = []
        keep = [
            b.register_forward_hook(lambda _, args, out: self._clean.append(_hidden_of(out).clone()))
            for b in self._blocks
        ]
        self._forward(self._row(clean))
        for hook in keep:
            hook.remove()
        self._corrupted_1T = self._row(corrupted)
        return {}

    @torch.inference_mode()
    def patch_layer(self, layer: int) -> dict[str, Any]:
        """Patch each position's residual after `layer` from the clean into the corrupted run, a full forward each."""
        found: list[Tensor] = []
        begun = perf_counter()
        for position in range(self._corrupted_1T.shape[1]):
            hook = self._blocks[layer].register_forward_hook(self._patch(layer, position))
            found.append(self._forward(self._corrupted_1T, use_cache=False)[0, -1])
            hook.remove()
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
        hook = self._blocks[layer].register_forward_hook(patch)
        self._forward(self._corrupted_1T.expand(length, -1), use_cache=False)
        hook.remove()
        return {"seconds": self._since(begun)}

    def attribute(self, clean: list[int], corrupted: list[int], token: int) -> dict[str, Any]:
        """Return (clean - corrupted) residual x gradient of a logit after each layer, at each position: two forwards
        and a backward."""
        self.prepare_patching(clean, corrupted)
        kept: list[Tensor] = []

        def keep(_: Any, args: Any, output: Any) -> None:
            kept.append(_hidden_of(output))
            kept[-1].retain_grad()

        hooks = [self.model.get_input_embeddings().register_forward_hook(lambda _, args, out: out.requires_grad_())]
        hooks += [block.register_forward_hook(keep) for block in self._blocks]
        self._forward(self._corrupted_1T.clone(), use_cache=False)[0, -1, token].backward()
        for hook in hooks:
            hook.remove()
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


if __name__ == "__main__":
    plain = Plain()
    names = (
        "load generate generate_and_copy remember first_layers from_layer from_layer_in_decode head copy "
        "forward prepare_patching patch_layer patch_layer_batched sample_batched generate_batched attribute"
    )
    serve({name: getattr(plain, name) for name in names.split()})
