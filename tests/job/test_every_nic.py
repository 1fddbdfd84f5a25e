"""What scripts send by gloo's collectives is cut between NICs, and nothing else changes."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.job.namespaces import Namespaces
from placewire.job.script.environment import ON_PATH
from tests.free_port import free_port

pytestmark = pytest.mark.slow
LONGEST_SECONDS = 240
# The words that run a script. Others try another torch (docs/design/testing.md).
PYTHON = shlex.split(os.environ.get("PLACEWIRE_TEST_SCRIPT_PYTHON", sys.executable))
# The same numbers on both ways, whose sums are exact in any order.
COLLECTIVES = """
import hashlib, json, sys
from datetime import timedelta
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
found = {}

def values(n=5003, dtype=torch.float32, k=0):
    return (torch.arange(n) % 61 + rank * 7 + k).to(dtype)

def note(name, *tensors):
    data = b"".join(t.detach().contiguous().view(-1).view(torch.uint8).numpy() for t in tensors)
    found[name] = hashlib.sha256(data).hexdigest()

def note_unless_lacking(name, act):
    try:
        note(name, *act())
    except RuntimeError as error:  # gloo of an older torch lacks it.
        found[name] = f"lacking: {error}"

for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16):
    x = values(dtype=dtype) % 5
    dist.all_reduce(x)
    note(f"all_reduce {dtype}", x)
for op in ("MAX", "MIN", "PRODUCT"):
    x = values() % 3
    dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
    note(f"all_reduce {op}", x)
x = values(6400).view(64, 100).t()
dist.all_reduce(x)
note("all_reduce, strided", x)
x = torch.nn.Parameter(values())
dist.all_reduce(x)
note("all_reduce, parameter", x)
with torch.inference_mode():
    x, y = values(), values(6400).view(64, 100).t()
    dist.all_reduce(x)
    dist.all_reduce(y)
    out = torch.zeros(5003)
    dist.reduce_scatter_tensor(out, values(world * 5003))
note("inference", x.clone(), y.clone(), out.clone())
# One begins later than the other, after a message that it waits for.
x, y = values(), values(10)
some = dist.new_group([0, 1])
if rank == 0:
    work = dist.all_reduce(x, async_op=True, group=some)
    dist.send(y, 1)
    work.wait()
elif rank == 1:
    dist.recv(y, 0)
    dist.all_reduce(x, group=some)
note("after a message", x)
x = values(200_000)
dist.all_reduce(x, async_op=True)
dist.barrier()
note("after a barrier", x)
x = values(200_000)
dist.all_reduce(x, async_op=True)
dist.barrier(async_op=True).wait()
note("after a barrier's end", x)
several = [values(k=k) for k in range(9)]
for work in [dist.all_reduce(x, async_op=True) for x in several]:
    work.wait()
note("all_reduce, async", *several)
futures = [dist.all_reduce(x, async_op=True).get_future() for x in several]
note("all_reduce, futures", *[future.wait()[0] for future in futures])
work = dist.all_reduce(several[0], async_op=True)
while not work.is_completed():
    pass
note("all_reduce, polled", several[0])
work = dist.all_reduce(several[0], async_op=True)
work.wait(timedelta(seconds=100))
note("all_reduce, with a limit", several[0])
dist.all_reduce_coalesced(several)
note("all_reduce_coalesced", *several)
x = values()
dist.broadcast(x, 1)
note("broadcast", x)
x = values(6400).view(64, 100).t()
dist.broadcast(x, 0)
note("broadcast, strided", x)
x = values()
dist.reduce(x, 1)
note("reduce", *([x] if rank == 1 else []))
out = [torch.zeros(5003) for _ in range(world)]
dist.all_gather(out, values())
note("all_gather", *out)
out = torch.zeros(world * 5003)
dist.all_gather_into_tensor(out, values())
note("all_gather_into_tensor", out)
out = [torch.zeros(64, 100).t() if rank else torch.zeros(100, 64) for _ in range(world)]
dist.all_gather(out, values(6400).view(100, 64))
note("all_gather, strided", *out)
out = torch.zeros(5003)
dist.reduce_scatter_tensor(out, values(world * 5003))
note("reduce_scatter_tensor", out)
given = [values(k=k) for k in range(world)]
note_unless_lacking("reduce_scatter", lambda: (dist.reduce_scatter(out, given), out)[1:])
out = torch.zeros(world * 500)
dist.all_to_all_single(out, values(world * 500))
note("all_to_all_single", out)
sent = [k + 1 + rank for k in range(world)]
out = torch.zeros(sum(1 + rank + k for k in range(world)))
dist.all_to_all_single(out, values(sum(sent)), [1 + rank + k for k in range(world)], sent)
note("all_to_all_single, uneven", out)
lists = [values(k=k) for k in range(world)], [torch.zeros(5003) for _ in range(world)]
note_unless_lacking("all_to_all", lambda: (dist.all_to_all(lists[1], lists[0]), *lists[1])[1:])
x = torch.zeros(5003)
both = [
    dist.P2POp(dist.isend, values(), (rank + 1) % world),
    dist.P2POp(dist.irecv, x, (rank - 1) % world),
]
for work in dist.batch_isend_irecv(both):
    work.wait()
note("isend and irecv", x)
if rank < 2:
    x = values()
    if rank:
        dist.recv(x)  # Of whichever rank sends.
    else:
        dist.send(x, 1)
    note("send and recv", x)
out = [torch.zeros(5003) for _ in range(world)] if rank == 0 else None
dist.gather(values(), out)
note("gather", *(out or []))
out = torch.zeros(5003)
dist.scatter(out, [values(k=k) for k in range(world)] if rank == 0 else None)
note("scatter", out)
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank, "text": "x" * 5000 * (rank + 1)})
found["all_gather_object"] = [one["rank"] for one in objects]
objects = [list(range(9000)) if rank == 0 else None]
dist.broadcast_object_list(objects)
found["broadcast_object_list"] = sum(objects[0])
some = dist.new_group([0, 1])
if rank < 2:
    x = values()
    dist.all_reduce(x, group=some)
    note("all_reduce, some ranks", x)
everyone = dist.group.WORLD
note("functional all_reduce", functional.all_reduce(values(), "sum", everyone))
note("functional all_gather", functional.all_gather_tensor(values(), 0, everyone))
x = functional.reduce_scatter_tensor(values(world * 5003), "sum", 0, everyone)
note("functional reduce_scatter", x)
several = [values(), values(100, k=1), values(6400).view(64, 100)]
note_unless_lacking(
    "functional all_gathers",
    lambda: functional.all_gather_into_tensor_coalesced(several, everyone),
)
scattered = [values(world * n, k=n) for n in (10, 5003, 100)]
note_unless_lacking(
    "functional reduce_scatters",
    lambda: functional.reduce_scatter_tensor_coalesced(scattered, "sum", [0, 0, 0], everyone),
)
dist.barrier()
dist.monitored_barrier()
cut = sys.modules.get("placewire_every_nic")
found_groups = sum(map(len, cut._KEPT[-1]._groups.values())) if cut else 0
print(json.dumps({"found": found, "groups": found_groups}))
dist.destroy_process_group()
"""
MODELS = """
import hashlib, json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
found = {}

def trained(model, forward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        draw = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        loss = forward(torch.randn(8, 32, generator=draw)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 32))

model = nn.parallel.DistributedDataParallel(made(), bucket_cap_mb=0.05)
found["ddp"] = trained(model, model)
with model.no_sync():
    model(torch.ones(8, 32)).sum().backward()
model = made()
for part in (model[0], model[3], model):
    fully_shard(part)
found["fsdp"] = trained(model, model)
whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
found["fsdp state"] = [value.double().sum().item() for value in whole.values()]
torch.manual_seed(0)
stage = PipelineStage(nn.Linear(64, 64), rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 4, loss_fn=nn.MSELoss())
draw = torch.Generator().manual_seed(0)
x, losses = torch.randn(64, 64, generator=draw), []
if rank == 0:
    schedule.step(x)
else:
    schedule.step(target=x, losses=losses)
found["pipeline"] = [one.item() for one in losses]
print(json.dumps({"found": found, "cut": "placewire_every_nic" in sys.modules}))
"""


def run(
    folder: Path, text: str, ranks: int, *, nics: str = "", least: int = 1000, **more: str
) -> list[subprocess.CompletedProcess[str]]:
    """Runs the script in so many processes on loopback, with NICS as in PLACEWIRE_NICS."""
    script = folder / "script.py"
    script.write_text(text)
    shared = {
        **os.environ, "PYTHONPATH": str(ON_PATH), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more,
        **({"PLACEWIRE_NICS": nics, "PLACEWIRE_CUT_FROM_BYTES": str(least)} if nics else {}),
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [*PYTHON, str(script)], text=True, cwd=folder,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    ended = []
    try:
        for one in started:
            out, errors = one.communicate(timeout=LONGEST_SECONDS)
            ended.append(subprocess.CompletedProcess(one.args, one.returncode, out, errors))
    finally:
        for one in started:
            one.kill()
    return ended


def answers(ended: list[subprocess.CompletedProcess[str]]) -> list[dict[str, Any]]:
    assert [one.returncode for one in ended] == [0] * len(ended), [e.stderr[-2000:] for e in ended]
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]


@pytest.fixture(scope="module")
def plain_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[dict[str, Any]]]:
    """What every collective gives so many ranks where nothing is cut; run once."""
    return functools.cache(
        lambda ranks: answers(run(tmp_path_factory.mktemp("plain"), COLLECTIVES, ranks))
    )


@pytest.mark.parametrize(
    ("ranks", "nics"),
    [pytest.param(2, "lo:1,lo:1", marks=pytest.mark.thorough), (3, "lo:0.7,lo:0.2,lo:0.1")],
)
def test_every_collective_gives_what_it_gave(
    tmp_path: Path, plain_of: Callable[[int], list[dict[str, Any]]], ranks: int, nics: str
) -> None:
    """From 1000 bytes on they are cut; or none is, and each is one NIC's."""
    plain = plain_of(ranks)
    assert [one["groups"] for one in plain] == [0] * ranks
    lacking = {name for name, it in plain[0]["found"].items() if str(it).startswith("lacking")}
    assert not lacking or [sys.executable] != PYTHON, lacking
    for least in (1000, 1 << 30):
        cut = answers(run(tmp_path, COLLECTIVES, ranks, nics=nics, least=least))
        for mine, own in zip(cut, plain, strict=True):
            differing = {name for name, it in own["found"].items() if mine["found"][name] != it}
            assert mine["found"].keys() == own["found"].keys() and differing <= lacking
        assert all(one["groups"] >= len(nics.split(",")) for one in cut)


# What an older torch makes of an operation, and of a handle that Python wrote.
OLDER = """
from placewire_every_nic import handles, operators
operators.is_told = lambda operation: False
handles.Holding.holder = lambda self, work: handles.kept(work)
"""


@pytest.mark.parametrize("least", [1000, pytest.param(1 << 30, marks=pytest.mark.thorough)])
def test_what_an_older_torch_needs_gives_the_same(
    tmp_path: Path, plain_of: Callable[[int], list[dict[str, Any]]], least: int
) -> None:
    plain = plain_of(3)
    cut = answers(run(tmp_path, OLDER + COLLECTIVES, 3, nics="lo:0.7,lo:0.3", least=least))
    assert [one["found"] for one in cut] == [one["found"] for one in plain]
    assert all(one["groups"] >= 2 for one in cut)


@pytest.mark.thorough
def test_with_an_older_torch_no_handle_is_kept_for_good(tmp_path: Path) -> None:
    end = """
from torch import nn
import torch.distributed._functional_collectives as functional
nn.parallel.DistributedDataParallel(nn.Linear(99, 99))(x[:99]).sum().backward()
functional.all_reduce(x, "sum", dist.group.WORLD).sum()
for y in functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], dist.group.WORLD):
    y.sum()
assert not handles._KEPT
dist.destroy_process_group()
"""
    for one in run(tmp_path, OLDER + ENDS.format(end=end), 2, nics="lo:1,lo:2"):
        assert one.returncode == 0, one.stderr[-2000:]


@pytest.mark.thorough
def test_with_an_older_torch_no_tensor_is_kept_that_nobody_uses(tmp_path: Path) -> None:
    end = """
import weakref
import torch.distributed._functional_collectives as functional
def of_first(waited):
    given = [x, x]
    outputs = functional.reduce_scatter_tensor_coalesced(given, "sum", [0, 0], dist.group.WORLD)
    for y in outputs[:waited]:
        y.sum()
    return [weakref.ref(y.elem) for y in outputs]
outputs = of_first(2) + of_first(1)
dist.barrier()  # Until the next collective it is known what the last one waits for.
assert [one() for one in outputs] == [None] * 4
dist.destroy_process_group()
"""
    for one in run(tmp_path, OLDER + ENDS.format(end=end), 2, nics="lo:1,lo:2"):
        assert one.returncode == 0, one.stderr[-2000:]


WRONG_SIZES = """
import json, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
try:
    dist.reduce_scatter_tensor(torch.zeros(5003), torch.zeros(5003 * 3))
except (RuntimeError, ValueError) as error:
    print(json.dumps({"found": type(error).__name__, "cut": "placewire_every_nic" in sys.modules}))
"""


def test_wrong_sizes_are_refused_as_they_were(tmp_path: Path) -> None:
    plain, cut = (answers(run(tmp_path, WRONG_SIZES, 2, nics=n)) for n in ("", "lo:1,lo:1"))
    assert [one["cut"] for one in plain + cut] == [False, False, True, True]
    assert [one["found"] for one in cut] == [one["found"] for one in plain]


def test_ddp_fsdp_and_pipelines_train_as_they_did(tmp_path: Path) -> None:
    plain, cut = (answers(run(tmp_path, MODELS, 2, nics=n)) for n in ("", "lo:0.6,lo:0.4"))
    assert [one["cut"] for one in plain + cut] == [False, False, True, True]
    assert [one["found"] for one in cut] == [one["found"] for one in plain]


ENDS = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(10_000)
for _ in range(20):
    dist.all_reduce(x, async_op=True)
dist.all_reduce(x)
{end}
"""
END = "dist.destroy_process_group()"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("dist.destroy_process_group()", 0),
        ("1 / 0", 1),
        pytest.param("", 0, marks=pytest.mark.thorough),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.thorough),
    ],
)
def test_a_process_ends_as_it_would(tmp_path: Path, end: str, code: int) -> None:
    ended = run(tmp_path, ENDS.format(end=end), 2, nics="lo:1,lo:2")
    assert [one.returncode for one in ended] == [code, code], ended[0].stderr[-2000:]


@pytest.mark.parametrize(
    "act",
    [
        "dist.all_reduce(x)",
        "nn.parallel.DistributedDataParallel(nn.Linear(99, 99))(x[:99]).sum().backward()",
        *(
            pytest.param(act, marks=pytest.mark.thorough)
            for act in (
                "dist.all_reduce(x, async_op=True).wait()",
                "dist.all_gather_into_tensor(torch.zeros(20_000), x)",
                "print(functional.all_reduce(x, 'sum', dist.group.WORLD))",
            )
        ),
    ],
)
def test_a_rank_that_fails_fails_the_collective(tmp_path: Path, act: str) -> None:
    end = f"""
from torch import nn
import torch.distributed._functional_collectives as functional
if dist.get_rank(): sys.exit(0)
{act}
"""
    first, second = run(tmp_path, ENDS.format(end=end), 2, nics="lo:1,lo:2")
    assert second.returncode == 0 and first.returncode == 1, first.stdout
    assert "RuntimeError" in first.stderr


ANEW = """
import os, time
import torch, torch.distributed as dist
for _ in range(3):
    dist.init_process_group("gloo")
    x = torch.ones(10_000)
    dist.all_reduce(x)
    dist.barrier()
    assert (x == 2).all()
    dist.destroy_process_group()
    if os.environ["RANK"] == "1":
        time.sleep(1)  # The first rank makes the store anew.
"""


def test_groups_end_and_are_made_anew(tmp_path: Path) -> None:
    ended = run(tmp_path, ANEW, 2, nics="lo:1,lo:2")
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr[-2000:]


DIFFER = """
import os, sys
if os.environ["RANK"] == "0":
    {change}
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(10_000)
dist.all_reduce(x)
assert (x == 2).all()
assert not sys.modules["placewire_every_nic"]._KEPT[-1]._groups
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PLACEWIRE_NICS", "no"),
        pytest.param("PLACEWIRE_NICS", "lo:2", marks=pytest.mark.thorough),
        ("PLACEWIRE_CUT_FROM_BYTES", "2000"),
    ],
)
def test_ranks_that_would_cut_otherwise_agree_not_to(
    tmp_path: Path, variable: str, value: str
) -> None:
    change = f"os.environ[{variable!r}] = {value!r}"
    ended = run(tmp_path, DIFFER.format(change=change), 2, nics="lo:1,lo:2")
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr
    assert "not every rank can cut" in ended[1].stderr


def test_a_torch_that_cannot_is_left_alone_and_says_so(tmp_path: Path) -> None:
    old = ENDS.replace("dist.init", "torch.__version__ = '2.3.1+cpu'\ndist.init", 1)
    for one in run(tmp_path, old.format(end=END), 2, nics="lo:1,lo:2"):
        assert one.returncode == 0 and "gives each collective to one NIC" in one.stderr
    lacking = ENDS.replace("dist.init", "del torch._C._distributed_c10d.Work\ndist.init", 1)
    for one in run(tmp_path, lacking.format(end=END), 2, nics="lo:1,lo:2"):
        assert one.returncode == 0 and "each collective is one NIC's" in one.stderr


def test_the_environment_s_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('mine')\n")
    path = f"{ON_PATH}{os.pathsep}{own}"
    for text in ("print('script')", ENDS.format(end="print('script')")):
        for one in run(tmp_path, text, 2, nics="lo:1,lo:2", PYTHONPATH=path):
            assert one.returncode == 0 and one.stdout.split() == ["mine", "script"]


SENDS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for size in {sizes}:
    x = torch.ones(size)
    dist.all_reduce(x)
    assert (x == dist.get_world_size()).all()
dist.destroy_process_group()
"""


def parts_of_rails(
    tmp_path: Path, rates: dict[str, float], sizes: list[int]
) -> list[dict[str, float]]:
    """Runs all-reduces of so many elements on three servers. Returns for each what part of its
    bytes it sent on each rail."""
    (tmp_path / "script.py").write_text(SENDS.format(sizes=sizes))
    servers = ("s1", "s2", "s3")
    of_rail = {rail: dict.fromkeys(servers, rate) for rail, rate in rates.items()}
    with Namespaces(of_rail, "en", offloads=True) as network:
        nics = ",".join(f"{network.nic(rail)}:{rate:g}" for rail, rate in rates.items())
        started = [
            subprocess.Popen(
                [
                    *network.prefix(server), "env", f"PYTHONPATH={ON_PATH}",
                    f"PLACEWIRE_NICS={nics}", f"RANK={rank}", "WORLD_SIZE=3",
                    f"MASTER_ADDR={network.address('s1', 'a')}", "MASTER_PORT=29511",
                    f"GLOO_SOCKET_IFNAME={network.nic('a')}", *PYTHON, str(tmp_path / "script.py"),
                ],
                stderr=subprocess.PIPE, text=True,
            )
            for rank, server in enumerate(servers)
        ]  # fmt: skip
        try:
            errors = [one.communicate(timeout=LONGEST_SECONDS)[1] for one in started]
        finally:
            for one in started:
                one.kill()
        assert [one.returncode for one in started] == [0, 0, 0], errors
        sent = [{r: network.transmitted_bytes(server, r) for r in rates} for server in servers]
    return [{rail: of[rail] / sum(of.values()) for rail in rates} for of in sent]


@pytest.mark.network
@pytest.mark.parametrize(
    "rates",
    [
        {"a": 400e6, "b": 400e6}, {"a": 280e6, "b": 120e6},
        {"a": 240e6, "b": 120e6, "c": 40e6},
    ],
)  # fmt: skip
def test_every_nic_carries_its_part(tmp_path: Path, rates: dict[str, float]) -> None:
    wanted = {rail: rate / sum(rates.values()) for rail, rate in rates.items()}
    for parts in parts_of_rails(tmp_path, rates, [4_000_000, 100]):
        assert parts == pytest.approx(wanted, abs=0.02)


@pytest.mark.network
@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ({"a": 400e6, "b": 400e6, "c": 100e6}, {"a": 0.5, "b": 0.5, "c": 0.0}),
        # The group's own connections are on a.
        ({"a": 100e6, "b": 400e6}, {"a": 0.0, "b": 1.0}),
    ],
)
def test_what_is_not_cut_takes_the_fastest_nics(
    tmp_path: Path, rates: dict[str, float], wanted: dict[str, float]
) -> None:
    for parts in parts_of_rails(tmp_path, rates, [50_000] * 60):
        assert parts == pytest.approx(wanted, abs=0.03)
