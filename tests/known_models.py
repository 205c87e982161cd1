"""Models of which the losses are known beforehand, and plans for them."""

from dataclasses import replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from eval.perplexity import Measured, measure
from eval.plan import Document, Plan
from eval.protocols import PROTOCOLS
from eval.scorer import Budget
from eval.store import Store
from lab.model import LabConfig, LabModel

V = 50
"""Words. No other size in these tests is 50, so a tensor with this size is one of logits."""


class Known(nn.Module):
    """A model of which nothing is known but `.logits`; clueless, and counts on how many tokens it was run."""

    def __init__(self):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))
        self.shapes = []

    @property
    def tokens(self) -> int:
        return sum(b * n for b, n in self.shapes)

    def forward(self, ids: Tensor) -> SimpleNamespace:
        self.shapes.append(tuple(ids.shape))
        return SimpleNamespace(logits=self.logits(ids))

    def logits(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, V)


class Copier(Known):
    """Is sure that the next token is the one `back` before it, at the places below `until`; beyond, it is clueless."""

    def __init__(self, back: int, until: int = 10**9):
        super().__init__()
        self.back, self.until = back, until

    def logits(self, ids):
        places = torch.arange(ids.shape[1])
        sure = F.one_hot(ids[:, (places - self.back + 1).clamp(min=0)], V) * 1e4
        return sure * (places < self.until)[:, None]


class ByPlace(Known):
    """Knows that its texts count up, and lets each token cost `losses[place]` nats."""

    def __init__(self, losses: Tensor):
        super().__init__()
        self.losses = losses.double()

    def logits(self, ids):
        right = (-self.losses[: ids.shape[1]]).exp()[:, None]
        wrong = (1 - right) / (V - 1)
        return torch.where(F.one_hot((ids + 1) % V, V) == 1, right, wrong).log().float()


def periodic(back: int, length: int) -> Tensor:
    return torch.arange(length) % back


def drawn(*shape: int, seed: int = 0, low: int = 0) -> Tensor:
    return torch.randint(low, V, shape, generator=torch.Generator().manual_seed(seed))


def llama(**more) -> nn.Module:
    """With weights ten times what they are drawn from, so that it makes a difference what it reads."""
    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.2, **more)).eval()


def dynamic() -> nn.Module:
    """A Llama whose angles follow the length that is run, beyond 16 tokens."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return llama(max_position_embeddings=16, rope_parameters=rope)


def dynamic_by_layer() -> nn.Module:
    """One layer's angles follow the length that is run, the other's do not."""
    config = Gemma3TextConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=16,
        initializer_range=0.2,
        rope_parameters={
            "full_attention": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    )
    return Gemma3ForCausalLM(config).eval()


def gemma() -> nn.Module:
    """With logits pressed below 0.5, far from what its head gives alone; one of two layers sees 8 tokens."""
    config = Gemma2Config(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.5,
        sliding_window=8,
        initializer_range=0.5,
    )
    return Gemma2ForCausalLM(config).eval()


def own(positional="rope", train_length: int = 16) -> LabModel:
    config = LabConfig(vocab_size=V, width=32, layers=2, heads=2, positional=positional, train_length=train_length)
    return LabModel(config).eval()


def documents(*lengths: int, back: int | None = None, low: int = 0) -> list[Document]:
    """Of so many tokens."""
    made = [drawn(n, seed=k, low=low) if back is None else periodic(back, n) + k for k, n in enumerate(lengths)]
    return [Document(f"document {n}", ids) for n, ids in enumerate(made)]


def plan(lengths: list[int], given: list[Document] | None = None, protocols: str = "equal position", **options) -> Plan:
    """Of three documents of one token more than the longest length, which is the least that these protocols take."""
    given = documents(*[max(lengths) + 1] * 3) if given is None else given
    return Plan(given, lengths, [PROTOCOLS[name] for name in protocols.split()], **options)


def to_the_end(which: Plan) -> Plan:
    """The same, but documents are read to their end."""
    return replace(which, protocols=[replace(one, whole=True) for one in which.protocols])


def measured(folder, model, which: Plan, *, identity: str = "a model", tokens: int = 16384, **how) -> Measured:
    how = {"store": Store(folder), "budget": Budget(tokens), **how}
    return measure(model, which, identity=identity, **how)
