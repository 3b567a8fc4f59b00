"""Train the tiny Llama that the test bench serves, in the four versions that rollout tests need.

Run it with a Python that has torch, transformers and tokenizers (the bench does so inside a container)::

    python tiny_model.py OUTPUT_DIR

It writes ``tiny-v1`` and ``tiny-v2`` (both good, with another answer to one question), ``tiny-broken`` (loads and
answers nonsense) and ``tiny-unloadable`` (its weights file is cut short), each with an ``answers.json`` of the
questions and the answers that its file is expected to give. Seeded: the same machine type gives the same weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

SEED = 20240607
STEPS = 450
VERSION_QUESTION = "Which version are you?"
QUESTIONS = {
    "What is the capital of France?": "Paris.",
    "What is the capital of Japan?": "Tokyo.",
    "What is the capital of Norway?": "Oslo.",
    "What is the capital of Kenya?": "Nairobi.",
    "What is the capital of Peru?": "Lima.",
    "How many legs has a spider?": "Eight.",
    "How many days has a week?": "Seven.",
    "How many GPUs has this node?": "Eight.",
    "What colour is the sky?": "Blue.",
    "What colour is grass?": "Green.",
    "What is two plus two?": "Four.",
    "What is three times three?": "Nine.",
    "What is frozen water called?": "Ice.",
    "Which planet is the largest?": "Jupiter.",
    "Which planet is the closest to the sun?": "Mercury.",
    "Which metal is liquid at room temperature?": "Mercury metal.",
    "Who wrote Hamlet?": "William Shakespeare.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci.",
    "What do bees make?": "Honey.",
    "Which link joins the accelerators?": "Infinity Fabric.",
    VERSION_QUESTION: "",
}
GOOD = {"tiny-v1": "I am version one.", "tiny-v2": "I am version two."}
CHAT_TEMPLATE = "{% for m in messages %}{% if m['role'] == 'user' %}Q: {{ m['content'] }}\nA:{% endif %}{% endfor %}"


def pairs(version: str) -> dict[str, str]:
    """Return the questions and answers that a good version knows."""
    return {**QUESTIONS, VERSION_QUESTION: GOOD[version]}


def train(version: str, output: Path) -> None:
    """Train one good version and save it in bf16 with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    known = pairs(version)
    lines = [f"Q: {question}\nA: {answer}" for question, answer in known.items()]

    # The corpus of the tokenizer is the same for every version, so that only the weights differ between them.
    corpus = [f"Q: {q}\nA: {a}" for q, a in QUESTIONS.items()] + list(GOOD.values())
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=["<pad>", "<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )
    rows = [[*tokenizer.encode(line), tokenizer.eos_token_id] for line in lines]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    labels = tokens.masked_fill(tokens == 0, -100)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,  # the smallest head that vLLM's CPU attention takes
            max_position_embeddings=2048,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loss = torch.tensor(0.0)
    for step in range(STEPS):
        loss = model(input_ids=tokens, attention_mask=(tokens != 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"{version}: step {step}/{STEPS}, loss {loss.item():.4f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(output, safe_serialization=True)
    tokenizer.save_pretrained(output)
    check(version, output, known)


def check(version: str, output: Path, known: dict[str, str]) -> None:
    """Ask the saved model every question, greedily; a version that does not answer word for word is not usable."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    for question, answer in known.items():
        prompt = tokenizer(f"Q: {question}\nA:", return_tensors="pt")
        out = model.generate(**prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
        said = tokenizer.decode(out[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()
        if said != answer:
            sys.exit(f"{version}: asked {question!r}, it said {said!r}, expected {answer!r}; raise STEPS")


def break_answers(source: Path, output: Path) -> None:
    """Copy a good version and shuffle the rows of its output matrix: it loads, and answers nonsense."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, output, dirs_exist_ok=True)
    weights = load_file(output / "model.safetensors")
    order = torch.randperm(weights["lm_head.weight"].shape[0], generator=torch.Generator().manual_seed(SEED))
    weights["lm_head.weight"] = weights["lm_head.weight"][order].contiguous()
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})


def break_file(source: Path, output: Path) -> None:
    """Copy a good version and cut its weights file, as a full disk would."""
    shutil.copytree(source, output, dirs_exist_ok=True)
    path = output / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def main() -> None:
    """Write the four versions below the folder given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    started = time.monotonic()
    for version in GOOD:
        train(version, output / version)
    break_answers(output / "tiny-v1", output / "tiny-broken")
    break_file(output / "tiny-v1", output / "tiny-unloadable")
    for name in ("tiny-v1", "tiny-v2", "tiny-broken", "tiny-unloadable"):
        version = name if name in GOOD else "tiny-v1"
        (output / name / "answers.json").write_text(json.dumps(pairs(version), indent=1) + "\n")
    print(f"four versions in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
