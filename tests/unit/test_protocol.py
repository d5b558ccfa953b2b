"""Each way to get a factory wrong ends in a message that says what to change."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune.errors import UsageError
from autotune.probe.task import Rank, Task
from autotune.probe.workload import build_task
from autotune.spec.model import OFFERED_ARGS
from autotune.workload import PythonFactory, Workload

HERE = Rank(rank=1, world_size=3, device=torch.device("cpu"))
BATCHES = [torch.full((2, 4), float(number)) for number in range(3)]


class Tied(nn.Module):
    """Two layers and a third that shares the first one's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.bottom = nn.Sequential(self.first)
        self.last.weight = self.first.weight


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(batch)
    return out.pow(2).mean()


def made(**parts: Any) -> SimpleNamespace:
    sound = {"model": nn.Sequential(nn.Linear(4, 4)), "batches": BATCHES, "loss": mean_square}
    return SimpleNamespace(**{**sound, **parts})


def build(factory: PythonFactory) -> Task:
    workload = Workload(model=factory, micro_batch=2, gradient_accumulation=1, seed=7)
    return build_task(workload, 2, HERE)


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Task]:
    """The task of a factory, as if it stood in a module beside the sweep file."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def task(factory: Any, **args: Any) -> Task:
        monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(build=factory))
        return build(PythonFactory(path="mine:build", args=args, folder=str(tmp_path)))

    return task


@pytest.fixture
def error_of(of: Callable[..., Task]) -> Callable[..., str]:
    """The error of the workload that a factory returns."""

    def error(factory: Any, **args: Any) -> str:
        with pytest.raises(UsageError) as caught:
            of(factory, **args)
        return str(caught.value)

    return error


def written(folder: Path, name: str, text: str) -> PythonFactory:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return PythonFactory(path=f"{name}:build", folder=str(folder))


def test_a_factory_gets_those_of_the_offered_arguments_that_it_takes(
    of: Callable[..., Task], tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def take(micro_batch: int, folder: str, depth: int, width: int = 3) -> Any:
        seen.update(locals())
        return made()

    of(take, depth=2)
    assert {name: seen[name] for name in ("micro_batch", "folder", "depth", "width")} == {
        "micro_batch": 2,
        "folder": str(tmp_path),
        "depth": 2,
        "width": 3,
    }


def test_a_factory_that_takes_anything_gets_all_that_the_sweep_file_may_not_set(
    of: Callable[..., Task],
) -> None:
    seen: dict[str, Any] = {}

    def take(**given: Any) -> Any:
        seen.update(given)
        return made()

    of(take, depth=2)
    assert set(seen) == {*OFFERED_ARGS, "depth"}
    assert (seen["rank"], seen["world_size"], seen["seed"]) == (1, 3, 7)


def test_the_folder_of_the_sweep_file_comes_first_on_the_path(
    of: Callable[..., Task], tmp_path: Path
) -> None:
    of(lambda: made())
    assert sys.path[0] == str(tmp_path)


def test_a_module_that_is_nowhere_is_named_with_the_folder_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError) as caught:
        build(PythonFactory(path="package_nowhere.train:build", folder=str(tmp_path)))
    assert f"There is no module package_nowhere in {tmp_path}" in str(caught.value)
    assert "package_nowhere.py beside the sweep file" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nimport not_installed_here\n", "No module named 'not_installed_here' (broken_0.py:2)"),
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero (broken_1.py:2)"),
        ("def build(:\n", "SyntaxError: invalid syntax (broken_2.py, line 1)"),
    ],
)
def test_an_error_inside_the_module_keeps_its_message_and_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = next(word for word in words.replace("(", " ").split() if word.startswith("broken"))
    with pytest.raises(UsageError) as caught:
        build(written(tmp_path, name.split(".")[0], text))
    assert f"Module {name.split('.')[0]} fails when it is imported: " in str(caught.value)
    assert words in str(caught.value)


def test_a_name_that_the_module_lacks_is_refused_with_the_nearest_one_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError) as caught:
        build(written(tmp_path, "misnamed", "def biuld(): ...\n"))
    assert "has no attribute 'build'; did you mean biuld?" in str(caught.value)
    assert str(tmp_path / "misnamed.py") in str(caught.value)


def test_what_cannot_be_called_is_no_factory(error_of: Callable[..., str]) -> None:
    assert "mine:build is a SimpleNamespace and cannot be called" in error_of(made())


def test_args_that_the_factory_does_not_take_are_refused(error_of: Callable[..., str]) -> None:
    words = error_of(lambda seed, width=1: made(), depth=2)
    assert words.startswith("mine:build does not take depth (from args in the sweep file).")
    assert "It takes seed, width." in words


def test_a_parameter_that_nothing_gives_is_named(error_of: Callable[..., str]) -> None:
    words = error_of(lambda rank, depth, *, width: made(), width=3)
    assert words.startswith("mine:build needs depth; give it under args")
    assert words.endswith(f"by name: {', '.join(OFFERED_ARGS)}.")


def test_a_parameter_without_a_name_cannot_be_given(error_of: Callable[..., str]) -> None:
    def nameless(seed: int, /) -> Any: ...

    assert error_of(nameless).startswith("mine:build needs seed;")


def test_an_error_of_the_factory_is_its_own(of: Callable[..., Task]) -> None:
    def broken() -> Any:
        raise KeyError("checkpoint")

    with pytest.raises(KeyError, match="checkpoint"):
        of(broken)


def frozen_model() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "mine:build returned None; end it with a return"),
    "a dict": (
        lambda: vars(made()),
        "mine:build returned dict without model, batches, loss. It must return an object",
    ),
    "a model alone": (lambda: SimpleNamespace(model=1), "SimpleNamespace without batches, loss."),
    "a loss that is a number": (lambda: made(loss=0.5), "loss = 0.5, which cannot be called"),
    "tokens that are a number": (lambda: made(tokens=512), "tokens = 512, which cannot be called"),
    "a class for a model": (
        lambda: made(model=nn.Linear),
        "The model of mine:build is the class Linear; it must be a torch.nn.Module",
    ),
    "weights for a model": (lambda: made(model={}), "is a dict; it must be a torch.nn.Module"),
    "a model without weights": (lambda: made(model=nn.ReLU()), "has no parameters"),
    "a frozen model": (lambda: made(model=frozen_model()), "has 2 parameters, all frozen"),
    "a model on meta": (
        lambda: made(model=nn.Linear(4, 4, device="meta")),
        "parameters on the meta device, such as weight; build it with real weights",
    ),
    "bf16 weights": (
        lambda: made(model=nn.Linear(4, 4, dtype=torch.bfloat16)),
        "weights of bfloat16, such as weight; master weights must be fp32",
    ),
    "layers that are modules": (
        lambda: made(layers=[nn.Linear(4, 4)]),
        "The layers of mine:build are a list; give a tuple of classes of modules",
    ),
    "a class for layers": (lambda: made(layers=nn.Linear), "are the class Linear; give a tuple"),
    "a name for layers": (lambda: made(layers="Block"), "are 'Block'; give a tuple"),
    "layers of another model": (
        lambda: made(layers=(nn.Conv2d,)),
        "The model of mine:build has no module of the layers Conv2d",
    ),
    "tied layers": (
        lambda: made(model=Tied(), layers=(nn.Sequential,)),
        "hold Sequential, whose weights are tied to others outside of it",
    ),
    "a number of batches": (lambda: made(batches=8), "batches of mine:build are 8; give a list"),
    "one batch": (
        lambda: made(batches={"input_ids": BATCHES[0]}),
        "batches of mine:build are a dict; give a list of batches or a DataLoader",
    ),
    "a data set": (lambda: made(batches=Samples()), "are a Samples; give a list of batches"),
}


class Samples(Dataset[int]):
    """Gives a sample for any number: going through it never ends."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("factory", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_workload_is_refused_with_what_it_is(
    error_of: Callable[..., str], factory: Callable[[], Any], words: str
) -> None:
    assert words in error_of(factory)


def test_frozen_weights_may_be_of_any_dtype(of: Callable[..., Task]) -> None:
    model = nn.Sequential(frozen_model().to(torch.bfloat16), nn.Linear(4, 4))
    assert of(lambda: made(model=model)).model is model


def test_the_same_model_twice_is_refused_and_a_copy_is_not(of: Callable[..., Task]) -> None:
    model = nn.Linear(4, 4)
    of(lambda: made(model=model))
    with pytest.raises(UsageError, match="returned the same model object again"):
        of(lambda: made(model=model))
    of(lambda: made(model=copy.deepcopy(model)))


def test_a_list_and_a_loader_start_again_when_they_end(of: Callable[..., Task]) -> None:
    listed = of(lambda: made()).batches
    assert [float(next(listed)[0, 0]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    loaded = of(lambda: made(batches=loader)).batches
    assert [next(loaded)[0].tolist() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]


def test_a_generator_that_ends_is_refused_when_it_does(of: Callable[..., Task]) -> None:
    batches = of(lambda: made(batches=iter(BATCHES))).batches
    for _ in BATCHES:
        next(batches)
    with pytest.raises(UsageError) as caught:
        next(batches)
    assert "ended after 3 and cannot be restarted" in str(caught.value)
    assert "return a list or a DataLoader, not a generator" in str(caught.value)


def test_batches_of_nothing_are_refused(of: Callable[..., Task]) -> None:
    with pytest.raises(UsageError, match="are empty; give at least one"):
        next(of(lambda: made(batches=[])).batches)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, batch: 2.5, "returned 2.5; it must return a tensor with one value"),
        (lambda model, batch: {"loss": model(batch)}, "returned a dict; it must return a tensor"),
        (lambda model, batch: model(batch).mean(1), "has the shape (2,); it must be one value"),
        (
            lambda model, batch: mean_square(model, batch).detach(),
            "has no gradient; compute it from the model's output",
        ),
    ],
)
def test_a_loss_that_nothing_can_be_learnt_from_is_refused_at_the_first_batch(
    of: Callable[..., Task], loss: Any, words: str
) -> None:
    task = of(lambda: made(loss=loss))
    with pytest.raises(UsageError) as caught:
        task.loss(task.model, next(task.batches))
    assert words in str(caught.value)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_loss_of_one_value_is_right_in_either_shape(
    of: Callable[..., Task], shape: tuple[int, ...]
) -> None:
    task = of(lambda: made(loss=lambda model, batch: mean_square(model, batch).reshape(shape)))
    for _ in range(2):
        loss = task.loss(task.model, next(task.batches))
    assert loss.shape == shape
    loss.backward()


@pytest.mark.parametrize(
    ("count", "words"), [(0, "returned 0"), (2.0, "returned 2.0"), (None, "returned None")]
)
def test_tokens_are_a_whole_number_above_zero(
    of: Callable[..., Task], count: Any, words: str
) -> None:
    task = of(lambda: made(tokens=lambda batch: count))
    with pytest.raises(UsageError) as caught:
        task.tokens(BATCHES[0])
    assert f"tokens of mine:build {words}; it must return a whole number" in str(caught.value)


def test_tokens_may_be_a_tensor_of_one_integer(of: Callable[..., Task]) -> None:
    assert of(lambda: made(tokens=lambda batch: torch.tensor(6))).tokens(BATCHES[0]) == 6
