"""Settings of the optimizer."""

from dataclasses import dataclass, field
from typing import List, Optional

from enn_trainer.config_checks import JSON_TEXT, Validator
from enn_trainer.ppo.torch_optimizers import problems_of_optimizer


@dataclass
class ParamGroupConfig:
    """Settings of some of the parameters.

    Attributes:
        pattern: Names of the parameters, such as "embedding.*"; * stands for anything.
        lr_factor: Factor of the learning rate.
        weight_decay: Weight decay of all of them, also of those that optim.weight_decay spares;
            as of all others if not set.
        freeze_from: Leave them as they are from this step on; from the first one if only
            freeze_until is set.
        freeze_until: Train them again from this step on; never if only freeze_from is set.
    """

    pattern: str
    lr_factor: float = 1.0
    weight_decay: Optional[float] = None
    freeze_from: Optional[int] = None
    freeze_until: Optional[int] = None

    def __post_init__(self) -> None:
        with Validator(self) as check:
            check.require(
                self.pattern != "", "pattern: expected one such as \"embedding.*\", got ''"
            )
            check.numbers("lr_factor", "weight_decay", "freeze_from", at_least=0)
            check.numbers("freeze_until", at_least=(self.freeze_from or 0) + 1)


@dataclass
class OptimizerConfig:
    """Settings of the optimizer.

    Attributes:
        lr: The learning rate.
        lr_warmup_steps: Number of environment steps over which the learning rate rises from 0 to
            its value; none if not set.
        bs: Batch size: frames in one optimizer step.
        weight_decay: Weight decay, of the matrices; biases, norms and embedding tables have
            none.
        micro_bs: Frames in one forward and backward pass, whose gradients are added up to those of
            a batch. A smaller number needs less memory, takes longer, and learns the same.
        anneal_lr: Lower the learning rate linearly to 0 over the run, unless lr has a schedule.
        update_epochs: Number of passes over the frames of each rollout.
        max_grad_norm: Scale gradients down to this norm, those of a value network for themselves.
        groups: Settings of some of the parameters; each follows the first group that fits its name.
        name: Which optimizer: a class of torch.optim.
        kwargs: Keyword arguments of the optimizer, as a JSON object; eps of AdamW is 0.00001 if it
            is not among them.
        shuffle: Draw a new order of the frames for each pass over them; without it they come step
            by step, as they were collected.
        max_entities: Entities in one forward and backward pass, at most; a frame with more of them
            has one for itself. As with micro_bs, less memory, more time, and the same is learnt.
    """

    lr: float = 0.001
    lr_warmup_steps: Optional[int] = None
    bs: int = 1024
    weight_decay: float = 0.0
    micro_bs: Optional[int] = None
    anneal_lr: bool = True
    update_epochs: int = 3
    max_grad_norm: float = 2.0
    groups: List[ParamGroupConfig] = field(default_factory=list)
    name: str = "AdamW"
    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    shuffle: bool = True
    max_entities: Optional[int] = None

    def __post_init__(self) -> None:
        with Validator(self) as check:
            check.numbers("lr", "weight_decay", at_least=0.0)
            check.numbers("lr_warmup_steps", at_least=0)
            check.numbers("bs", "micro_bs", "update_epochs", "max_entities", at_least=1)
            check.numbers("max_grad_norm", above=0, finite=False)
            if check.json_object("kwargs"):
                decays = bool(self.weight_decay) or any(g.weight_decay for g in self.groups)
                check.found += problems_of_optimizer(self.name, self.kwargs, decays)
