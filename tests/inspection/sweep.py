"""Every text architecture of the installed transformers, tiny and with random weights: can the probe read it, exactly?

`python tests/inspection/sweep.py [--write]` prints a line per architecture; `--write` puts the table into docs/inspect.md. An
architecture is `exact` if every attention layer passes the probe's own comparison with the module's output and, where the model
gives its eager weights, the recomputed ones equal them; `partly` if some layers are refused; `refused` if all are, with the
reason; `wrong` if a layer passed the comparison with other weights than the model's own, which must never happen.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from whichtoken.errors import UsageError
from whichtoken.files import write_text
from whichtoken.inspection import AttentionProbe
from whichtoken.inspection.loading import transformers_package

transformers = transformers_package()
auto = import_module("transformers.models.auto.modeling_auto")
CONFIG_MAPPING = transformers.CONFIG_MAPPING
PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"
START, END = "<!-- families: written by tests/inspection/sweep.py -->\n", "<!-- end of families -->"
TASKS = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "MASKED_LM", "")
LENGTHS = (40, 64)
OTHER_INPUTS = ("vision", "image", "audio", "speech", "video", "patch", "pixel", "codec", "spectrogram", "mel_bins")
HALTING = 1 << 23  # parameters above which a configuration was not made small
TINY = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embedding_size": 16, "word_embed_proj_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "d_inner": 48, "n_inner": 48, "hidden_dim": 48, "ffn_hidden_size": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "dff": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "depth": 2,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_encoder_attention_heads": 4, "num_ngram_layers": 1,
    "num_decoder_attention_heads": 4, "num_kv_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "d_head": 8,
    "kv_channels": 8, "vocab_size": 99, "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128, "rotary_dim": 4,
    "max_seq_len": 128, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "qk_head_dim": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_num_experts": 4, "num_hash_buckets": 64, "sliding_window": 8,
    "attention_window": [8, 8], "block_size": 4, "num_random_blocks": 1, "bottleneck_size": 16, "intra_bottleneck_size": 32,
    "true_hidden_size": 32, "attention_types": [[["global", "local"], 1]], "window_size": 8, "local_attention": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "mamba_d_state": 8, "mamba_d_head": 8, "mamba_n_heads": 8, "mamba_expand": 2, "state_size": 8, "n_mamba_heads": 2,
    "first_k_dense_replace": 1, "decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "sep_token_id": 3, "block_sizes": [1, 1], "encoder_no_repeat_ngram_size": 0, "embedding_dim": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 99, "altup_num_inputs": 2, "laurel_rank": 4, "max_source_positions": 128, "ngram": 1,
    "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2, "entity_vocab_size": 20, "entity_emb_size": 8, "rank": 4,
    "d_embed": 32,
    "mlp_hidden_size": 48, "lru_width": 32, "attention_head_dim": 8, "num_global_layers": 1, "local_attention_window": 8,
    "max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128, "max_target_positions": 128, "num_blocks": 2,
    "attn_layer_period": 2, "attn_layer_offset": 1, "attn_layer_indices": [1], "full_attention_interval": 2, "moe_k": 2,
    "local_transformer_stride": 128, "downsampling_rate": 2, "upsampling_kernel_size": 2, "cell_size": 8,
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
}
HALF = {"rope_parameters": SECTIONS["rope_parameters"] | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}}
# what the sizes above do not make consistent, by model type
EXTRA: dict[str, dict[str, Any]] = {
    "glm4v_text": SECTIONS, "glm_ocr_text": SECTIONS, "qwen2_vl_text": SECTIONS, "qwen2_5_vl_text": SECTIONS,
    "glm4v_moe_text": HALF, "hunyuan_v1_dense": {"head_dim": 8}, "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8, "eos_token_id": 2} | SECTIONS, "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2}, "gemma3n_text": {"num_kv_shared_layers": 0}, "squeezebert": {"embedding_size": 32},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_d_state": 8},
    "esm": {"vocab_size": 99, "mask_token_id": 4, "pad_token_id": 0}, "xmod": {"default_language": "en_XX"},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}, "deepseek_v2": {"num_experts_per_tok": 2},
    "kimi_linear": {"num_experts_per_token": 2, "num_expert_group": 1, "topk_group": 1},
    "bailing_hybrid": {"n_group": 1, "num_experts_per_tok": 2}, "lilt": {"hidden_size": 48, "max_2d_position_embeddings": 32},
    "roc_bert": {
        "pronunciation_vocab_size": 20, "shape_vocab_size": 20, "pronunciation_embed_dim": 8, "shape_embed_dim": 8
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": None},
    },
    "longcat_flash": {
        "num_attention_heads": 4, "num_key_value_heads": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 16, "moe_topk": 2,
        "n_routed_experts": 4, "ffn_hidden_size": 48, "num_layers": 1, "head_dim": 8,
    },
    "reformer": {
        "is_decoder": True, "axial_pos_embds": False, "hidden_size": 32, "attn_layers": ["local", "lsh"],
        "attention_head_size": 8,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
}  # fmt: skip


class Outcome(NamedTuple):
    """What the probe says of one architecture."""

    kind: str
    state: str  # exact, partly, refused, wrong, not built
    why: str = ""
    layers: int = 0


def text_architectures() -> dict[str, str]:
    """The class of each model type that reads input_ids, by model type."""
    found: dict[str, str] = {}
    for task in TASKS:
        names = getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES")
        for kind, name in names.items():
            found.setdefault(kind, name if isinstance(name, str) else name[0])
    return dict(sorted(found.items()))


def build(kind: str, name: str, attention: str = "eager") -> Any:
    """A tiny model with spread random weights, so that a wrong mask or scale shows."""
    config_class = CONFIG_MAPPING[kind]
    known = config_class().to_dict()
    if any(word in key for key in known for word in OTHER_INPUTS):
        raise LookupError("it reads more than texts")
    tiny = {key: value for key, value in TINY.items() if known.get(key) is not None}
    if "qk_rope_head_dim" in tiny:
        tiny.pop("head_dim", None)
    if "kv_lora_rank" in tiny:  # all heads share one compressed key
        tiny["num_key_value_heads"] = tiny["num_attention_heads"]
    for key in ("layer_types", "layers_block_type"):  # one layer of each kind, so that a hybrid attends somewhere
        if isinstance(known.get(key), list):
            kinds = [kind for kind in dict.fromkeys(known[key]) if known[key]]
            tiny[key] = (sorted(kinds, key=lambda kind: "attention" not in str(kind)) * 2)[:2]
    config = config_class(**tiny | EXTRA.get(kind, {}))
    layers = getattr(config, "num_hidden_layers", 2)
    for key in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if isinstance(getattr(config, key, None), list) and len(getattr(config, key)) != layers:
            setattr(config, key, [*dict.fromkeys(getattr(config, key)), *getattr(config, key)][:layers])
    config._attn_implementation = attention
    with torch.device("meta"):
        size = sum(part.numel() for part in getattr(transformers, name)(config).parameters())
    if size > HALTING:
        raise LookupError(f"its configuration stays large ({size:.1e} numbers)")
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise LookupError(f"it reads {model.main_input_name}")
    with torch.no_grad():
        for parameter in model.parameters():
            spread = torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.1)
            parameter.copy_(spread + (parameter.dim() == 1))
    return model


def batch() -> dict[str, torch.Tensor]:
    """Two texts of different lengths, the shorter one padded on the right."""
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, length in enumerate(LENGTHS):
        ids[i, :length] = torch.randint(5, 99, (length,), generator=torch.Generator().manual_seed(i))
        mask[i, :length] = 1
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def outcome(kind: str, name: str) -> Outcome:
    """Try one architecture."""
    try:
        model, inputs = build(kind, name), batch()
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"][:, :24]
        if "use_cache" in model.config.to_dict():
            model.config.use_cache = False
        model(**inputs)
    except (Exception, SystemExit) as error:
        why = " ".join(str(error).split())[:90] or type(error).__name__
        return Outcome(kind, "not built", why)
    try:
        with AttentionProbe(model) as probe:
            model(**inputs)
    except UsageError as error:
        return Outcome(kind, "refused", str(error).partition(";")[0])
    ran = set(probe.readings) | set(probe.refused)
    why = next(iter(probe.refused.values()), "no layer ran").partition(";")[0]
    if not probe.readings:
        return Outcome(kind, "refused", why, len(ran))
    if wrong := different_layers(model, probe, inputs):
        return Outcome(kind, "wrong", f"layers {wrong} are not the model's own weights", len(ran))
    return Outcome(kind, "partly" if probe.refused else "exact", why if probe.refused else "", len(probe.readings))


def different_layers(model: Any, probe: AttentionProbe, inputs: dict[str, torch.Tensor]) -> list[int]:
    """Layers whose recomputed weights differ from those that the model itself gives."""
    try:
        output = model(**inputs, output_attentions=True)
    except (Exception, SystemExit):
        return []
    fields = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    own = [
        weights
        for field in fields
        for weights in getattr(output, field, None) or ()
        if isinstance(weights, torch.Tensor)
    ]
    real = {64: torch.arange(64) < torch.tensor(LENGTHS)[:, None], 24: torch.ones(2, 24, dtype=torch.bool)}
    wrong = []
    for layer, reading in probe.readings.items():
        ours = reading.weights()
        # some report the weights of a layer with a null token as if it were not there
        forms = (ours, ours / ours.sum(-1, keepdim=True)) if reading.null is not None else (ours,)
        rows = real.get(ours.shape[2])
        distances = []
        for theirs in own:
            if theirs.shape == ours.shape and rows is not None:
                # some report scores, and BigBird a block that counts twice once: such rows do not sum to one
                whole = ((theirs.sum(-1) - 1).abs() < 1e-3).all(1) & rows if reading.null is None else rows
                if whole.any():
                    distances += [float((form - theirs).abs().amax((1, 3))[whole].max()) for form in forms]
        wrong += [layer] * (not min(distances, default=0.0) < 1e-3)
    return wrong


def table(outcomes: list[Outcome]) -> str:
    """What the page says."""
    by_state = {
        state: [item for item in outcomes if item.state == state] for state in ("exact", "partly", "refused", "wrong")
    }
    tried = sum(map(len, by_state.values()))
    lines = [
        f"The {tried} text architectures of transformers {transformers.__version__} that could be built small, with random"
        " weights:",
        "",
        "| | architectures |",
        "| --- | --- |",
        f"| exact ({len(by_state['exact'])}) | {', '.join(item.kind for item in by_state['exact'])} |",
    ]
    for state in ("partly", "refused"):
        reasons = "; ".join(f"{item.kind} ({item.why})" for item in by_state[state])
        lines.append(
            f"| {'some layers refused' if state == 'partly' else state} ({len(by_state[state])}) | {reasons} |"
        )
    lines.append(
        f"| other weights than the model's own ({len(by_state['wrong'])}) | {', '.join(i.kind for i in by_state['wrong'])} |"
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Try every architecture; exit 1 if one has wrong weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help="model types; all by default")
    parser.add_argument("--write", action="store_true", help="put the table into docs/inspect.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    every = text_architectures()
    outcomes = []
    for kind in given.kinds or every:
        found = outcome(kind, every[kind])
        outcomes.append(found)
        if found.state != "not built" or given.kinds:
            print(f"{found.state:10} {found.layers:3} {found.kind}: {found.why}", flush=True)
    for state in ("exact", "partly", "refused", "wrong", "not built"):
        print(f"{state}: {sum(item.state == state for item in outcomes)}")
    if given.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        write_text(PAGE, before + START + table(outcomes) + END + rest.partition(END)[2])
    return int(any(item.state == "wrong" for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
