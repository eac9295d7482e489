"""Program of ranks that exchange rows of tensors on GPUs."""

import numpy as np
import torch

from enn_trainer.base.group import tree_sum
from enn_trainer.runtime.torch_group import TorchGroup


def main() -> None:
    group = TorchGroup()  # also of one rank
    group.begin(60.0, uses_gpu=True)
    rng = np.random.default_rng(0)
    for _ in range(20):
        columns, *counts = rng.integers(1, [2000, *[5] * group.size]).tolist()
        rows = torch.from_numpy(rng.normal(size=(sum(counts), columns)).astype(np.float32)).cuda()
        first = sum(counts[: group.rank])
        own = rows[first : first + counts[group.rank]]
        width = -(-columns // group.size)
        padded = torch.nn.functional.pad(own, (0, width * group.size - columns))
        sent = padded.view(len(own), group.size, width).transpose(0, 1).contiguous()
        total = tree_sum([*group.exchange_slices(sent, counts)], torch.add)
        of_all = total.repeat(group.size, 1, 1), [1] * group.size
        found = group.exchange_slices(*of_all).flatten()[:columns]
        assert found.device == rows.device
        assert torch.equal(found, tree_sum([*rows], torch.add))
        assert torch.equal(group.tree_sum(own, counts), found)
    print(f"by nccl {group._by_gpu} is fine", flush=True)


if __name__ == "__main__":
    main()
