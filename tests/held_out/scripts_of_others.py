"""Do scripts of Trainer and of Accelerate train as they do without us, their collectives cut?

`make test-models` installs what they need and runs this; `make test` does not. The scripts are as a
user of those libraries writes them, with a data set of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job.test_every_nic import answers, run

TRAINER = """
import json, sys, tempfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Toy(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, k):
        ids = (torch.arange(16) * (k + 1)) % 100
        return {"input_ids": ids, "labels": ids}

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=100, n_positions=16, n_embd=64, n_layer=2, n_head=2)
)
arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=6, logging_steps=2, save_steps=3,
    report_to=[], use_cpu=True, seed=1, gradient_accumulation_steps=2,
)
trainer = Trainer(model, arguments, train_dataset=Toy(), eval_dataset=Toy())
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
found = [*losses, trainer.evaluate()["eval_loss"]]
END
"""
ACCELERATE = """
import json, sys
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
found = []
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    found.append(accelerator.gather(loss.detach()).tolist())
found.append(accelerator.gather_for_metrics(torch.stack([x.sum(), y.sum()])).tolist())
accelerator.end_training()
END
"""
END = """
cut = sys.modules.get("placewire_every_nic")
print(json.dumps({"found": found, "cut": bool(cut and cut._KEPT)}))
"""


@pytest.mark.parametrize("script", [TRAINER, ACCELERATE], ids=["Trainer", "Accelerate"])
def test_a_script_trains_as_it_did(tmp_path: Path, script: str) -> None:
    text = script.replace("END", END)
    plain, cut = (answers(run(tmp_path, text, 2, nics=nics)) for nics in ("", "lo:0.6,lo:0.4"))
    assert [one["cut"] for one in plain + cut] == [False, False, True, True]
    assert [one["found"] for one in cut] == [one["found"] for one in plain]
