"""Tiny models with random weights, one row per family; all built without a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason='pip install "whichtoken[transformers]"')

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 60, "intermediate_size": 48}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODER = SMALL | ENDS | {"num_key_value_heads": 2, "max_position_embeddings": 64}
LENGTHS = (9, 6, 12)


def _hugging_face(name, config, **options):
    def build(attention="sdpa", dtype=torch.float64, seed=0):
        torch.manual_seed(seed)
        settings = getattr(transformers, f"{config}Config")(**options)
        settings._attn_implementation = attention
        model = getattr(transformers, name)(settings).eval().to(dtype)
        # at the usual start all scores are nearly equal: spread them, so that a wrong mask or scale would show
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(
                    torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1)
                )
        return model

    return build


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "the", "a", "very", "plot", "<b>"]
LONGEST = 24


def tiny_tokenizer():
    """Splits at spaces and knows `WORDS`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=LONGEST,
    )


def tiny_classifier():
    """BERT with two layers and a classification head."""
    small = SMALL | {"num_hidden_layers": 2, "max_position_embeddings": LONGEST}
    return _hugging_face("BertForSequenceClassification", "Bert", **small)("sdpa", torch.float32)


# name: how to build it with a given attention implementation and dtype
FAMILIES = {
    "bert": _hugging_face("BertModel", "Bert", **SMALL),
    "roberta": _hugging_face("RobertaModel", "Roberta", **SMALL, pad_token_id=0, max_position_embeddings=40),
    "distilbert": _hugging_face("DistilBertModel", "DistilBert", dim=32, n_layers=3, n_heads=4, vocab_size=60, hidden_dim=48),
    "albert": _hugging_face("AlbertModel", "Albert", **SMALL, embedding_size=16, num_hidden_groups=1),
    "llama": _hugging_face("LlamaForCausalLM", "Llama", **DECODER),
    "qwen2": _hugging_face("Qwen2ForCausalLM", "Qwen2", **DECODER),
    "qwen3": _hugging_face("Qwen3ForCausalLM", "Qwen3", **DECODER, head_dim=8),
    "mistral": _hugging_face("MistralForCausalLM", "Mistral", **DECODER, sliding_window=4),
    "gpt2": _hugging_face("GPT2LMHeadModel", "GPT2", n_embd=32, n_layer=3, n_head=4, vocab_size=60, **ENDS),
    "gemma2": _hugging_face("Gemma2ForCausalLM", "Gemma2", **DECODER, head_dim=8, sliding_window=4, attn_logit_softcapping=5.0),
    "gpt-oss": _hugging_face("GptOssForCausalLM", "GptOss", **DECODER, head_dim=8, sliding_window=4, num_local_experts=4),
}  # fmt: skip
NO_SDPA = {"gemma2", "gpt-oss"}  # their scores are capped, or have a learned null token: no sdpa kernel does that
DTYPES = {"gpt-oss": (torch.float32,)}  # its experts' kernel knows no double precision
CACHED = ("llama", "mistral", "gpt2", "qwen3")


def deberta(dtype=torch.float64):
    options = {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "type_vocab_size": 0,
        "max_position_embeddings": 32,
    }
    return _hugging_face("DebertaV2Model", "DebertaV2", **SMALL, **options)("eager", dtype)


def vit(attention="sdpa", dtype=torch.float64):
    return _hugging_face(
        "ViTModel", "ViT", hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        image_size=16, patch_size=4,
    )(attention, dtype)  # fmt: skip


def batch(left=False):
    """Three texts of different lengths, padded, with a mask."""
    generator = torch.Generator().manual_seed(1)
    longest = max(LENGTHS)
    ids = torch.zeros(len(LENGTHS), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, length in enumerate(LENGTHS):
        place = slice(longest - length, None) if left else slice(0, length)
        ids[i, place] = torch.randint(3, 60, (length,), generator=generator)
        mask[i, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


class TorchEncoder(nn.Module):
    """`torch.nn.TransformerEncoder` with an embedding in front."""

    def __init__(self, dtype=torch.float64, causal=False, nested=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(60, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=not nested)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=nested)
        self.causal = causal
        self.eval().to(dtype)

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        square = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.causal else None
        padding = torch.zeros_like(attention_mask, dtype=x.dtype).masked_fill(attention_mask == 0, -torch.inf)
        return self.encoder(x, mask=square, src_key_padding_mask=padding if self.causal else attention_mask == 0)
