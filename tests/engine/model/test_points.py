"""Every point of every family, checked by an identity or a computation that the search does not use."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.engine.model.hooks.taps import Tap
from tests.engine.model.looking import TOKENS, Subject, noise, run, subject, zero, zero_head
from tests.families import FAMILIES, build, drawn

pytestmark = pytest.mark.drawn

# z is not pattern @ v: an output gate, a difference of two attentions, a norm before the last linear map.
MIXED = {"qwen3_next", "diffllama", "bitnet"}
REPORTS_AFTER = {"mamba", "mamba2", "falcon_mamba"}  # their list of hidden states begins after the first layer
SUMMED = {"falcon_h1", "gpt_neox_japanese"}  # attention and a state space at once; a bias added outside of the module
# In transformers itself sdpa differs: another scale of the position bias; no soft-cap (5.17; later ones are eager).
UNLIKE_EAGER = {"falcon:alibi", "gemma2", "vaultgemma"}
NOT_ONE_MODULE = "what attention adds to the residual is not the output of one module"

PARALLEL = ("gpt_neox", "falcon", "falcon:new", "cohere", "cohere2", "phi", "gptj", "codegen")
STATES_ONLY = ("mamba", "mamba2", "falcon_mamba")
KNOWN_ABSENCES = {
    **{family: {"resid_mid"} for family in (*PARALLEL, "nemotron_h")},
    **{family: {"q", "k", "z", "resid_mid", "mlp_out"} for family in STATES_ONLY},
    **{family: {"resid_mid", "mlp_out"} for family in ("zamba", "zamba2", "gemma3n_text")},
    **{family: {"k"} for family in ("deepseek_v2", "deepseek_v3")},  # the cache keeps a compressed form
    "granitemoehybrid": {"mlp_out"},  # the sum of routed and shared experts
    "jetmoe": {"q", "z"},  # a mixture of attention heads
}


@pytest.fixture(scope="module", params=drawn(FAMILIES))
def name(request: pytest.FixtureRequest) -> str:
    """A family; its tests run one after the other, so that it is built once."""
    return str(request.param)


def layers_with(tiny: Subject, *points: str) -> list[int]:
    """The first, a middle and the last layer that have all of `points`."""
    found = [n for n in range(len(tiny.anatomy.layers)) if all(tiny.has(point, n) for point in points)]
    return sorted({found[0], found[len(found) // 2], found[-1]}) if found else []


def factor(tiny: Subject, point: str, layer: int) -> tuple[str, float]:
    """The site whose value is added to the residual, and its factor."""
    if tiny.has(f"{point}_post", layer):
        return f"{point}_post.{layer}", 1.0
    words = tiny.why_not(f"{point}_post", layer).split()
    return f"{point}.{layer}", float(words[2]) if words[1] == "times" else 1.0


def test_hidden_states_are_those_that_the_model_reports(name: str) -> None:
    tiny = subject(name)
    point = "resid_post" if name in REPORTS_AFTER else "resid_pre"
    sites = [f"{point}.{n}" for n in range(len(tiny.anatomy.layers))]
    seen = run(tiny, *sites)
    reported = tiny.model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    if reported is None or len(reported) != len(sites) + 1 or reported[0].ndim != 3:
        pytest.skip(f"{name} reports no hidden states between its layers")
    for site, hidden in zip(sites, reported, strict=False):
        assert torch.equal(seen[site], hidden[0]), site


def test_resid_post_is_the_next_layers_resid_pre(name: str) -> None:
    tiny = subject(name)
    seen = run(tiny, "resid_post.2", "resid_pre.3", "resid_post.7")
    assert torch.equal(seen["resid_post.2"], seen["resid_pre.3"])
    assert seen["resid_post.7"].shape == seen["resid_pre.3"].shape


def test_embed_is_the_embedding_of_the_tokens(name: str) -> None:
    tiny = subject(name)
    embedded = tiny.model.get_input_embeddings()(torch.tensor(TOKENS))
    assert torch.equal(run(tiny, "embed")["embed"], embedded)


def test_ln_final_is_what_the_head_turns_into_logits(name: str) -> None:
    tiny = subject(name)
    seen = run(tiny, "ln_final", "resid_post.7")
    head = tiny.model.get_output_embeddings()
    assert torch.equal(head(seen["ln_final"]).argmax(-1), seen.logits[0].argmax(-1))


def test_resid_mid_is_resid_pre_plus_what_attention_adds(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "resid_mid", "attn_out"):
        if not tiny.has("attn_out_post", n) and tiny.why_not("attn_out_post", n) == NOT_ONE_MODULE:
            assert name in SUMMED
            continue
        site, times = factor(tiny, "attn_out", n)
        seen = run(tiny, f"resid_pre.{n}", site, f"resid_mid.{n}")
        added = seen[site] if times == 1.0 else seen[site] * times
        assert torch.equal(seen[f"resid_pre.{n}"] + added, seen[f"resid_mid.{n}"])


def test_resid_post_is_resid_mid_plus_what_the_mlp_adds(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "resid_mid", "mlp_out"):
        site, times = factor(tiny, "mlp_out", n)
        seen = run(tiny, f"resid_mid.{n}", site, f"resid_post.{n}")
        added = seen[site] if times == 1.0 else seen[site] * times
        assert torch.equal(seen[f"resid_mid.{n}"] + added, seen[f"resid_post.{n}"])


def test_an_edit_of_resid_mid_reaches_the_mlp_and_the_residual(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "resid_mid", "mlp_out"):
        site, times = factor(tiny, "mlp_out", n)
        plain = run(tiny, site)
        seen = run(tiny, site, f"resid_post.{n}", edits={f"resid_mid.{n}": noise(n)})
        wanted = noise(n)(seen[f"resid_mid.{n}"])
        added = seen[site] if times == 1.0 else seen[site] * times
        assert torch.equal(seen[f"resid_mid.{n}"], wanted)
        assert torch.equal(wanted + added, seen[f"resid_post.{n}"])
        assert not torch.equal(plain[site], seen[site])


def test_parallel_layers_add_both_blocks_to_the_same_residual(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "attn_out", "mlp_out"):
        if tiny.has("resid_mid", n):
            continue
        assert "at once" in tiny.why_not("resid_mid", n)
        seen = run(tiny, f"resid_pre.{n}", f"attn_out.{n}", f"mlp_out.{n}", f"resid_post.{n}")
        total = seen[f"resid_pre.{n}"] + seen[f"attn_out.{n}"] + seen[f"mlp_out.{n}"]
        assert torch.allclose(total, seen[f"resid_post.{n}"], atol=1e-5)


def test_without_its_blocks_a_layer_hands_its_input_on(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "attn_out", "mlp_out"):
        ends = [
            f"{point}_post.{n}" if tiny.has(f"{point}_post", n) else f"{point}.{n}" for point in ("attn_out", "mlp_out")
        ]
        if not tiny.has("attn_out_post", n) and tiny.why_not("attn_out_post", n) == NOT_ONE_MODULE:
            continue
        seen = run(tiny, f"resid_pre.{n}", f"resid_post.{n}", edits=dict.fromkeys(ends, zero))
        assert torch.equal(seen[f"resid_pre.{n}"], seen[f"resid_post.{n}"])


def test_v_is_what_goes_into_the_cache(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "v"):
        (slot,) = tiny.anatomy.cache_layers_of(n)
        plain = run(tiny, f"v.{n}")
        stored = plain.cache.layers[slot].values[0].clone()
        heads = plain[f"v.{n}"]
        of_head = [
            [g for g in range(len(stored)) if torch.equal(stored[g], heads[:, h])] for h in range(heads.shape[1])
        ]
        assert sorted(g for group in of_head for g in group) == list(range(len(stored)))
        edited = run(tiny, edits={f"v.{n}": zero_head(0)}).cache.layers[slot].values[0]
        for g in range(len(stored)):
            assert torch.equal(edited[g], torch.zeros_like(stored[g]) if g in of_head[0] else stored[g])


def test_k_is_before_and_k_rot_after_the_rotary_embedding(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "k", "k_rot"):
        (slot,) = tiny.anatomy.cache_layers_of(n)
        plain = run(tiny, f"k.{n}", f"k_rot.{n}")
        stored = plain.cache.layers[slot].keys[0]
        assert torch.equal(stored.transpose(0, 1), plain[f"k_rot.{n}"])
        ratio = stored[0, 0].norm() / plain[f"k.{n}"][0, 0].norm()
        assert torch.allclose(stored[0, 0], plain[f"k.{n}"][0, 0] * ratio, atol=1e-5)  # position 0
        edited = run(tiny, edits={f"k.{n}": zero_head(0)}).cache.layers[slot]
        gone = [g for g in range(len(stored)) if not edited.keys[0, g].any()]
        assert gone
        assert all(torch.equal(edited.keys[0, g], stored[g]) for g in range(len(stored)) if g not in gone)
        assert torch.equal(edited.values, plain.cache.layers[slot].values)


def test_an_edit_of_k_rot_stays_in_the_cache(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "k_rot"):
        (slot,) = tiny.anatomy.cache_layers_of(n)
        seen = run(tiny, edits={f"k_rot.{n}": noise(1)})
        assert torch.equal(seen.cache.layers[slot].keys[0].transpose(0, 1), seen[f"k_rot.{n}"])


def test_a_head_of_q_is_that_head_of_q_rot_and_touches_no_key(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "q", "q_rot"):
        slots = tiny.anatomy.cache_layers_of(n)
        plain = run(tiny, f"q.{n}", f"q_rot.{n}")
        seen = run(tiny, f"q_rot.{n}", edits={f"q.{n}": zero_head(1)})
        assert not seen[f"q_rot.{n}"][:, 1].any()
        others = [h for h in range(plain[f"q.{n}"].shape[1]) if h != 1]
        assert torch.equal(seen[f"q_rot.{n}"][:, others], plain[f"q_rot.{n}"][:, others])
        for slot in slots:
            assert torch.equal(seen.cache.layers[slot].keys, plain.cache.layers[slot].keys)
            assert torch.equal(seen.cache.layers[slot].values, plain.cache.layers[slot].values)


def test_z_goes_through_the_last_linear_map(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "z"):
        tap = tiny.tap(f"z.{n}")
        seen = run(tiny, f"attn_out.{n}", edits={f"z.{n}": noise(n)})
        assert torch.equal(seen[f"attn_out.{n}"], tap.module(seen.raw[f"z.{n}"]).reshape(len(TOKENS), -1))


def test_z_is_the_pattern_applied_to_v(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "z", "v", "pattern"):
        if name in MIXED:
            continue
        seen = run(tiny, f"z.{n}", f"v.{n}", f"pattern.{n}")
        pattern_HTK = seen[f"pattern.{n}"].transpose(0, 1)[..., : len(TOKENS)]
        v_HTD = seen[f"v.{n}"].transpose(0, 1)
        v_HTD = v_HTD.repeat_interleave(len(pattern_HTK) // len(v_HTD), dim=0)
        assert torch.allclose(pattern_HTK @ v_HTD, seen[f"z.{n}"].transpose(0, 1), atol=1e-4)


def test_patterns_are_causal_distributions_over_the_scores(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "pattern", "attn_scores"):
        seen = run(tiny, f"pattern.{n}", f"attn_scores.{n}")
        pattern_THK = seen[f"pattern.{n}"]
        assert torch.allclose(pattern_THK.sum(-1), torch.ones(pattern_THK.shape[:2]), atol=1e-5)
        assert torch.allclose(seen[f"attn_scores.{n}"].float().softmax(-1), pattern_THK, atol=1e-5)
        ahead = torch.ones(len(TOKENS), len(TOKENS), dtype=torch.bool).triu(1)
        assert not pattern_THK[..., : len(TOKENS)].transpose(0, 1)[:, ahead].any()


def test_an_edited_pattern_is_what_attention_uses(name: str) -> None:
    tiny = subject(name, "eager")
    for n in layers_with(tiny, "pattern", "v", "z")[:1]:
        if name in MIXED:
            continue
        assert tiny.tap(f"pattern.{n}").editable

        def first_key(value: torch.Tensor) -> torch.Tensor:
            value = value.clone()
            value[:, 0] = torch.nn.functional.one_hot(torch.tensor(0), value.shape[-1])
            return value

        seen = run(tiny, f"z.{n}", f"v.{n}", edits={f"pattern.{n}": first_key})
        assert torch.allclose(seen[f"z.{n}"][:, 0], seen[f"v.{n}"][0, 0].expand_as(seen[f"z.{n}"][:, 0]), atol=1e-6)
        plain, scored = run(tiny, f"z.{n}"), run(tiny, f"z.{n}", edits={f"attn_scores.{n}": noise(3)})
        assert not torch.equal(plain[f"z.{n}"], scored[f"z.{n}"])


def test_recomputed_patterns_are_those_of_eager_attention(name: str) -> None:
    fused, eager = subject(name), subject(name, "eager")
    for n in layers_with(fused, "pattern"):
        if fused.tap(f"pattern.{n}").kind != "recomputed" or name in UNLIKE_EAGER:
            continue
        assert not fused.tap(f"pattern.{n}").editable
        assert fused.tap(f"pattern.{n}").reason
        site = f"pattern.{n}"
        assert torch.allclose(run(fused, site)[site], run(eager, site)[site], atol=1e-4)


def test_mlp_post_goes_through_the_mlps_last_linear_map(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "mlp_post"):
        tap = tiny.tap(f"mlp_post.{n}")
        seen = run(tiny, f"mlp_out.{n}", edits={f"mlp_post.{n}": noise(n)})
        assert torch.allclose(seen[f"mlp_out.{n}"], tap.module(seen[f"mlp_post.{n}"]), atol=1e-5)


def test_edits_of_the_mlps_input_and_activation_reach_its_output(name: str) -> None:
    tiny = subject(name)
    for point in ("mlp_in", "mlp_pre"):
        for n in layers_with(tiny, point)[:1]:
            plain, seen = run(tiny, f"mlp_out.{n}"), run(tiny, f"mlp_out.{n}", edits={f"{point}.{n}": noise(n)})
            assert not torch.equal(plain[f"mlp_out.{n}"], seen[f"mlp_out.{n}"])


def test_every_point_is_met_once_in_a_prompt_and_once_in_a_decode_step(name: str) -> None:
    tiny = subject(name)
    sites = [str(tap.site) for tap in tiny.anatomy.taps.values() if isinstance(tap, Tap) and tap.kind != "result"]
    prompt = run(tiny, *sites)
    step = run(tiny, *sites, tokens=(9,), cache=prompt.cache)
    assert sorted(prompt.order) == sorted(step.order) == sorted(sites)
    for site in sites:
        assert prompt[site].shape[0] == len(TOKENS), site
        assert step[site].shape[0] == 1, site


def test_points_come_in_the_order_of_their_stages(name: str) -> None:
    tiny = subject(name)
    taps = {str(tap.site): tap for tap in tiny.anatomy.taps.values() if isinstance(tap, Tap) and tap.kind != "result"}
    stages = [taps[site].stage for site in run(tiny, *taps).order if taps[site].kind != "boundary"]
    assert stages == sorted(stages)


def test_writing_back_what_was_read_changes_no_bit(name: str) -> None:
    tiny = subject(name)
    taps = [tap for tap in tiny.anatomy.taps.values() if isinstance(tap, Tap) and tap.kind != "result"]
    seen = run(tiny, *(str(tap.site) for tap in taps))
    for tap in taps:
        raw = seen.raw[str(tap.site)]
        assert torch.equal(tap.write(raw, tap.read(raw)), raw), tap.site


def test_absences_give_a_reason_and_shapes_a_legend(name: str) -> None:
    for point in subject(name).anatomy.points():
        complete = point.layers is None or len(point.layers) == 8
        assert bool(point.absent) == (not complete or not point.shape)
        if point.shape:
            assert (point.heads is not None) == (point.shape != "T D"), point.point


def test_a_family_lacks_the_points_that_it_is_known_to_lack(name: str) -> None:
    tiny = subject(name)
    missing = {
        point for point in ("q", "k", "z", "resid_mid", "mlp_out") if not any(tiny.has(point, n) for n in range(8))
    }
    assert missing == KNOWN_ABSENCES.get(name, set())


def test_layers_of_the_cache_are_each_filled_by_one_layer(name: str) -> None:
    anatomy = subject(name).anatomy
    filled = [layer for index in range(len(anatomy.layers)) for layer in anatomy.cache_layers_of(index)]
    assert sorted(filled) == sorted(set(filled))
    assert filled


@pytest.mark.parametrize("name", drawn(FAMILIES), indirect=True)
def test_bfloat16_shows_the_same_points(name: str) -> None:
    """Sixteen bits are enough to tell columns apart."""
    full, half = subject(name).anatomy, discover(build(name, dtype=torch.bfloat16))
    for key, tap in full.taps.items():
        other = half.taps[key]
        assert isinstance(tap, str) == isinstance(other, str), key
        if not isinstance(tap, str) and not isinstance(other, str):
            assert (tap.kind, tap.heads, tap.width, tap.key) == (other.kind, other.heads, other.width, other.key), key
