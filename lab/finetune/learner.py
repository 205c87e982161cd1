"""A pretrained model as the training loop calls it: token ids and targets -> a loss, and no (B, T, V) logits for it."""

# B rows · T tokens · N = B·T · C width · V vocabulary

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from eval.score import answering, body_of, vocabulary
from lab import LabError
from lab.loss import loss_sum

LOGITS = 2**23
"""The most that the loss holds at once (32 MiB in fp32)."""


class Learner(nn.Module):
    """Around a causal language model of transformers, with LoRA in it or without.

    A router's loss that a mixture of experts adds for itself is left out.
    Raises LabError where the model does not tell its body from its head.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        if body_of(self.lm) is None:
            raise LabError(
                f"{type(self.lm).__name__} is not made of a body and a head, as causal models are: not trained"
            )
        # By these FSDP cuts a model into parts that it gathers one at a time.
        self._no_split_modules = self.lm._no_split_modules

    @property
    def lm(self) -> PreTrainedModel:
        """The language model itself; PEFT lays two classes around one that it adapts."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def forward(
        self,
        input_ids: Tensor,
        shift_labels: Tensor,
        position_ids: Tensor | None = None,
        num_items_in_batch: float | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """The mean loss.   input_ids: (B, T).   shift_labels: (B, T), what follows each place, -100 for nothing.

        position_ids: (B, T), from 0 on at the first token of each document packed in a row; None: a row is one.
        num_items_in_batch: what to divide the loss by, in the place of the number of targets.
        """
        lm, body = self.lm, body_of(self.lm)
        packed = {} if position_ids is None else {"position_ids": position_ids}
        seen = body(input_ids=input_ids, use_cache=False, **packed)

        def head(hidden: Tensor) -> Tensor:
            """(n, C) -> (n, V), by the model's own forward on a body that answers so: caps and scales included."""
            answer = type(seen)(last_hidden_state=hidden[None])
            with answering(body, lambda *_, **__: answer):
                return lm(input_ids=input_ids.new_zeros(1, len(hidden)), use_cache=False).logits[0]

        hidden, targets = seen.last_hidden_state.flatten(0, 1), shift_labels.flatten()
        total, count = loss_sum(head, hidden, targets, rows=max(1, LOGITS // vocabulary(lm)))
        return CausalLMOutput(loss=total / (count if num_items_in_batch is None else num_items_in_batch))
