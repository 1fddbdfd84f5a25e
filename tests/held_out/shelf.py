"""Models that nobody here wrote: small configurations from transformers, and torch.nn.

Each is a function of batch and seed that returns a TrainingStep, as a user would write it. Dropout
is off, so that eager PyTorch is comparable to the last bit.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep

WORDS, LENGTH, CLASSES, PIXELS = 64, 12, 7, 64

Build = Callable[[int, int], TrainingStep]


class ReturnsLoss(nn.Module):
    """A model of transformers with its labels; names: of its inputs, in the batch's order."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], more: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.more = model, names, more

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.names, inputs, strict=True))
        loss: torch.Tensor = self.model(**given, **self.more).loss
        return loss


class First(nn.Module):
    """The first of the results of a recurrent layer."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return result


class Pooled(nn.Module):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layer(x).flatten(2).mean(2))
        return result


def words(batch: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(2, WORDS, (batch, LENGTH), generator=draw)


def classes(batch: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(CLASSES, (batch,), generator=draw)


def pixels(batch: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(batch, 3, PIXELS, PIXELS, generator=draw)


def floats(*shape: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    return lambda batch, draw: torch.randn(batch, *shape, generator=draw)


Draw = Callable[[int, torch.Generator], torch.Tensor]
Settings = dict[str, Any]


class Task(NamedTuple):
    """names: of the model's inputs. draws: what makes each of them."""

    names: tuple[str, ...]
    draws: tuple[Draw, ...]


def step_of(model: nn.Module, batch: int, draws: tuple[Draw, ...], loss: Any) -> TrainingStep:
    def batches(number: int) -> tuple[torch.Tensor, ...]:
        draw = torch.Generator().manual_seed(7919 + number)
        return tuple(one(batch, draw) for one in draws)

    return TrainingStep(model.train(), batches(0), batches, loss)


def hugging(name: str, kind: str, task: Task, checkpointed: bool = False, **config: Any) -> Build:
    """name: like `Bert`, of the configuration; kind: like `ForMaskedLM`, of the model."""

    def build(batch: int, seed: int) -> TrainingStep:
        transformers = importlib.import_module("transformers")
        made = getattr(transformers, f"{name}Config")(**config)
        model = getattr(transformers, f"{name}{kind}")(made)
        if checkpointed:
            model.gradient_checkpointing_enable()
        takes = inspect.signature(model.forward).parameters
        more = {"use_cache": False} if "use_cache" in takes else {}
        return step_of(ReturnsLoss(model, task.names, more), batch, task.draws, None)

    return build


def plain(make: Callable[[], nn.Module], draw: Draw) -> Build:
    def build(batch: int, seed: int) -> TrainingStep:
        return step_of(make(), batch, (draw, classes), nn.CrossEntropyLoss())

    return build


SMALL: Settings = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": WORDS,
}
FORWARD: Settings = {"intermediate_size": 64}
DRY: Settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DRY_TOO: Settings = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
ENDS: Settings = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
LM = Task(("input_ids", "labels"), (words, words))
LABELS = Task(("input_ids", "labels"), (words, classes))
IMAGES = Task(("pixel_values", "labels"), (pixels, classes))
PATCHES: Settings = {"image_size": PIXELS, "patch_size": 16, "num_labels": CLASSES, **DRY}
GPT2: Settings = {
    "vocab_size": WORDS,
    "n_positions": 16,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
T5: Settings = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
BART: Settings = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 0,
    **ENDS,
}

MODELS: dict[str, Build] = {
    "transformers T5": hugging("T5", "ForConditionalGeneration", LM, **T5),
    "transformers T5, checkpointed": hugging(
        "T5", "ForConditionalGeneration", LM, checkpointed=True, **T5
    ),
    "transformers GPT-2": hugging("GPT2", "LMHeadModel", LM, **GPT2),
    "transformers GPT-2, checkpointed": hugging("GPT2", "LMHeadModel", LM, True, **GPT2),
    "transformers BERT": hugging("Bert", "ForMaskedLM", LM, **SMALL, **FORWARD, **DRY),
    "transformers RoBERTa": hugging(
        "Roberta",
        "ForSequenceClassification",
        LABELS,
        **SMALL,
        **FORWARD,
        **DRY,
        num_labels=CLASSES,
        classifier_dropout=0.0,
    ),
    "transformers DistilBERT": hugging(
        "DistilBert",
        "ForSequenceClassification",
        LABELS,
        vocab_size=WORDS,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=CLASSES,
    ),
    "transformers ALBERT": hugging(
        "Albert",
        "ForSequenceClassification",
        LABELS,
        **SMALL,
        **FORWARD,
        **DRY,
        embedding_size=16,
        classifier_dropout_prob=0.0,
        num_labels=CLASSES,
    ),
    "transformers ELECTRA": hugging(
        "Electra",
        "ForSequenceClassification",
        LABELS,
        **SMALL,
        **FORWARD,
        **DRY,
        embedding_size=16,
        classifier_dropout=0.0,
        num_labels=CLASSES,
    ),
    "transformers OPT": hugging(
        "OPT",
        "ForCausalLM",
        LM,
        **SMALL,
        ffn_dim=64,
        dropout=0.0,
        attention_dropout=0.0,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
    ),
    "transformers GPT-Neo": hugging(
        "GPTNeo",
        "ForCausalLM",
        LM,
        vocab_size=WORDS,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=32,
        window_size=8,
        embed_dropout=0.0,
        resid_dropout=0.0,
        attention_dropout=0.0,
    ),
    "transformers GPT-NeoX": hugging(
        "GPTNeoX", "ForCausalLM", LM, **SMALL, **FORWARD, **DRY_TOO, max_position_embeddings=32
    ),
    "transformers GPT-J": hugging("GPTJ", "ForCausalLM", LM, **GPT2, rotary_dim=8),
    "transformers BLOOM": hugging(
        "Bloom",
        "ForCausalLM",
        LM,
        vocab_size=WORDS,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        **DRY_TOO,
    ),
    "transformers Llama": hugging("Llama", "ForCausalLM", LM, **SMALL, **FORWARD),
    "transformers Llama, checkpointed": hugging(
        "Llama", "ForCausalLM", LM, True, **SMALL, **FORWARD
    ),
    "transformers Mistral": hugging(
        "Mistral", "ForCausalLM", LM, **SMALL, **FORWARD, num_key_value_heads=2
    ),
    "transformers Qwen2": hugging(
        "Qwen2", "ForCausalLM", LM, **SMALL, **FORWARD, num_key_value_heads=2
    ),
    "transformers Gemma": hugging(
        "Gemma",
        "ForCausalLM",
        LM,
        **SMALL,
        **FORWARD,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
    ),
    "transformers Phi": hugging(
        "Phi", "ForCausalLM", LM, **SMALL, **FORWARD, resid_pdrop=0.0, embd_pdrop=0.0
    ),
    "transformers Falcon": hugging("Falcon", "ForCausalLM", LM, **SMALL, **DRY_TOO),
    "transformers BART": hugging("Bart", "ForConditionalGeneration", LM, **BART),
    "transformers Pegasus": hugging("Pegasus", "ForConditionalGeneration", LM, **BART),
    "transformers ViT": hugging(
        "ViT",
        "ForImageClassification",
        IMAGES,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        **FORWARD,
        **PATCHES,
    ),
    "transformers DeiT": hugging(
        "DeiT",
        "ForImageClassification",
        IMAGES,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        **FORWARD,
        **PATCHES,
    ),
    "transformers ConvNeXt": hugging(
        "ConvNext",
        "ForImageClassification",
        IMAGES,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_labels=CLASSES,
    ),
    "transformers ResNet": hugging(
        "ResNet",
        "ForImageClassification",
        IMAGES,
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_labels=CLASSES,
    ),
    "transformers MobileNetV2": hugging(
        "MobileNetV2",
        "ForImageClassification",
        IMAGES,
        depth_multiplier=0.25,
        image_size=PIXELS,
        classifier_dropout_prob=0.0,
        num_labels=CLASSES,
    ),
    "transformers RegNet": hugging(
        "RegNet",
        "ForImageClassification",
        IMAGES,
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        groups_width=8,
        num_labels=CLASSES,
    ),
    "transformers BEiT": hugging(
        "Beit",
        "ForImageClassification",
        IMAGES,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        drop_path_rate=0.0,
        **FORWARD,
        **PATCHES,
    ),
    "transformers DINOv2": hugging(
        "Dinov2",
        "ForImageClassification",
        IMAGES,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        **PATCHES,
    ),
    "transformers Swin": hugging(
        "Swin",
        "ForImageClassification",
        IMAGES,
        image_size=PIXELS,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
        num_labels=CLASSES,
        **DRY,
    ),
    "transformers PoolFormer": hugging(
        "PoolFormer",
        "ForImageClassification",
        IMAGES,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        drop_path_rate=0.0,
        num_labels=CLASSES,
    ),
    "transformers DeBERTa-v2": hugging(
        "DebertaV2",
        "ForSequenceClassification",
        LABELS,
        **SMALL,
        **FORWARD,
        **DRY,
        num_labels=CLASSES,
        pooler_dropout=0.0,
        cls_dropout=0.0,
    ),
    "transformers MPNet": hugging(
        "MPNet", "ForSequenceClassification", LABELS, **SMALL, **FORWARD, **DRY, num_labels=CLASSES
    ),
    "transformers XLNet": hugging(
        "XLNet",
        "LMHeadModel",
        LM,
        vocab_size=WORDS,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=64,
        dropout=0.0,
    ),
    "transformers FNet": hugging(
        "FNet",
        "ForSequenceClassification",
        LABELS,
        **{k: v for k, v in SMALL.items() if "attention" not in k},
        **FORWARD,
        hidden_dropout_prob=0.0,
        num_labels=CLASSES,
    ),
    "transformers StableLM": hugging("StableLm", "ForCausalLM", LM, **SMALL, **FORWARD),
    "transformers StarCoder2": hugging(
        "Starcoder2",
        "ForCausalLM",
        LM,
        **SMALL,
        **FORWARD,
        num_key_value_heads=2,
        residual_dropout=0.0,
        embedding_dropout=0.0,
    ),
    "transformers OLMo": hugging("Olmo", "ForCausalLM", LM, **SMALL, **FORWARD),
    "transformers Granite": hugging("Granite", "ForCausalLM", LM, **SMALL, **FORWARD),
    "transformers Qwen3": hugging(
        "Qwen3", "ForCausalLM", LM, **SMALL, **FORWARD, num_key_value_heads=2, head_dim=8
    ),
    "transformers CodeGen": hugging("CodeGen", "ForCausalLM", LM, **GPT2, rotary_dim=4),
    "torch.nn LSTM": plain(lambda: First(nn.LSTM(8, 16, batch_first=True), 16), floats(6, 8)),
    "torch.nn LSTM, two layers, both ways": plain(
        lambda: First(nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True), 32), floats(6, 8)
    ),
    "torch.nn GRU": plain(lambda: First(nn.GRU(8, 16, batch_first=True), 16), floats(6, 8)),
    "torch.nn RNN": plain(lambda: First(nn.RNN(8, 16, batch_first=True), 16), floats(6, 8)),
    "torch.nn TransformerEncoder": plain(
        lambda: Pooled(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2
            ),
            6,
        ),
        floats(6, 16),
    ),
    "torch.nn Conv1d": plain(
        lambda: Pooled(nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.GELU()), 8),
        floats(4, 20),
    ),
    "torch.nn Conv3d": plain(
        lambda: Pooled(nn.Sequential(nn.Conv3d(2, 8, 3), nn.BatchNorm3d(8), nn.SiLU()), 8),
        floats(2, 6, 6, 6),
    ),
    "torch.nn ConvTranspose2d": plain(
        lambda: Pooled(
            nn.Sequential(nn.ConvTranspose2d(3, 8, 3, 2), nn.InstanceNorm2d(8), nn.PReLU()), 8
        ),
        floats(3, 8, 8),
    ),
    "torch.nn MLP": plain(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(24, 32), nn.LayerNorm(32), nn.Softplus(), nn.Linear(32, CLASSES)
        ),
        floats(24),
    ),
}


def built(name: str) -> Build:
    """The model under a name that Python takes: a plan names a function."""
    return {python_name(one): build for one, build in MODELS.items()}[name]


def python_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def __getattr__(name: str) -> Build:
    try:
        return built(name)
    except KeyError:
        raise AttributeError(name) from None
