"""Fine-tuning: a pretrained model, with its own or another encoding, trained further by the lab's loop."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers import PreTrainedModel

from eval.load import limit_of, load
from eval.score import vocabulary
from lab import LabError
from lab.adopt import adopt
from lab.checkpoint import replacing
from lab.data import Corpus
from lab.finetune.held_out import held_out, plan_of, rows_of
from lab.finetune.learner import Learner
from lab.finetune.lora import checkpoint_trained_alone, with_lora
from lab.finetune.settings import Finetuning
from lab.finetune.settled import settled
from lab.finetune.write import refuse_unwritable, write
from lab.pretrained import located
from lab.rows import Rows
from lab.subject import Subject
from lab.train import accelerator_for, train


def finetune(asked: Finetuning, accelerator: Accelerator | None = None) -> Path:
    """Train, or go on with, what was asked for; returns the folder of the model, which transformers loads.

    Raises LabError, EvalError or SchemeError where the model, its tokenizer or the encoding does not allow it, and as
    `train` does.
    """
    run = settled(asked)
    return train(run, accelerator or accelerator_for(run), subject=Tuned())


class Tuned(Subject):
    """A pretrained model of transformers."""

    around = True

    def model(self, run: Finetuning, text: Corpus, accelerator: Accelerator) -> nn.Module:
        lm = loaded(run, accelerator)
        refuse_unwritable(run, lm)
        if text.meta["vocab_size"] > vocabulary(lm):
            raise LabError(
                f"{run.model.name}: its tokenizer has {text.meta['vocab_size']} tokens and the model {vocabulary(lm)}: "
                "they are not of one checkpoint"
            )
        if run.train.checkpointing:
            # As transformers calls it from 5.24 on, and before.
            getattr(lm, "activation_checkpointing_enable", lm.gradient_checkpointing_enable)({"use_reentrant": False})
        learner = learner_of(run, lm)
        if run.lora is not None and not sharded(accelerator):
            checkpoint_trained_alone(accelerator, learner)
        return learner

    def held_out(self, run: Finetuning, accelerator: Accelerator, model: nn.Module, text: Corpus) -> dict[str, float]:
        """The mean loss at those of eval.lengths that the model takes, on the same tokens of held-out documents."""
        return held_out(model, plan_of(run, text, limit_of(accelerator.unwrap_model(model).lm)), accelerator)

    def save(self, run: Finetuning, accelerator: Accelerator, model: nn.Module) -> None:
        """The model as a folder that transformers loads, beside it the adapter, and the rows."""
        lm = whole(run, accelerator, model).model
        if accelerator.is_main_process:
            measured = rows_of(run, limit_of(lm))
            for row in measured:
                Rows(run.path / "rows.jsonl").put(row)
            if run.lora is not None:
                with replacing(run.path / "adapter") as side:
                    lm.save_pretrained(side)
                lm = lm.merge_and_unload()
            write(lm.eval(), run, [row for row in measured if row.trained_as == run.encoding])
        accelerator.wait_for_everyone()


def sharded(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.FSDP


def loaded(run: Finetuning, accelerator: Accelerator) -> PreTrainedModel:
    """The checkpoint with its encoding in place. Raises LabError where it cannot read what it is to be trained on."""
    # Frozen weights can stay in half precision; those that small steps are added to cannot, and FSDP mixes none.
    frozen = run.lora is not None and not run.lora.also and not sharded(accelerator)
    device = "cpu" if sharded(accelerator) else str(accelerator.device)
    lm, _ = load(located(run.model.name), "auto" if frozen else "float32", device)
    limit = limit_of(lm)
    if limit is not None and run.train.length > limit:
        raise LabError(
            f"train.length: {run.model.name} has a table of {limit} positions and takes no more tokens, got "
            f"{run.train.length}; only a model that turns queries and keys can be extended",
            code=2,
        )
    if run.model.positional is not None:
        adopt(lm, run.model.positional, train_length=run.model.train_length)
    return lm


def learner_of(run: Finetuning, lm: PreTrainedModel) -> Learner:
    """What is trained of it; the first weights of adapters are a function of the seed."""
    torch.manual_seed(run.seed)
    return Learner(lm if run.lora is None else with_lora(lm, run.lora))


def whole(run: Finetuning, accelerator: Accelerator, model: nn.Module) -> Learner:
    """All weights in one process, the main one."""
    if not sharded(accelerator):
        return accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    state = accelerator.get_state_dict(model)
    learner = learner_of(run, loaded(run, accelerator))
    if accelerator.is_main_process:
        learner.load_state_dict(state)
    return learner
