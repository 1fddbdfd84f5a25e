"""Every mistake in a plan names its YAML path, what was found and what would be accepted."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.agent.contract.entries import bridge_name
from placewire.controller.commands import session
from placewire.controller.errors import PlanError
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.controller.plan.plan_file import load_plan, parse_plan
from placewire.job.contract.specification import OptimizerSpec, ScalerSpec
from tests.controller.plans import plan, plan_document
from tests.paths import ROOT

Edit = Callable[[dict[str, Any]], None]


def _set(*path: Any, to: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        here: Any = document
        for part in path[:-1]:
            here = here[part]
        here[path[-1]] = to

    return edit


def _drop(*path: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        here: Any = document
        for part in path[:-1]:
            here = here[part]
        del here[path[-1]]

    return edit


def _torchrun(**more: Any) -> Edit:
    """Returns a change that makes the job a script, with a mistake."""
    return _set("job", to={"kind": "torchrun", "script": "examples/ddp.py", **more})


def _pods(first: list[str], second: list[str], uplink: Any = "10Mbit") -> Edit:
    """Returns a change that puts the servers into two pods, with a mistake."""
    rows = [
        {"name": name, "servers": servers, "uplink": uplink}
        for name, servers in (("p1", first), ("p2", second))
    ]
    return _set("cluster", "pods", to=rows)


def _module(script: str) -> Edit:
    return _torchrun(script=script, python=["python3", "-m"])


def _script_without_a_common_rail(document: dict[str, Any]) -> None:
    _torchrun()(document)
    servers = document["cluster"]["servers"]
    servers[0]["nics"].pop(0)
    servers[2]["nics"].pop(1)


NIC = ("cluster", "servers", 1, "nics", 0)
SERVER = ("cluster", "servers", 1)


def _two_bridges_of_one_name(document: dict[str, Any]) -> None:
    nics = document["cluster"]["servers"][1]["nics"]
    nics[0]["name"] = "enp129s0f1np1"
    shortened = bridge_name(plan(document).cluster.servers[1].nics[0].name)
    nics[1]["name"] = shortened.removeprefix("pw-")


def _relative_workdir_on_servers(document: dict[str, Any]) -> None:
    document["launch"] = {"kind": "ssh"}
    document["job"]["workdir"] = "examples"


def _given_profile(document: dict[str, Any]) -> None:
    document["job"] |= {"profile": "no.json.gz", "recompute": "auto"}


MISTAKES = {
    "profile that is not there": (_given_profile, "job.profile", "is no file"),
    "profile, and a choice": (_given_profile, "job.recompute", "what the profile was made with"),
    "launch kind": (_set("launch", to={"kind": "rsh"}), "launch.kind", "ssh"),
    "launch port": (_set("launch", to={"kind": "ssh", "port": 0}), "launch.port", "65535"),
    "launch key": (_set("launch", to={"kind": "ssh", "key": "/no"}), "launch.key", "no file"),
    "key of nobody": (_set("launch", to={"kind": "ssh", "key": "~no-one/k"}), "launch.key", "no"),
    "launch workdir": (_relative_workdir_on_servers, "job.workdir", "no absolute path"),
    "graph of a job that trains": (
        _set("job", "graph", to="inference.json.gz"),
        "job.graph",
        "give kind: replay, which runs any graph",
    ),
    "mark of acknowledgements": (
        _set("network", "acknowledgement_dscp", to=64),
        "network.acknowledgement_dscp",
        "63",
    ),
    "unknown key": (_set("network", "sharring", to=1), "network.sharring", "sharing, floor"),
    "unknown nic key": (_set(*NIC, "speed", to=1), "cluster.servers[1].nics[0].speed", "rate"),
    "missing": (_drop(*NIC, "rail"), "cluster.servers[1].nics[0].rail", "missing"),
    "missing, with what it takes": (
        _drop("cluster", "setup_latency"),
        "cluster.setup_latency",
        "missing; it must be given: how long a message takes before its first byte travels (p0 of "
        "the thesis, 3.5); `measured`: as `controller apply` measured it on this cluster; "
        "accepted: 0s to 60s, or measured",
    ),
    "no unit": (_set(*NIC, "rate", to="50"), "cluster.servers[1].nics[0].rate", "Mbit"),
    "bad unit": (_set(*NIC, "rate", to="50MiB"), "cluster.servers[1].nics[0].rate", "'MiB'"),
    "number": (_set(*NIC, "rate", to=50), "cluster.servers[1].nics[0].rate", "like 50Mbit"),
    "zero rate": (_set(*NIC, "rate", to="0bit"), "cluster.servers[1].nics[0].rate", "1kbit to"),
    "zero memory": (
        _set(*SERVER, "devices", 0, "memory", to="0GiB"),
        "cluster.servers[1].devices[0].memory",
        "1B to",
    ),
    "one pod": (
        _set("cluster", "pods", to=[{"name": "p", "servers": ["s1"], "uplink": "1Gbit"}]),
        "cluster.pods",
        "at least 2",
    ),
    "server of no pod": (
        _pods(["s1"], ["s2"]),
        "cluster.servers[2].name",
        "'s3' is in no pod; add it to one",
    ),
    "server of two pods": (
        _pods(["s1", "s2"], ["s2", "s3"]),
        "cluster.pods[1].servers[0]",
        "already taken",
    ),
    "unknown server of a pod": (
        _pods(["s1", "s2"], ["s3", "s9"]),
        "cluster.pods[1].servers[1]",
        "accepted: s1, s2, s3",
    ),
    "pod of nothing": (_pods(["s1", "s2", "s3"], []), "cluster.pods[1].servers", "at least 1"),
    "uplink of 0": (
        _pods(["s1"], ["s2", "s3"], "0bit"),
        "cluster.pods[0].uplink",
        "1kbit to 1000Tbit",
    ),
    "uplink of 0 on a rail": (
        _pods(["s1"], ["s2", "s3"], {"a": "1Mbit", "b": "0bit"}),
        "pods[0].uplink",
        "rail 'b'",
    ),
    "uplink of no rail": (
        _pods(["s1"], ["s2", "s3"], {"a": "1Mbit", "b": "1Mbit", "c": "1Mbit"}),
        "cluster.pods[0].uplink.c",
        "no NIC is on this rail; accepted: a, b",
    ),
    "rail without uplink": (
        _pods(["s1"], ["s2", "s3"], {"a": "1Mbit"}),
        "pods[0].uplink",
        "'b' has no rate",
    ),
    "uplink of no quantity": (
        _pods(["s1"], ["s2", "s3"], True),
        "cluster.pods[0].uplink",
        "found true",
    ),
    "double server": (_set(*SERVER, "name", to="s1"), "cluster.servers[1].name", "already taken"),
    "bad name": (_set(*SERVER, "name", to="S 1"), "cluster.servers[1].name", "lower case"),
    "long nic": (_set(*NIC, "name", to="n" * 16), "cluster.servers[1].nics[0].name", "at most 15"),
    "nic of dots": (_set(*NIC, "name", to=".."), "cluster.servers[1].nics[0].name", "single dots"),
    "nic of an option": (_set(*NIC, "name", to="-4"), "nics[0].name", "not an interface's name"),
    "nic of a path": (_set(*NIC, "name", to="a/b"), "nics[0].name", "not an interface's name"),
    "nic of a bridge's name": (_set(*NIC, "name", to="pw-nic1"), "nics[1].name", "rename one"),
    "bridges of one name": (_two_bridges_of_one_name, "nics[1].name", "rename one"),
    "no rail": (_set(*NIC, "rail", to=""), "cluster.servers[1].nics[0].rail", "not a name"),
    "two on a rail": (
        _set(*SERVER, "nics", 1, "rail", to="a"),
        "cluster.servers[1].nics[1].rail",
        "one NIC on a rail",
    ),
    "double nic": (_set(*SERVER, "nics", 1, "name", to="nic0"), "nics[1].name", "already taken"),
    "double address": (
        _set(*NIC, "address", to="10.7.0.1/24"),
        "cluster.servers[1].nics[0].address",
        "already taken",
    ),
    "outside subnet": (
        _set(*NIC, "address", to="10.8.0.2/24"),
        "cluster.servers[1].nics[0].address",
        "outside rail 'a'",
    ),
    "network address": (_set(*NIC, "address", to="10.7.0.0/24"), "nics[0].address", "network or"),
    "no prefix": (_set(*NIC, "address", to="10.7.0.2"), "nics[0].address", "/30 or larger"),
    "ipv6 nic": (_set(*NIC, "address", to="fd00::1/64"), "nics[0].address", "IPv6"),
    "ipv6 management": (_set(*SERVER, "management", to="fd00::1"), "[1].management", "IPv6"),
    "management on a rail": (_set(*SERVER, "management", to="10.7.0.9"), "management", "inside"),
    "small mtu": (_set(*NIC, "mtu", to=576), "cluster.servers[1].nics[0].mtu", "1280 to 9216"),
    "huge mtu": (_set(*NIC, "mtu", to=65535), "cluster.servers[1].nics[0].mtu", "switches drop"),
    "mtu of a text": (_set(*NIC, "mtu", to="9000"), "cluster.servers[1].nics[0].mtu", "a whole"),
    "mtu of one only": (
        _set(*NIC, "mtu", to=9000),
        "cluster.servers[1].nics[0].mtu",
        "rail 'a''s 1500 (from cluster.servers[0].nics[0])",
    ),
    "gateway elsewhere": (_set(*NIC, "gateway", to="10.8.0.1"), "nics[0].gateway", "outside"),
    "no servers": (_set("cluster", "servers", to=[]), "cluster.servers", "a list of at least 1"),
    "no list": (_set(*SERVER, "nics", to="nic0"), "[1].nics", "found 'nic0'; accepted: a list"),
    "a mapping for a list": (_set(*SERVER, "devices", to={"type": "cpu"}), "[1].devices", "a list"),
    "no cluster": (_set("cluster", to="c1"), "cluster", "keys setup_latency, intra_server"),
    "no server": (_set(*SERVER, to="s2"), "servers[1]", "keys name, management, devices, nics"),
    "no nic": (
        _set(*NIC, to=5),
        "nics[0]",
        "found 5; accepted: a mapping with the keys name, rail",
    ),
    "no job": (_set("job", to="train"), "job", "a mapping with the keys kind, model"),
    "a job over RDMA": (
        _set("job", "env", to={"GLOO_DEVICE_TRANSPORT": "IBVERBS"}),
        "job.env.GLOO_DEVICE_TRANSPORT",
        "passes by every queue",
    ),
    "nccl on processors": (_set("job", "backend", to="nccl"), "job.backend", "s1 has 'cpu'"),
    "no kind": (_drop("job", "kind"), "job.kind", "missing; accepted: 'placed' or 'replay'"),
    "no network": (_set("network", to=None), "network", "found nothing; accepted: a mapping"),
    "no verify": (_set("network", "verify", to=3), "network.verify", "keys tolerance, seconds"),
    "no variable": (_set("job", "env", to={"A=B": "x"}), "job.env.A=B", "not a variable's name"),
    "no env": (_set("job", "env", to="A=1"), "job.env", "a mapping of names to texts"),
    "graph elsewhere": (
        _set("job", to={"kind": "replay", "graph": "../g.json", "steps": 1}),
        "job.graph",
        "leaves its folder",
    ),
    "script elsewhere": (_torchrun(script="examples/../../x.py"), "job.script", "leaves its"),
    "workdir elsewhere": (_set("job", "workdir", to="/home/../root"), "job.workdir", "leaves its"),
    "python elsewhere": (_set("job", "python", to="../bin/python"), "job.python", "leaves its"),
    "key elsewhere": (_set("launch", to={"kind": "ssh", "key": "../k"}), "launch.key", "leaves"),
    "known hosts elsewhere": (
        _set("launch", to={"kind": "ssh", "known_hosts": "~/../root/hosts"}),
        "launch.known_hosts",
        "leaves its folder",
    ),
    "traces elsewhere": (
        _set("job", "trace", to={"folder": "/traces/../etc"}),
        "job.trace.folder",
        "leaves its",
    ),
    "checkpoints elsewhere": (
        _set("job", "checkpoint", to={"folder": "/shared/../etc"}),
        "job.checkpoint.folder",
        "leaves its folder",
    ),
    "no text": (_set(*SERVER, "name", to=7), "servers[1].name", "a text; put it in quotes"),
    "kind": (_set("job", "kind", to="train"), "job.kind", "'placed' or 'replay'"),
    "a NIC whose bridge has the address": (
        _torchrun(env={"GLOO_SOCKET_IFNAME": "eth0,nic0"}),
        "job.env.GLOO_SOCKET_IFNAME",
        "pw-nic0 has it",
    ),
    "GPUs of two types in a server": (
        _set(*SERVER, "devices", to=[{"type": t, "memory": "9GiB"} for t in ("a100", "l4")]),
        "cluster.servers",
        "must be of one type",
    ),
    "no script": (_torchrun(script="none.py"), "job.script", "no file"),
    "a file as a module": (_module("train.py"), "job.script", "the module's name, 'train'"),
    "a path as a module": (_module("./pkg/train.py"), "job.script", "name, 'pkg.train'"),
    "a whole path as a module": (_module("/srv/train.py"), "job.script", "name, 'train'"),
    "a relative module": (_module(".pkg.train"), "job.script", "name, 'pkg.train'"),
    "traffic of nobody": (_torchrun(traffic={"s9": {"s1": 1}}), "job.traffic", "'s9' is no server"),
    "traffic to oneself": (_torchrun(traffic={"s1": {"s1": 1}}), "job.traffic.s1", "to itself"),
    "no traffic": (_torchrun(traffic={"s1": {"s2": 0}}), "job.traffic", "nobody sends"),
    "traffic below 0": (_torchrun(traffic={"s1": {"s2": -1}}), "job.traffic", "is negative"),
    "traffic of a word": (_torchrun(traffic="odd"), "job.traffic", "accepted: 'even'"),
    "traffic of a number": (_torchrun(traffic={"s1": 3}), "job.traffic", "a mapping of servers"),
    "no common rail": (_script_without_a_common_rail, "cluster.servers", "on every server"),
    "steps of a script": (_torchrun(steps=3), "job.steps", "script, arguments"),
    "no such module": (_set("job", "model", to="examples.nix:f"), "job.model", "not found"),
    "no such function": (
        _set("job", "model", to="placewire.examples.models.mlp:nix"),
        "job.model",
        "no function 'nix'",
    ),
    "no model path": (_set("job", "model", to="mlp.py"), "job.model", "package.module:function"),
    "no such graph": (
        _set("job", to={"kind": "replay", "graph": "none.json", "steps": 1}),
        "job.graph",
        "no file",
    ),
    "endless graph": (
        _set("job", to={"kind": "replay", "graph": "g" * 5000, "steps": 1}),
        "job.graph",
        "no file",
    ),
    "no workdir": (_set("job", "workdir", to="/nope"), "job.workdir", "'/nope' is no folder"),
    "endless workdir": (_set("job", "workdir", to="w" * 5000), "job.workdir", "is no folder"),
    "workdir of a replay": (
        _set("job", to={"kind": "replay", "graph": "README.md", "steps": 1, "workdir": "/nope"}),
        "job.workdir",
        "is no folder",
    ),
    "validation without batches": (
        _set("job", "validation", to={"every": 5}),
        "job.validation.batches",
        "missing",
    ),
    "validation of nothing": (
        _set("job", "validation", to={"batches": 0}),
        "job.validation.batches",
        "whole number from 1",
    ),
    "validation of a script": (_torchrun(validation={}), "job.validation", "script, arguments"),
    "no steps": (_set("job", "steps", to=0), "job.steps", "whole number from 1"),
    "engine": (
        _set("solve", "engine", to="gurobi"),
        "solve.engine",
        "'auto', 'adjusting-",
    ),
    "sharing": (_set("network", "sharing", to="fair"), "network.sharing", "'job'"),
    "floor of nothing": (_set("network", "floor", to="0%"), "network.floor", "1% to 100%"),
    "background without a unit": (_set(*NIC, "background", to=5), "background", "unit"),
    "tolerance": (
        _set("network", "verify", "tolerance", to="200%"),
        "network.verify.tolerance",
        "0% to 100%",
    ),
    "unknown rail": (_set("network", "rails", to=["c"]), "network.rails[0]", "accepted: a, b"),
    "gateway is itself": (_set(*NIC, "gateway", to="10.7.0.2"), "[0].gateway", "of s2 nic0"),
    "gateway is another": (_set(*NIC, "gateway", to="10.7.0.3"), "[0].gateway", "of s3 nic0"),
    "gateway is the network": (_set(*NIC, "gateway", to="10.7.0.0"), "gateway", "network or"),
    "gateway is broadcast": (_set(*NIC, "gateway", to="10.7.0.255"), "gateway", "or broadcast"),
    "no rails": (_set("network", "rails", to=[]), "network.rails", "at least 1"),
    "rail twice": (_set("network", "rails", to=["a", "a"]), "network.rails[1]", "already taken"),
    "schedule without steps": (
        _set("job", "optimizer", to={"schedule": {"name": "step"}}),
        "job.optimizer.schedule",
        "needs every_steps",
    ),
    "schedule with another's key": (
        _set("job", "optimizer", to={"schedule": {"name": "linear", "decay": 0.5}}),
        "job.optimizer.schedule",
        "takes no decay; accepted: warmup_steps, total_steps, final",
    ),
    "warming up too long": (
        _set("job", "optimizer", to={"schedule": {"name": "cosine", "warmup_steps": 99}}),
        "job.optimizer.schedule",
        "must be more than the 99 of warmup_steps",
    ),
    "start without end": (_set("job", "start_limit", to="1000h"), "job.start_limit", "10s to 168h"),
    "unknown schedule": (
        _set("job", "optimizer", to={"schedule": {"name": "poly"}}),
        "job.optimizer.schedule.name",
        "'constant', 'linear'",
    ),
    "schedule's unknown key": (
        _set("job", "optimizer", to={"schedule": {"steps": 3}}),
        "job.optimizer.schedule.steps",
        "accepted here: name, warmup_steps",
    ),
    "accumulate": (_set("job", "accumulate", to=7), "job.accumulate", "divides job.batch"),
    "accumulate of a word": (
        _set("job", "accumulate", to="two"),
        "job.accumulate",
        "found 'two'; accepted: a whole number from 1 to 2147483647, or auto",
    ),
    "shards with a norm": (
        _set(
            "job",
            to={
                **plan_document()["job"],
                "shards": 2,
                "optimizer": {"name": "adamw", "clip_norm": 1},
            },
        ),
        "job.shards",
        "leave one of them out",
    ),
    "autocast": (_set("job", "autocast", to="fp8"), "job.autocast", "'bf16'"),
    "fp16": (
        _set("job", "autocast", to="fp16"),
        "job.autocast",
        "give job.optimizer.scaler, which may be {}",
    ),
    "a scale that never grows": (
        _set("job", "optimizer", to={"scaler": {"growth_factor": 1}}),
        "job.optimizer.scaler.growth_factor",
        "more than 1",
    ),
    "momentum of adamw": (
        _set("job", "optimizer", to={"name": "adamw", "momentum": 0.9}),
        "job.optimizer.momentum",
        "adamw takes no momentum",
    ),
    "no file to begin with": (
        _set("job", "state", to={"file": "/nowhere/model.safetensors"}),
        "job.state.file",
        "'/nowhere/model.safetensors' is no file or folder",
    ),
    "a relative file to begin with": (
        _set("job", "state", to={"file": "model.safetensors"}),
        "job.state.file",
        "no absolute path",
    ),
    "no optimizer": (_set("job", "optimizer", to={"name": "lion"}), "job.optimizer.name", "lion"),
    "an option of none": (
        _set("job", "optimizer", to={"name": "adamw", "options": {"alpha": 1}}),
        "job.optimizer.options",
        "no option 'alpha'; accepted: beta1, beta2, eps, weight_decay, betas",
    ),
    "an option of none in a group": (
        _set("job", "optimizer", to={"groups": [{"match": ["bias"], "options": {"alpha": 1}}]}),
        "job.optimizer.groups[0].options",
        "no option 'alpha'",
    ),
    "an option that has a key": (
        _set("job", "optimizer", to={"name": "a.b:C", "options": {"weight_decay": 1}}),
        "job.optimizer.options.weight_decay",
        "give it as job.optimizer.weight_decay",
    ),
    "version": (_set("version", to=2), "version", "accepted: 1"),
    "a user that is a template": (
        _set("launch", to={"kind": "ssh", "user": "{{ lookup('pipe', 'id') }}"}),
        "launch.user",
        "not a user's name",
    ),
    "a script that is an option": (_torchrun(script="-c"), "job.script", "no - first"),
    "our own variable": (
        _set("job", "env", to={"PLACEWIRE_RUN": "x"}),
        "job.env.PLACEWIRE_RUN",
        "Placewire's own",
    ),
    "another network of NCCL": (
        _set("job", "env", to={"NCCL_NET": "AWS Libfabric"}),
        "job.env.NCCL_NET",
        "passes by every queue",
    ),
    "InfiniBand, written oddly": (
        _set("job", "env", to={"NCCL_IB_DISABLE": " 00"}),
        "job.env.NCCL_IB_DISABLE",
        "passes by every queue",
    ),
}

_LAUNCH: dict[str, Any] = {"kind": "ssh"}


# Unchecked, each would be taken for another value, or fail only after servers were changed.
VALUES: dict[tuple[Any, ...], list[Any]] = {
    ("version",): [True, 1.0, "1", 2],
    ("name",): [5, None, "", "a\n", "A", "a" * 25],
    ("cluster", "setup_latency"): ["1e400s", "2min", "-1us", 50, None, "unmeasured"],
    ("cluster", "intra_server_bandwidth"): ["1e400bit", "1e300bit", True],
    (*SERVER, "management"): ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", 10, True],
    (*SERVER, "devices", 0, "type"): ["", " ", "a\nb", 5, "t" * 65, "-x"],
    (*NIC, "name"): ["all", "default", "a b", "a;b", "{{1}}", "$x", "a\n"],
    (*SERVER, "devices", 0, "memory"): ["1e400GiB", "1e30GiB", "0.5B", 1024],
    (*NIC, "rate"): ["1e400bit", "1e300bit", "1bit", None, ["50Mbit"]],
    (*NIC, "take_over"): ["yes", 1, "true"],
    ("job", "batch"): [True, "8", 8.0, 2**31, -1],
    ("job", "steps"): [True, 1.5, [1]],
    ("job", "threads"): [True, 0, 100_000],
    ("job", "seed"): [-4, True, 2**64, "0"],
    ("job", "optimizer", "lr"): [True, 0, -1, float("inf"), float("nan"), "1e400", "0.1", 10**400],
    ("job", "optimizer", "weight_decay"): [float("nan"), -1, "x", True],
    ("job", "optimizer", "clip_norm"): [0, -1, "x", float("inf")],
    ("job", "accumulate"): [0, 1.5, "two", "4", "Auto", True, None, ["auto"], 2**31],
    ("job", "shards"): [0, 1.5, "two", "4", "Auto", True, None, ["auto"], 2**31],
    ("job", "optimizer", "momentum"): [-0.5, 1, float("nan")],
    ("job", "optimizer", "name"): ["Adam", "torch.optim.Adam", ":Adam", "torch.optim:", 1],
    ("job", "optimizer", "options"): [{"dampening": "much"}, {"dampening": None}, [1], {"x": {}}],
    ("job", "env"): [
        {"A": 1}, {"": "x"}, {"A=B": "x"}, {"A": "\0"}, ["A"], {"A B": "x"}, {"A\n": "x"},
        {"1A": "x"}, {"$(id)": "x"}, {"PLACEWIRE_LAB": "x"}, {"BASH_FUNC_a%%": "() { id; }"},
    ],
    ("job", "workdir"): ["a\0b", 5, "", "-", "a\nb", "\x1b[2J", "a\u202eb"],
    ("job", "python"): ["\0", True, "-c", "", "py\nthon"],
    ("job", "checkpoint"): [{"folder": "/a\n"}, {"folder": "/a\x1b]0;x\x07"}],
    ("job", "trace"): [{"folder": "/a\rb"}],
    ("launch",): [
        {**_LAUNCH, **wrong}
        for wrong in (
            {"user": ""}, {"user": "-oProxyCommand=id"}, {"user": "a b"}, {"user": "a\nb"},
            {"user": "a;id"}, {"user": "$(id)"}, {"user": "{{ 1 }}"}, {"user": "{% raw %}"},
            {"user": 'a"b'}, {"user": "u" * 65}, {"key": "-i"}, {"key": "/a\nb"},
            {"key": '/a"b'}, {"key": "/%h"}, {"key": "/${HOME}"}, {"key": "/{{ 1 }}"},
            {"known_hosts": "/a'b"}, {"known_hosts": "/`id`"}, {"known_hosts": "a\\b"},
        )
    ],
    ("solve", "gap"): ["100%", 1, -0.1, float("nan"), "1e400%", 10**400, True],
    ("solve", "time_limit"): ["1e400s", "0s", "200h", 60],
    ("solve", "seed"): [-4, True, 2**64],
    ("network", "calibrate"): ["yes", 1, None],
    ("network", "verify", "tolerance"): ["101%", float("nan"), True],
    ("network", "verify", "seconds"): [True, 0.5, 61, float("nan"), None, "3", "3x", "61s"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in VALUES.items() for value in values]
)
def test_a_value_is_taken_for_nothing_else(path: tuple[Any, ...], value: Any) -> None:
    document = plan_document()
    document["job"]["optimizer"] = {"name": "sgd"}
    assert parse_plan(document, "test.yaml", base=ROOT)
    _set(*path, to=value)(document)
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    assert [found for found, _ in raised.value.mistakes if found.startswith(place)], raised.value


@pytest.mark.parametrize("key", ["accumulate", "shards"])
@pytest.mark.parametrize("value", [0, "two", ["auto"]])
def test_a_number_or_auto_is_refused_in_one_sentence(key: str, value: Any) -> None:
    document = plan_document()
    document["job"][key] = value
    with pytest.raises(PlanError) as raised:
        plan(document)
    ((place, message),) = raised.value.mistakes
    assert place == f"job.{key}"
    accepted = "accepted: a whole number from 1 to 2147483647, or auto"
    assert message == f"found {value!r}; {accepted}"


def _job(**keys: Any) -> PlacedJob:
    document = plan_document()
    document["job"] |= keys
    job = plan(document).job
    assert isinstance(job, PlacedJob)
    return job


def _cuts(devices: int, **keys: Any) -> list[tuple[int, int]]:
    return [(cut.accumulate, cut.shards) for cut in _job(**keys).cuts(devices)]


def test_auto_is_every_number_to_choose_from_and_a_number_is_one() -> None:
    assert _cuts(3) == [(1, 1)]
    assert _cuts(3, accumulate=4, shards=2) == [(4, 2)]
    assert _cuts(3, accumulate="auto") == [(1, 1), (2, 1), (4, 1), (8, 1)]
    assert _cuts(3, accumulate="auto", batch=9) == [(1, 1), (3, 1)]
    assert _cuts(3, accumulate="auto", batch=7) == [(1, 1)]
    assert _cuts(3, accumulate=2, shards="auto") == [(2, 1), (2, 3)]
    assert _cuts(2, accumulate="auto", shards="auto", batch=2) == [(1, 1), (2, 1), (2, 2)]


def test_clipped_gradients_are_in_one_piece_where_the_shards_are_to_be_decided() -> None:
    clipped = {"name": "adamw", "clip_norm": 1}
    both = _cuts(2, accumulate="auto", shards="auto", batch=4, optimizer=clipped)
    assert both == [(1, 1), (2, 1), (4, 1)]


def test_a_job_cut_as_one_of_them_says_so() -> None:
    job = _job(accumulate="auto", shards="auto", recompute="auto", batch=2)
    assert (job.accumulate, job.shards) == ("auto", "auto")
    one = job.cut_as(job.cuts(2)[2])
    assert (one.accumulate, one.shards) == (2, 2)
    assert (job.recompute, one.recompute) == ("auto", "none")
    decided = {"accumulate", "shards", "recompute"}
    assert one.model_dump(exclude=decided) == job.model_dump(exclude=decided)


def test_numbers_arrive_as_written() -> None:
    document = plan_document()
    document["job"]["optimizer"] = {"name": "sgd", "lr": "1e-3", "momentum": 0, "weight_decay": 1}
    document["solve"] |= {"gap": 0, "seed": 2**32 - 1}
    read = plan(document)
    assert isinstance(read.job, PlacedJob)
    assert (read.job.optimizer.lr, read.job.optimizer.momentum) == (1e-3, 0.0)
    assert (read.solve.gap, read.solve.seed) == (0.0, 2**32 - 1)


def test_options_of_a_class_arrive_as_written() -> None:
    document = plan_document()
    document["job"]["optimizer"] = {
        "name": "torch.optim:Muon", "weight_decay": 0.5, "groups": [{"match": ["a"], "lr": 2}],
        "options": {"nesterov": True, "ns_steps": 5, "eps": "1e-7", "ns_coefficients": [3.4, 1, 2]},
    }  # fmt: skip
    job = plan(document).job
    assert isinstance(job, PlacedJob)
    told = OptimizerSpec.model_validate(job.optimizer_document)
    again = OptimizerSpec.model_validate_json(told.model_dump_json())
    for options in (told.options, again.options):
        assert options == {
            "nesterov": True, "ns_steps": 5, "eps": 1e-7, "ns_coefficients": (3.4, 1.0, 2.0),
            "weight_decay": 0.5,
        }  # fmt: skip
        assert [type(options[key]) for key in ("nesterov", "ns_steps")] == [bool, int]


def test_a_scaler_begins_with_what_torch_has() -> None:
    document = plan_document()
    document["job"] |= {"autocast": "fp16", "optimizer": {"scaler": {"growth_interval": 100}}}
    job = plan(document).job
    assert isinstance(job, PlacedJob)
    told = OptimizerSpec.model_validate(job.optimizer_document)
    assert told.scaler == ScalerSpec(
        init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=100
    )


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_its_path_and_what_would_do(name: str) -> None:
    edit, path, words = MISTAKES[name]
    document = plan_document()
    edit(document)
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert raised.value.exit_code == 3
    assert any(path in place and words in message for place, message in raised.value.mistakes), str(
        raised.value
    )


def test_what_is_on_servers_is_not_looked_for_here() -> None:
    document = plan_document()
    document["job"] |= {"workdir": "/srv/no/such/folder", "model": "only.there:step"}
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert {path for path, _ in raised.value.mistakes} == {"job.workdir", "job.model"}
    document["launch"] = {"kind": "ssh", "user": "trainer"}
    read = parse_plan(document, "test.yaml", base=ROOT)
    assert read.launch is not None and (read.launch.user, read.launch.port) == ("trainer", None)


def test_overlapping_subnets_are_refused() -> None:
    document = plan_document()
    for k, server in enumerate(document["cluster"]["servers"]):
        server["nics"][1]["address"] = f"10.7.0.{k + 129}/25"
        server["nics"][0]["address"] = f"10.7.0.{k + 1}/24"
    with pytest.raises(PlanError, match="overlaps"):
        parse_plan(document, "test.yaml", base=ROOT)


def test_all_mistakes_are_told_at_once() -> None:
    document = plan_document()
    document["cluster"]["servers"][0]["nics"][0]["rate"] = "fast"
    document["job"]["steps"] = 0
    document["nmae"] = 1
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert {path for path, _ in raised.value.mistakes} == {
        "cluster.servers[0].nics[0].rate", "job.steps", "nmae",
    }  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_messages_speak_of_yaml(name: str) -> None:
    edit, _, _ = MISTAKES[name]
    document = plan_document()
    edit(document)
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    for word in ("tuple", "dict", "instance", "valid string", "valid integer", "PlanC", "[key]"):
        assert word not in str(raised.value)


def test_one_mistake_is_told_once() -> None:
    document = plan_document()
    document["cluster"]["servers"][0]["devices"][0]["memory"] = "much"
    document["cluster"]["servers"][1]["nics"][0]["rate"] = "fast"
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert [path for path, _ in raised.value.mistakes] == [
        "cluster.servers[0].devices[0].memory", "cluster.servers[1].nics[0].rate",
    ]  # fmt: skip


def test_a_nic_named_twice_is_told_once() -> None:
    document = plan_document()
    document["cluster"]["servers"][0]["nics"][1]["name"] = "nic0"
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert len(raised.value.mistakes) == 1


@pytest.mark.parametrize(
    "path", [("job", "steps"), ("solve", "gap"), ("job", "kind"), ("version",)]
)
def test_what_was_found_is_cut_to_a_line(path: tuple[str, ...]) -> None:
    document = plan_document()
    _set(*path, to=["x" * 10_000] * 10_000)(document)
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert len(str(raised.value)) < 1000


def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("version: 1\nname: a\nname: b\n")
    with pytest.raises(PlanError, match="'name' occurs twice"):
        load_plan(file)


NO_PLANS = {
    "nothing": ("", "a plan is a mapping"),
    "a list": ("- 1", "a plan is a mapping"),
    "no end": ("a: [", "line [12]"),
    "a tab": ("job:\r\n\tkind: placed", "line 2: .*a tab stands where .* indent it by spaces"),
    "a NUL": ("a: \0", "not accepted as YAML"),
    "a list as key": ("version: 1\n? [a, b]\n: 1", "line 2: .*this key is no text"),
    "a mapping as key": ("{{a: 1}: 2}", "this key is no text"),
    "a number as key": ("1: 2", "key '1' is no text"),
    "a flag as key": ("on: 2", "key 'on' is no text"),
    "a merge": ("a: &a {b: 1}\nc:\n  <<: *a", "line 3: .*write the keys out"),
    "a tagged list": ("!!map [1]", "tag 'tag:yaml.org,2002:map' is not accepted"),
    "a tagged flag": ("a: !!bool perhaps", "is not accepted; leave it out"),
    "a program's type": ("a: !!python/object:os.system {}", "is not accepted"),
    "no such day": ("version: 2020-99-99", "in quotes"),
    "no such number": ("version: 0x_", "in quotes"),
    "an endless number": ("version: " + "9" * 10_000, "in quotes"),
    # It took a time that grows with the square of its length: half an hour for 4 MiB.
    "hours without end": ("a: 1\nb: 1" + ":1" * 2_000_000, "line 2: .*more than 100 characters"),
    "a number that cannot be shown": ("cluster: 0x" + "f" * 6000, "more than 100 characters"),
    "lists without end": ("[" * 100_000, "nested more than 30 deep"),
    "mappings without end": ("a: " + "{a: " * 5_000, "nested more than 30 deep"),
    "itself": ("&a {version: *a}", "found"),
    "comments without end": ("#" + "x" * 50_000_000, "more than 4 MiB"),
    "values without end": ("a: [" + "1," * 1_000_000 + "]", "more than 500000 keys, values"),
    "aliases of aliases": (
        "a: &a [" + "1," * 1000 + "]\nb: &b [" + "*a," * 1000 + "]\nc: [" + "*b," * 1000 + "]",
        "line 2: .*more than 500000 keys, values and lists, aliases written out",
    ),
    "traffic of all pairs": (
        "\n".join(f"s{k}: {{{', '.join(f's{n}: 1' for n in range(600))}}}" for k in range(600)),
        "in job.traffic, name only the pairs that send, or write `even`",
    ),
}


def _many_servers(count: int, nics: int = 1) -> dict[str, Any]:
    """On as many rails as a server has NICs."""
    document = plan_document()
    document["cluster"]["servers"] = [
        {
            "name": f"s{k}",
            "management": f"10.9.{k // 250}.{k % 250 + 1}",
            "devices": [{"type": "cpu", "memory": "1GiB"}],
            "nics": [
                {
                    "name": f"nic{r}", "rail": f"r{r}", "rate": "25Gbit",
                    "address": f"10.{10 + r}.{k // 250}.{k % 250 + 1}/16",
                }
                for r in range(nics)
            ],
        }
        for k in range(count)
    ]  # fmt: skip
    return document


def test_the_largest_plan_is_read_and_a_larger_one_refused_at_once(tmp_path: Path) -> None:
    """In processor time, because a busy machine may hold a test up."""
    file = tmp_path / "plan.yaml"
    # libyaml writes it in a tenth of the time, where it is installed.
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    file.write_text(yaml.dump(_many_servers(2000, nics=8), Dumper=dumper))
    began = time.process_time()
    assert len(load_plan(file).cluster.servers) == 2000
    assert time.process_time() - began < 20
    for count, words in ((2001, r"cluster.servers: found 2001; .* at most 2000"), (30_000, "MiB")):
        file.write_text(json.dumps(_many_servers(count)))  # It is YAML, too, and soon written.
        began = time.process_time()
        with pytest.raises(PlanError, match=words) as refused:
            load_plan(file)
        assert len(refused.value.mistakes) == 1 and time.process_time() - began < 5


def test_more_rails_than_a_cluster_has_are_refused(tmp_path: Path) -> None:
    document = _many_servers(1)
    document["cluster"]["servers"][0]["nics"] = [
        {"name": f"n{k}", "rail": f"r{k}", "rate": "1Gbit",
         "address": f"10.{100 + k // 250}.{k % 250}.1/24"}
        for k in range(257)
    ]  # fmt: skip
    with pytest.raises(PlanError, match="NICs are on 257 rails; accepted: at most 256"):
        plan(document)


@pytest.mark.parametrize("name", NO_PLANS)
def test_what_is_no_plan_is_refused(tmp_path: Path, name: str) -> None:
    text, words = NO_PLANS[name]
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    with pytest.raises(PlanError, match=words):
        load_plan(file)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_bytes("name: Müller".encode("latin-1"))
    with pytest.raises(PlanError, match=r"not UTF-8 text: .* at byte 7"):
        load_plan(file)


def test_a_model_in_a_compiled_module_is_refused(tmp_path: Path) -> None:
    compiled = tmp_path / f"fast{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    compiled.write_bytes(b"\x7fELF\xff\xfe")
    document = plan_document()
    document["job"]["model"] = "fast:training_step"
    with pytest.raises(PlanError, match="is no Python source"):
        parse_plan(document, "test.yaml", base=tmp_path)


_EXTENDED = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)"


@pytest.mark.parametrize(
    ("model", "is_found"),
    [
        ("extended.step", True),
        ("extended.inner.step", True),
        ("extended.none", False),
        ("whole.step", False),
    ],
)
def test_a_model_is_in_any_folder_of_a_package_that_extends_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, is_found: bool
) -> None:
    files = {
        "here/extended/__init__.py": _EXTENDED,
        "here/extended/inner/__init__.py": _EXTENDED,
        "here/whole/__init__.py": "",
        "elsewhere/extended/__init__.py": _EXTENDED,
        "elsewhere/extended/step.py": "def training_step(batch, seed): ...",
        "elsewhere/extended/inner/__init__.py": _EXTENDED,
        "elsewhere/extended/inner/step.py": "def training_step(batch, seed): ...",
        "elsewhere/whole/step.py": "def training_step(batch, seed): ...",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "elsewhere")])
    document = plan_document()
    document["job"]["model"] = f"{model}:training_step"
    if is_found:
        assert parse_plan(document, "test.yaml", base=tmp_path / "here")
    else:
        with pytest.raises(PlanError, match=f"module '{model}' is not found"):
            parse_plan(document, "test.yaml", base=tmp_path / "here")


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("def training_step(batch, seed): ...", True),
        ("from .step import (\n    other,\n    training_step,\n)", True),
        ("from .step import other as training_step", True),
        ("from .step import *", True),
        ("import training_step.other", False),
        ("training_step: object = lambda batch, seed: None", True),
        ("first, training_step = None, print", True),
        ("try:\n    import a\nexcept ImportError:\n    def training_step(): ...", True),
        ("if True:\n    pass\nelse:\n    from b import training_step", True),
        ("this is no Python", True),
        ("class Module:\n    def training_step(self, batch): ...", False),
        ("def outer():\n    def training_step(batch, seed): ...", False),
        ("print(training_step)", False),
        ("# def training_step", False),
    ],
)
def test_a_model_is_a_name_at_the_top_level_of_its_module(
    tmp_path: Path, text: str, is_there: bool
) -> None:
    (tmp_path / "steps.py").write_text(text)
    document = plan_document()
    document["job"]["model"] = "steps:training_step"
    if is_there:
        assert parse_plan(document, "test.yaml", base=tmp_path)
    else:
        with pytest.raises(PlanError, match="has no function 'training_step' at its top level"):
            parse_plan(document, "test.yaml", base=tmp_path)


def test_a_source_in_another_encoding_is_read(tmp_path: Path) -> None:
    source = "# -*- coding: latin-1 -*-\n# Müller\ndef training_step(): ...\n"
    (tmp_path / "umlaut.py").write_bytes(source.encode("latin-1"))
    document = plan_document()
    document["job"]["model"] = "umlaut:training_step"
    assert parse_plan(document, "test.yaml", base=tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "none.yaml")


def test_units_arrive_as_one() -> None:
    plan = parse_plan(plan_document(), "test.yaml", base=ROOT)
    assert plan.cluster.setup_latency_seconds == pytest.approx(200e-6)
    assert plan.cluster.intra_server_bits_per_second == 10e9
    nic = plan.cluster.servers[2].nics[1]
    assert (nic.rate_bits_per_second, nic.ip, str(nic.network)) == (50e6, "10.7.1.3", "10.7.1.0/24")
    assert plan.cluster.servers[0].devices[0].memory_bytes == 2**30
    assert plan.network.verify_settings.tolerance == 0.10


def test_the_shipped_plans_are_valid() -> None:
    plans = sorted((ROOT / "examples" / "plans").glob("*.yaml"))
    assert plans
    for file in plans:
        assert isinstance(load_plan(file), Plan)


@pytest.mark.parametrize("written", [3, 3.0, "3s", "3000ms", "0.05min"])
def test_seconds_of_measuring_are_a_duration_or_a_number(written: Any) -> None:
    document = plan_document()
    document["network"]["verify"]["seconds"] = written
    assert plan(document).network.verify_settings.seconds == pytest.approx(3.0)


@pytest.mark.parametrize(
    "env", ["TOKEN=opensesame", ["opensesame"], {"TOKEN": 777111}, {"TOKEN": ["opensesame"]},
            {"TOKEN": "opensesame\0"}]
)  # fmt: skip
def test_a_mistake_in_a_variable_does_not_tell_its_value(env: Any) -> None:
    document = plan_document()
    document["job"]["env"] = env
    with pytest.raises(PlanError, match=r"job\.env") as refused:
        plan(document)
    assert "opensesame" not in str(refused.value) and "777111" not in str(refused.value)


@pytest.mark.parametrize("value", ["^docker0,nic0", "=pw-nic0,pw-nic1", "bond0", ""])
def test_a_script_may_name_what_has_addresses(value: str) -> None:
    document = plan_document()
    document["job"] = {
        "kind": "torchrun", "script": "examples/ddp.py", "env": {"NCCL_SOCKET_IFNAME": value},
    }  # fmt: skip
    plan(document)


def test_what_is_in_force_can_be_undone_under_a_plan_whose_job_could_not_start(
    tmp_path: Path,
) -> None:
    document = plan_document()
    document["cluster"]["servers"][0]["devices"] = [
        {"type": kind, "memory": "9GiB"} for kind in ("a100", "l4")
    ]
    for server in document["cluster"]["servers"][1:]:
        server["devices"] = [{"type": "l4", "memory": "9GiB"}]
    assert parse_plan(document, "test.yaml", base=tmp_path, runs_job=False).name == "small"
    with pytest.raises(PlanError, match="must be of one type"):
        parse_plan(document, "test.yaml", base=tmp_path)


def test_the_model_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "explosive.py").write_text("raise SystemExit\n\ndef training_step(): ...\n")
    document = plan_document()
    document["job"]["model"] = "explosive:training_step"
    assert parse_plan(document, "test.yaml", base=tmp_path).name == "small"


@pytest.mark.parametrize(
    ("types", "asked", "got"),
    [
        (("cpu:epyc:8", "cpu"), "auto", "gloo"),
        (("rtx4080s", "h200"), "auto", "nccl"),
        (("rtx4080s", "h200"), "gloo", "gloo"),
        (("rtx4080s", "h200"), "nccl", "nccl"),
    ],
)
def test_the_backend_is_what_every_device_can(types: tuple[str, str], asked: str, got: str) -> None:
    document = plan_document(2)
    for server, device_type in zip(document["cluster"]["servers"], types, strict=True):
        server["devices"][0]["type"] = device_type
    document["job"]["backend"] = asked
    assert plan(document).backend == got
    document["job"] = {"kind": "replay", "graph": "pyproject.toml", "steps": 1}
    assert plan(document).backend == "gloo", "a replay needs no GPU, whatever it plays"


def test_processors_and_gpus_are_for_scripts_alone() -> None:
    """`controller init` writes such a plan where only some servers have a GPU."""
    document = plan_document(2)
    document["cluster"]["servers"][1]["devices"][0]["type"] = "h200"
    with pytest.raises(
        PlanError, match="s1 has 'cpu', s2 'h200'; list servers of one kind"
    ) as told:
        plan(document)
    assert "cluster.servers" in str(told.value)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    assert plan(document).backend == "gloo"


@pytest.mark.parametrize(
    "launch", [None, {"kind": "ssh", "key": "/no", "known_hosts": "~no-one/k"}]
)
@pytest.mark.parametrize(
    "job",
    [
        {"kind": "torchrun", "script": "gone.py", "workdir": "/gone"},
        {"kind": "replay", "graph": "gone.json", "steps": 1},
        {"kind": "placed", "model": "gone.model:step", "batch": 8, "steps": 1},
    ],
)
def test_what_a_plan_made_is_undone_when_its_job_s_files_are_gone(
    tmp_path: Path, job: Any, launch: Any
) -> None:
    document = plan_document()
    document |= {"job": job} | ({} if launch is None else {"launch": launch})
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(PlanError, match=r"is no file|is not found|is no folder"):
        load_plan(file)
    plan = load_plan(file, runs_job=False)
    assert plan.job.kind == job["kind"]
    assert session._launcher(plan, file), "to end what is left of it"
