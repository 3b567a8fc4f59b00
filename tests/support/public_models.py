"""What public models say of themselves: the size-giving keys of their config.json, and what their publishers state.

``parameters`` is the count on the model's page on Hugging Face (the sum over its safetensors files) unless a comment
says otherwise; ``checkpoint_gib`` is the size of a quantised checkpoint where its publisher states one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PublicModel:
    """A configuration and the published figures that must come out of it."""

    config: dict[str, Any]
    parameters: float
    checkpoint_gib: float | None = None


def _llama(hidden: int, layers: int, heads: int, size: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": size,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
        "tie_word_embeddings": False,
        **more,
    }


LLAMA_8B = _llama(4096, 32, 32, 14336)
LLAMA_70B = _llama(8192, 80, 64, 28672)
LLAMA_405B = _llama(16384, 126, 128, 53248)

#: meta-llama/Llama-3.1-405B-Instruct-FP8: attention and the first and last feed-forward layer stay bfloat16.
LLAMA_405B_FP8: dict[str, Any] = {
    **LLAMA_405B,
    "quantization_config": {
        "quant_method": "fbgemm_fp8",
        "modules_to_not_convert": [
            *(f"model.layers.{layer}.self_attn" for layer in range(126)),
            *("model.layers.0.mlp", "model.layers.125.mlp", "lm_head"),
        ],
    },
}

MIXTRAL_8X7B: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "tie_word_embeddings": False,
}

QWEN25_72B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 29568,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "max_window_layers": 70,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}

#: Qwen/Qwen2.5-72B-Instruct-AWQ, whose feed-forward layers are padded so that TP 8 cuts whole groups.
QWEN25_72B_AWQ: dict[str, Any] = {
    **QWEN25_72B,
    "intermediate_size": 29696,
    "torch_dtype": "float16",
    "quantization_config": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "zero_point": True,
        "modules_to_not_convert": None,
    },
}

#: The configuration of DeepSeek-R1-Distill-Qwen-14B.
QWEN25_14B: dict[str, Any] = {
    **QWEN25_72B,
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "intermediate_size": 13824,
}

QWEN25_05B: dict[str, Any] = {
    **QWEN25_72B,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}

QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}

QWEN3_235B: dict[str, Any] = {
    **QWEN3_8B,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

#: Qwen/Qwen3-235B-A22B-FP8.
QWEN3_235B_FP8: dict[str, Any] = {
    **QWEN3_235B,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "ignored_layers": ["lm_head"],
    },
}

QWEN3_30B: dict[str, Any] = {
    **QWEN3_235B,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
}

DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}

DEEPSEEK_V2_LITE: dict[str, Any] = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV2ForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "q_lora_rank": None,
    "vocab_size": 102400,
    "quantization_config": None,
}

GPT_OSS_120B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "attention_bias": True,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            *("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"),
        ],
    },
}

GEMMA2_27B: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "torch_dtype": "float32",
    "hidden_size": 4608,
    "num_hidden_layers": 46,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "intermediate_size": 36864,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
}

PHI3_MINI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 3072,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 8192,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
}


PUBLIC_MODELS: dict[str, PublicModel] = {
    "Llama-3.1-8B": PublicModel(LLAMA_8B, 8_030_261_248),
    "Llama-3.1-70B": PublicModel(LLAMA_70B, 70_553_706_496),
    "Llama-3.1-405B": PublicModel(LLAMA_405B, 405_853_388_800),
    "Llama-3.2-1B": PublicModel(_llama(2048, 16, 32, 8192, head_dim=64, tie_word_embeddings=True), 1_235_814_400),
    "Mixtral-8x7B": PublicModel(MIXTRAL_8X7B, 46_702_792_704),
    "Qwen2.5-72B": PublicModel(QWEN25_72B, 72_706_203_648),
    "Qwen2.5-0.5B": PublicModel(QWEN25_05B, 494_032_768),
    "Qwen3-8B": PublicModel(QWEN3_8B, 8_190_735_360),
    "Qwen3-30B-A3B": PublicModel(QWEN3_30B, 30_532_122_624),
    "Qwen3-235B-A22B": PublicModel(QWEN3_235B, 235_093_634_560),
    # "671B of the Main Model weights" (its README), without the 14B of multi-token prediction.
    "DeepSeek-V3": PublicModel(DEEPSEEK_V3, 671e9),
    # 15.7 billion (arXiv 2405.04434).
    "DeepSeek-V2-Lite": PublicModel(DEEPSEEK_V2_LITE, 15.7e9),
    # 116.83 billion parameters and a checkpoint of 60.8 GiB (model card, arXiv 2508.10925, table 1).
    "gpt-oss-120b": PublicModel(GPT_OSS_120B, 116.83e9, 60.8),
    # 20.91 billion and 12.8 GiB (the same table).
    "gpt-oss-20b": PublicModel(
        {
            **GPT_OSS_120B,
            **{"num_hidden_layers": 24, "num_local_experts": 32, "layer_types": GPT_OSS_120B["layer_types"][:24]},
        },
        20.91e9,
        12.8,
    ),
    "Gemma-2-27B": PublicModel(GEMMA2_27B, 27_227_128_320),
    "Phi-3-mini": PublicModel(PHI3_MINI, 3_821_079_552),
}

#: The model of the project's test bench (hidden size 128), as vLLM's CPU backend serves it.
TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
}
