"""What is to be done: which calls each thread makes, in which batches, and what the world answers.

Known alike by the provider that plays the calls, the tool host that carries them out, and the test that
compares; each is a process of its own. A thread's id names its workload and its place in it.
"""

import ast
import functools
import importlib
import importlib.util
import json
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

WORKLOADS = ("desk", "retail-single", "retail-batched", "bfcl", "fleet")
Call = dict[str, Any]


def thread_id(workload: str, index: int) -> str:
    return str(uuid.UUID(int=(WORKLOADS.index(workload) + 1) << 64 | index))


def place_of(thread: str) -> tuple[str, int]:
    number = uuid.UUID(thread).int
    return WORKLOADS[(number >> 64) - 1], number & (1 << 64) - 1


def batches(workload: str, index: int) -> list[list[Call]]:
    """The calls of a task, as the model makes them: one list per reply."""
    if workload == "bfcl":
        return [[{"name": "act", "arguments": {"code": code}}] for code in bfcl()[index]["calls"]]
    steps = retail_tasks()[index]["steps"]
    grouped = _side_by_side(steps) if workload == "retail-batched" else [[step] for step in steps]
    return [[{"name": step["name"], "arguments": step["kwargs"]} for step in group] for group in grouped]


# -- tau-bench, retail -----------------------------------------------------------------------------------


def _retail() -> Path:
    return Path(os.environ["TENUTO_SHARED"]) / "tau-bench"


@functools.cache
def retail_tasks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((_retail() / "retail-tasks.json").read_text())
    return found


@functools.cache
def retail_tools() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_retail() / "retail-tools.json").read_text())
    return found


def is_write(step: dict[str, Any]) -> bool:
    return step["name"] in retail_tools()["write_tools"]


def _rows(step: dict[str, Any]) -> set[str]:
    """The rows that a write looks at or changes: those of its patch, and those that it names."""
    named = {str(value) for key, value in step["kwargs"].items() if key in ("order_id", "user_id")}
    return named | {entry["path"].split("/")[2] for entry in step["patch"]}


def _side_by_side(steps: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs of reads, and runs of writes that have no row in common: their order makes no difference."""
    groups: list[list[dict[str, Any]]] = []
    for step in steps:
        group = groups[-1] if groups else []
        alike = bool(group) and is_write(group[0]) == is_write(step)
        if alike and not (is_write(step) and any(_rows(other) & _rows(step) for other in group)):
            group.append(step)
        else:
            groups.append([step])
    return groups


class RetailDatabase:
    """The final databases of many tasks, hashed as the benchmark's own check.py does, a row at a time."""

    def __init__(self) -> None:
        spec = importlib.util.spec_from_file_location("tau_bench_check", _retail() / "check.py")
        assert spec is not None
        assert spec.loader is not None
        self._check = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._check)
        self._tables: dict[str, dict[str, Any]] = self._check.load("retail")
        self._texts = {
            table: {key: self._text(row) for key, row in rows.items()} for table, rows in self._tables.items()
        }

    def _text(self, row: Any) -> str:
        return repr(self._check.canon(row))

    def digest(self, patches: list[list[dict[str, Any]]]) -> str:
        """The hash after these patches, in this order."""
        import hashlib

        changed: dict[str, dict[str, Any]] = {table: {} for table in self._tables}
        for patch in json.loads(json.dumps(patches)):
            for entry in patch:
                table, key = entry["path"].split("/")[1:3]
                if key not in changed[table]:
                    changed[table][key] = json.loads(json.dumps(self._tables[table][key]))
            self._check.apply(changed, patch)
        tables = []
        for table in sorted(self._tables):
            texts = self._texts[table] | {key: self._text(row) for key, row in changed[table].items()}
            tables.append(f"({table!r}, ({', '.join(f'({k!r}, {texts[k]})' for k in sorted(texts))}))")
        return hashlib.sha256(f"({', '.join(tables)})".encode()).hexdigest()


# -- BFCL, multi-turn ------------------------------------------------------------------------------------


@functools.cache
def bfcl() -> list[dict[str, Any]]:
    """The base tasks: initial configuration, classes, and the calls of the ground truth as Python text."""
    data = Path(os.environ["TENUTO_BFCL"]) / "bfcl_eval" / "data"
    name = "BFCL_v4_multi_turn_base.json"
    tasks = [json.loads(line) for line in (data / name).read_text().splitlines()]
    for task, line in zip(tasks, (data / "possible_answer" / name).read_text().splitlines(), strict=True):
        truth = json.loads(line)
        assert truth["id"] == task["id"]
        task["calls"] = [code for turn in truth["ground_truth"] for code in turn]
    return tasks


class BfclWorld:
    """The environments of one task: instances of the benchmark's own classes."""

    def __init__(self, task: dict[str, Any]) -> None:
        backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        self._instances = {}
        for name in task["involved_classes"]:
            made = getattr(importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in backend.STATELESS_CLASSES:
                made._load_scenario(json.loads(json.dumps(task["initial_config"].get(name, {}))))
            self._instances[name] = made

    def act(self, code: str) -> str:
        """What the benchmark's own execution gives for a call."""
        methods = {}
        for made in self._instances.values():
            methods |= {name: getattr(made, name) for name in dir(made) if not name.startswith("_")}
        try:
            tree = ast.parse(code, mode="eval")
            result = eval(compile(tree, "call", "eval"), {"__builtins__": {}}, methods)
        except Exception as error:  # noqa: BLE001 - as the benchmark does: what goes wrong is a result
            return f"Error during execution: {error}"
        try:
            return result if isinstance(result, str) else json.dumps(result)
        except TypeError:
            return str(result)

    def state(self) -> dict[str, Any]:
        """What the benchmark compares: the public attributes of each instance."""
        return {
            f"{name}.{key}": value
            for name, made in self._instances.items()
            for key, value in vars(made).items()
            if not key.startswith("_")
        }


# -- processes -------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """End this process when the one that started it is gone, even by kill -9: nothing is left behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
