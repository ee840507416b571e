"""A Llama of 3.7 MB with random weights: its text means nothing, but all of an engine's path runs with it.

    python -m serve_apps.engines.vllm.tiny DIRECTORY

Same seed, same bytes. The tokenizer is a byte-level BPE learnt from a few sentences; nothing is downloaded.
It needs `tokenizers` and, but for the tokenizer, `safetensors`, which vLLM brings.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 384
POSITIONS = 4096
HIDDEN, HEADS, KV_HEADS, LAYERS, INNER = 128, 4, 2, 4, 352
BEGIN, END = "<s>", "</s>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SENTENCES = (
    "The planner reads the load, foresees the next minute and asks for as many replicas as it takes.",
    "A prompt is computed once; its keys and values travel to the replica that writes the answer.",
    "Why is the sky blue? Because short waves scatter more than long ones.",
    "Queues grow when nobody looks, and shrink when somebody counts: 0 1 2 3 4 5 6 7 8 9.",
)

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


def build(directory: Path, seed: int = 0) -> None:
    """Write the model; what is there under the same names is overwritten."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    save_file(dict(_weights(seed)), directory / "model.safetensors", metadata={"format": "pt"})
    build_tokenizer(directory)


def build_tokenizer(directory: Path) -> None:
    """Write the model but for its weights: what clients load that count tokens themselves."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "config.json", CONFIG)
    _tokenizer(directory / "tokenizer.json")
    _write(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "chat_template": TEMPLATE,
            "model_max_length": POSITIONS,
        },
    )


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    head = HIDDEN // HEADS
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        above = f"model.layers.{layer}."
        yield f"{above}self_attn.q_proj.weight", (HEADS * head, HIDDEN)
        yield f"{above}self_attn.k_proj.weight", (KV_HEADS * head, HIDDEN)
        yield f"{above}self_attn.v_proj.weight", (KV_HEADS * head, HIDDEN)
        yield f"{above}self_attn.o_proj.weight", (HIDDEN, HEADS * head)
        yield f"{above}mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{above}mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{above}mlp.down_proj.weight", (HIDDEN, INNER)
        yield f"{above}input_layernorm.weight", (HIDDEN,)
        yield f"{above}post_attention_layernorm.weight", (HIDDEN,)


def _weights(seed: int) -> Iterator[tuple[str, "np.ndarray[Any, np.dtype[np.float32]]"]]:
    """Wide enough that one token is ahead of the others; attention loud, so that all of a prompt counts."""
    generator = np.random.default_rng(seed)
    for name, shape in _shapes():
        flat = len(shape) == 1
        weight = np.ones(shape) if flat else generator.normal(0.0, _width(name), shape)
        yield name, weight.astype(np.float32)


def _width(name: str) -> float:
    if "embed_tokens" in name:
        return 0.04
    return 0.6 if "v_proj" in name else 0.2


def _tokenizer(file: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    tokenizer.save(str(file))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m serve_apps.engines.vllm.tiny DIRECTORY")
    build(Path(sys.argv[1]))
