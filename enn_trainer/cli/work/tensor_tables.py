"""Tables of the tensors of checkpoints."""

import torch
from torch import Tensor

from enn_trainer.checkpoints.lookup import Contents
from enn_trainer.checkpoints.state_files import read_tensors


def rows_of_tensors(contents: Contents) -> list[tuple[str, ...]]:
    """Return a row for each tensor: file, name, shape, dtype and norm."""
    rows: list[tuple[str, ...]] = []
    for file in contents.shapes:
        for name, tensor in sorted(read_tensors(contents.saved, file).items()):
            shape = " x ".join(map(str, tensor.shape)) or "a number"
            rows.append((file, name, shape, _dtype(tensor), f"{tensor.double().norm().item():.4g}"))
    return rows


def tensor_differences(a: Contents, b: Contents) -> list[tuple[str, str, str]]:
    """Return a row for each tensor that differs: file, name and difference."""
    rows = []
    for file in dict.fromkeys([*a.shapes, *b.shapes]):
        old, new = (read_tensors(c.saved, file) if file in c.shapes else {} for c in (a, b))
        names = sorted({*old, *new})
        changed = [(file, n, text) for n in names if (text := _difference(old.get(n), new.get(n)))]
        rows += changed
        if changed and len(changed) < len(names):
            rows.append((file, f"{len(names) - len(changed)} others", "identical"))
    return rows


def _difference(old: Tensor | None, new: Tensor | None) -> str:
    """Describe the difference of two tensors; "" if they are equal."""
    if old is None or new is None:
        return f"only in {'B' if old is None else 'A'}"
    if old.shape != new.shape or old.dtype != new.dtype:
        before, after = (f"{_dtype(tensor)} {tuple(tensor.shape)}" for tensor in (old, new))
        return f"{before} became {after}"
    if torch.equal(old, new):
        return ""
    a, b = old.double(), new.double()
    far = (a - b).norm().item() / max(a.norm().item(), b.norm().item())
    return f"{far:.3g} of its norm apart"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
