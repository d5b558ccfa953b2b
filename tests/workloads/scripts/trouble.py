"""Scripts that cannot be measured, and one that writes where it should not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tiny  # type: ignore[import-not-found]
import torch

HOME = Path(tiny.__file__).parent
how = sys.argv[1]
if how == "launcher":
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "inner.py"], check=True)
if how == "nothing":
    sys.exit(2)
if how == "absolute":
    (HOME / "notes.txt").write_text("changed")
model = tiny.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    optimizer.zero_grad()
    tiny.loss(model(tiny.batch(0, step))).backward()
    optimizer.step()
    if how == "relative":
        with Path("notes.txt").open("a") as notes:
            notes.write(f"{step}\n")
        torch.save(model.state_dict(), "model.pt")
        Path("new").mkdir(exist_ok=True)
        Path("new/log.txt").write_text("x")
