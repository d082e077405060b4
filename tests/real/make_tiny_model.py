#!/usr/bin/env python3
"""Build tiny Hugging Face checkpoints that a real vLLM can serve on a CPU, with no download.

Writes, under --out:
  <name>            FP16 checkpoint (safetensors, config, byte-level BPE tokenizer, chat template)
  <name>-awq        the same model, every linear layer of the decoder in AutoAWQ INT4 layout
  <name>-awq-ref    the AWQ model dequantised: (q - z) * s in FP32, the truth to compare with

Modes:
  random   random weights: never stops by itself (finish_reason "length"), text is noise
  chain    a scripted next-token table is put into lm_head, so that greedy decoding always says
             <think>...</think>ANSWER<|im_end|>          (no tools in the request)
             <tool_call>{...}</tool_call><|im_end|>      (tools in the request)
           and every token count is known in advance. The layers still run (INT4 too).

Runs in the worker's environment (torch, tokenizers, safetensors); 4 s. Example:
  python make_tiny_model.py --out models --name tiny --mode random
  python make_tiny_model.py --out models --name chain --mode chain
`make(folder, name, mode=...)` is the same for tests; --only fp16 leaves the two AWQ variants out.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|go|>", "<|call|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CALL = ['\n{"name": "get_weather",', ' "arguments": {"city":', ' "Paris"', "}}\n"]
THINK = ["First", " we", " look", " at", " it", "."]
ANSWER = ["The", " value", " of", " this", " object", " is", " a", " list", " with", " all", " items"]

# Qwen-like ChatML. The generation prompt ends in a marker token of its own, so that the scripted
# model knows whether it is to call a tool.
TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}
{%- elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% if tools and messages[-1].role == 'user' %}<|call|>{% else %}<|go|>{% endif %}{% endif %}"""

ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ: nibble i of an int32 holds column ORDER[i] of its eight


def build_tokenizer(vocab: int) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    n_added = len(SPECIAL) + len(PLAIN) + len(CALL)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - n_added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics)]  # text that every Python has
    tok.train_from_iterator(corpus + THINK * 50 + ANSWER * 50, trainer)
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tok.add_tokens([AddedToken(s, special=False, normalized=False) for s in PLAIN + CALL])
    return tok


def chain_table(tok: Tokenizer, vocab: int) -> list[int]:
    """nxt[t] = the token that follows token t when decoding greedily."""

    def ids(pieces: list[str]) -> list[int]:
        out: list[int] = []
        for p in pieces:
            out += tok.encode(p, add_special_tokens=False).ids
        return out

    say = ids(["<think>", *THINK, "</think>", *ANSWER, "<|im_end|>"])
    call = ids(["<tool_call>", *CALL, "</tool_call>", "<|im_end|>"])
    for name, s in (("say", say), ("call", call)):
        assert len(set(s)) == len(s), f"script {name} repeats a token: {s}"
    nxt = [say[0]] * vocab
    for start, s in (("<|go|>", say), ("<|call|>", call)):
        prev = tok.token_to_id(start)
        for t in s:
            nxt[prev] = t
            prev = t
    nxt[tok.token_to_id("<|im_end|>")] = say[0]  # with ignore_eos it starts over
    return nxt


def pack(q: torch.Tensor) -> torch.Tensor:
    """[rows, cols] of 0..15 -> [rows, cols/8] int32 in AutoAWQ nibble order."""
    r, c = q.shape
    g = q.reshape(r, c // 8, 8).to(torch.int64)
    out = torch.zeros(r, c // 8, dtype=torch.int64)
    for i, col in enumerate(ORDER):
        out |= g[:, :, col] << (4 * i)
    return torch.where(out >= 2**31, out - 2**32, out).to(torch.int32)


def arguments() -> argparse.ArgumentParser:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--name", default="tiny")
    ap.add_argument("--mode", choices=["random", "chain"], default="random")
    ap.add_argument("--vocab", type=int, default=2048)
    ap.add_argument("--hidden", type=int, default=256)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--head-dim", type=int, default=64)
    ap.add_argument("--inter", type=int, default=512)
    ap.add_argument("--max-len", type=int, default=131072)
    ap.add_argument("--group", type=int, default=128)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--only", choices=["fp16", "all"], default="all")
    return ap


def main() -> None:
    write(arguments().parse_args())


def make(folder: Path, name: str, **options: object) -> Path:
    """Builds one FP16 model and returns its folder; options are the command line's, by name."""
    a = arguments().parse_args(["--out", str(folder), "--name", name, "--only", "fp16"])
    for key, value in options.items():
        setattr(a, key, value)
    write(a)
    return folder / name


def write(a: argparse.Namespace) -> None:
    """Builds what the options ask for."""
    gen = torch.Generator().manual_seed(a.seed)
    tok = build_tokenizer(a.vocab)
    assert tok.get_vocab_size() <= a.vocab, tok.get_vocab_size()

    h, d = a.hidden, a.head_dim
    shapes = {
        "self_attn.q_proj": (a.heads * d, h),
        "self_attn.k_proj": (a.kv_heads * d, h),
        "self_attn.v_proj": (a.kv_heads * d, h),
        "self_attn.o_proj": (h, a.heads * d),
        "mlp.gate_proj": (a.inter, h),
        "mlp.up_proj": (a.inter, h),
        "mlp.down_proj": (h, a.inter),
    }
    # chain: the residual stream must stay near the embedding, so the layers' outputs are small
    gain = 1.0 if a.mode == "random" else 0.1

    base: dict[str, torch.Tensor] = {}
    emb = torch.randn(a.vocab, h, generator=gen)
    base["model.embed_tokens.weight"] = emb.half()
    base["model.norm.weight"] = torch.ones(h).half()
    if a.mode == "random":
        base["lm_head.weight"] = (torch.randn(a.vocab, h, generator=gen) * h**-0.5 * 4).half()
    else:
        head = torch.zeros(a.vocab, h)
        en = emb / emb.norm(dim=1, keepdim=True)
        script = chain_table(tok, a.vocab)
        default = script[tok.token_to_id("<|endoftext|>")]
        for t, n in enumerate(script):
            if n != default or t in (tok.token_to_id("<|go|>"), tok.token_to_id("<|im_end|>")):
                head[n] += en[t] * 4
        # a token outside the scripts has no row that fits it: it goes wherever noise points
        base["lm_head.weight"] = head.half()

    fp16, awq, ref = dict(base), dict(base), dict(base)
    for layer in range(a.layers):
        p = f"model.layers.{layer}."
        for n, size in (
            ("input_layernorm", h),
            ("post_attention_layernorm", h),
            ("self_attn.q_norm", d),
            ("self_attn.k_norm", d),
        ):
            for m in (fp16, awq, ref):
                m[p + n + ".weight"] = torch.ones(size).half()
        for n, (out_f, in_f) in shapes.items():
            g = gain if n.endswith(("o_proj", "down_proj")) else 1.0
            fp16[p + n + ".weight"] = (torch.randn(out_f, in_f, generator=gen) * in_f**-0.5 * g).half()
            groups = in_f // a.group
            q = torch.randint(0, 16, (in_f, out_f), generator=gen)
            z = torch.randint(6, 10, (groups, out_f), generator=gen)
            s = ((torch.rand(groups, out_f, generator=gen) * 0.5 + 0.75) * in_f**-0.5 / 4.6 * g).half()
            awq[p + n + ".qweight"], awq[p + n + ".qzeros"], awq[p + n + ".scales"] = pack(q), pack(z), s
            w = (q - z.repeat_interleave(a.group, 0)).float() * s.float().repeat_interleave(a.group, 0)
            ref[p + n + ".weight"] = w.t().contiguous()  # kept in FP32: the loader rounds it to --dtype

    eos = tok.token_to_id("<|im_end|>")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float16",
        "torch_dtype": "float16",
        "vocab_size": a.vocab,
        "hidden_size": h,
        "intermediate_size": a.inter,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": d,
        "max_position_embeddings": a.max_len,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "bos_token_id": None,
        "eos_token_id": eos,
    }
    quant = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": a.group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }
    tok_cfg = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": a.max_len,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": TEMPLATE,
    }
    variants = (("", fp16, {}), ("-awq", awq, {"quantization_config": quant}), ("-awq-ref", ref, {}))
    for suffix, tensors, extra in variants[:1] if a.only == "fp16" else variants:
        dst = a.out / (a.name + suffix)
        dst.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in tensors.items()}, dst / "model.safetensors", metadata={"format": "pt"})
        (dst / "config.json").write_text(json.dumps(config | extra, indent=1))
        (dst / "generation_config.json").write_text(
            json.dumps({"eos_token_id": eos, "pad_token_id": tok.token_to_id("<|endoftext|>")})
        )
        (dst / "tokenizer_config.json").write_text(json.dumps(tok_cfg, indent=1))
        (dst / "chat_template.jinja").write_text(TEMPLATE)
        tok.save(str(dst / "tokenizer.json"))
        print(dst, sum(f.stat().st_size for f in dst.iterdir()) // 1024, "KiB")


if __name__ == "__main__":
    main()
