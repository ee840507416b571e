"""A LoRA adapter of the tiny model, random and loud enough to change what it says."""

import json
from pathlib import Path

import numpy as np

from serve_apps.engines.vllm.tiny import HEADS, HIDDEN, KV_HEADS, LAYERS

RANK = 8
WIDTHS = {"q_proj": HIDDEN, "v_proj": KV_HEADS * (HIDDEN // HEADS)}


def build(directory: Path, seed: int = 7) -> None:
    """Write it there."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, width in WIDTHS.items():
            above = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (width, RANK))):
                weights[f"{above}.{part}.weight"] = generator.normal(0.0, 0.3, shape).astype(np.float32)
    save_file(weights, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(WIDTHS),
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
