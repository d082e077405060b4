"""Runs in the worker's environment: turns the demo model's GGUF file into a Hugging Face folder.

    python demo_convert.py FILE.gguf TARGET_FOLDER

The only module outside `worker_plugin` that imports torch: the GGUF's blocks must be expanded, and gguf, torch,
tokenizers and safetensors are all in the worker's environment already, which vLLM needs anyway. It does not use
transformers' own GGUF reader, which wants the package accelerate too.

Prints one JSON object a line: {"done": n, "of": n} while it works. Handles the llama architecture with tied embeddings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["convert"]

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
CONTROL = 3  # GGUF's token type of special tokens


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem = name.removesuffix(".weight")
    if stem in OTHER_NAMES:
        return OTHER_NAMES[stem] + ".weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp stores rotary pairs side by side, Hugging Face in halves: back to halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tokenizer_of(field: Any) -> Tokenizer:
    """The byte-level BPE tokenizer with SmolLM2's pre-tokeniser (each digit alone, as `tokenizer.ggml.pre` = smollm says)."""
    tokens, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, field("tokenizer.ggml.token_type"), strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def convert(source: Path, target: Path) -> None:
    """Writes config, weights (float16), tokenizer and chat template into `target`, which exists."""
    reader = gguf.GGUFReader(str(source))

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors: dict[str, torch.Tensor] = {}
    total = len(reader.tensors)
    for done, tensor in enumerate(reader.tensors, 1):
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        name = hf_name(tensor.name)
        if name.endswith("q_proj.weight"):
            weight = unpermute(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = unpermute(weight, kv_heads)
        tensors[name] = weight.to(torch.float16).contiguous()
        if done % 16 == 0 or done == total:
            print(json.dumps({"done": done, "of": total}), flush=True)  # noqa: T201 the protocol with demo_model.py
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    tokenizer = tokenizer_of(field)
    tokenizer.save(str(target / "tokenizer.json"))
    eos, bos = field("tokenizer.ggml.eos_token_id"), field("tokenizer.ggml.bos_token_id")
    context = field("llama.context_length")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": field("llama.rope.dimension_count"),
        "max_position_embeddings": context,
        "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": 1e-05,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos,
    }
    template = field("tokenizer.chat_template")
    texts = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.id_to_token(bos),
            "eos_token": tokenizer.id_to_token(eos),
            "pad_token": tokenizer.id_to_token(eos),
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "chat_template": template,
        },
    }
    for name, value in texts.items():
        (target / name).write_text(json.dumps(value, indent=1) + "\n")
    (target / "chat_template.jinja").write_text(template)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
