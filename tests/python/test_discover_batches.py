"""Discovery with the data that people have: loaders, lists of batches, a Trainer, a LightningModule."""

import copy
import itertools
import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass

import ddc
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

KINDS = ["relu rescale", "CE row shift", "CE bias shift"]


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)).double()


def samples(count):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(4, (count,), generator=generator))


def loss(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def pairs(count, size=16):
    return [tuple(batch) for batch in DataLoader(samples(count * size), batch_size=size)]


def kinds(group):
    return [gauge.kind for gauge in group.gauges]


def distinct(group):
    """What a group is, without what is said of how it was found."""
    fields = json.loads(group.to_json())
    return {**fields, "notes": []}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(samples(200))


# Loaders, lists, generators


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (
            lambda: DataLoader(samples(400), batch_size=16, shuffle=True),
            "8 batches of 16 samples, taken from dataloader (DataLoader)",
        ),
        (
            lambda: DataLoader(Stream(), batch_size=64),
            "4 batches of 8 to 64 samples (200 in all), taken from dataloader (DataLoader), "
            "which had no more",
        ),
        (lambda: pairs(9), "8 batches of 16 samples, taken from dataloader (list)"),
        (lambda: iter(pairs(9)), "8 batches of 16 samples, taken from dataloader (list_iterator)"),
    ],
)
def test_batches_may_come_from_anything_that_gives_them(loader, said):
    model, dataloader = mlp(), loader()
    state = torch.get_rng_state()
    group = ddc.discover(model, loss, dataloader=dataloader)
    assert torch.equal(torch.get_rng_state(), state)
    assert kinds(group) == KINDS
    assert f"the loss was evaluated on {said}" in group.notes
    assert ddc.SymmetryGroup.from_json(group.to_json()).notes == group.notes
    assert f"note: the loss was evaluated on {said}" in str(group)


@pytest.mark.parametrize("how", ["batches", "dataloader"])
def test_eight_batches_are_all_looked_at(how):
    seen = set()

    def watching(model, batch):
        seen.add(batch[0].sum().item())
        return loss(model, batch)

    given = pairs(8, size=5)
    group = ddc.discover(mlp(), watching, **{how: given})
    assert kinds(group) == KINDS
    assert seen == {batch[0].sum().item() for batch in given}
    whence = "given as batches" if how == "batches" else "taken from dataloader (list)"
    assert group.notes == [f"the loss was evaluated on 8 batches of 5 samples, {whence}"]


def test_the_same_batches_give_the_same_group():
    given = pairs(8)
    first = ddc.discover(mlp(), loss, batches=given)
    again = ddc.discover(mlp(), loss, dataloader=DataLoader(samples(128), batch_size=16))
    assert distinct(first) == distinct(again)
    assert first != again  # their notes differ


@pytest.mark.parametrize("own", [False, True])
def test_a_shuffling_loader_gives_training_the_order_it_would_have_given(own):
    generator = torch.Generator() if own else torch.default_generator
    loader = DataLoader(
        samples(400), batch_size=16, shuffle=True, generator=generator if own else None
    )
    model = mlp()
    generator.manual_seed(7)
    expected = [inputs for inputs, _ in loader]
    generator.manual_seed(7)
    group = ddc.discover(model, loss, dataloader=loader)
    after = [inputs for inputs, _ in loader]
    assert group.notes[1] == (
        "an iterator of dataloader (DataLoader) was advanced by 8 batches and dropped"
    )
    assert all(torch.equal(a, b) for a, b in zip(expected, after, strict=True))
    assert any(not torch.equal(a, b) for a, (b, _) in zip(expected, loader, strict=True))


@pytest.mark.parametrize("count", [1, 3])
def test_an_iterator_is_advanced_by_as_many_batches_as_are_taken(count):
    batches = (batch for batch in pairs(10))
    expected = pairs(10)[count]
    group = ddc.discover(mlp(), loss, dataloader=batches, max_batches=count)
    assert torch.equal(next(batches)[0], expected[0])
    how_many = "1 batch" if count == 1 else "3 batches"
    assert group.notes[1] == f"dataloader (generator) is an iterator, and is {how_many} further now"


def test_a_loader_may_fill_the_same_memory_again():
    memory = torch.empty(16, 3, dtype=torch.float64)
    seen = set()

    def reused():
        for inputs, targets in pairs(6):
            yield memory.copy_(inputs), targets

    def watching(model, batch):
        seen.add(batch[0].sum().item())
        return loss(model, batch)

    ddc.discover(mlp(), watching, dataloader=reused())
    assert seen == {batch[0].sum().item() for batch in pairs(6)}


def test_what_the_loss_does_to_a_batch_is_not_done_to_the_one_that_is_kept():
    given = [{"inputs": inputs, "targets": targets} for inputs, targets in pairs(4)]
    before = copy.deepcopy(given)

    def rough(model, batch):
        targets = batch.pop("targets")
        batch["inputs"].mul_(2)
        return F.cross_entropy(model(batch["inputs"]), targets)

    assert kinds(ddc.discover(mlp(), rough, batches=given)) == KINDS
    for old, new in zip(before, given, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old)


Pair = namedtuple("Pair", ["inputs", "targets"])


@dataclass
class Record:
    inputs: torch.Tensor
    targets: torch.Tensor


class Movable:
    """A batch that nobody knows, but that can be moved."""

    def __init__(self, inputs, targets, where=None):
        self.inputs, self.targets, self.where = inputs, targets, where

    def to(self, device):
        return Movable(self.inputs.to(device), self.targets.to(device), device)


@pytest.mark.parametrize("make", [Pair, Record, Movable])
def test_batches_keep_their_type(make):
    def typed(model, batch):
        assert type(batch) is make
        assert make is not Movable or batch.where == torch.device("cpu")
        return F.cross_entropy(model(batch.inputs), batch.targets)

    group = ddc.discover(mlp(), typed, batches=[make(*batch) for batch in pairs(3)])
    assert kinds(group) == KINDS


def test_tensors_that_require_gradients_are_detached():
    inputs = torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(16) % 4

    def leaf(model, batch):
        assert not batch[0].requires_grad
        return loss(model, batch)

    ddc.discover(mlp(), leaf, batches=[(inputs * 2, targets)] * 2)
    assert inputs.grad is None


class WithLoss(nn.Module):
    """Computes its loss itself, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, inputs, labels=None):
        logits = self.net(inputs)
        found = {} if labels is None else {"loss": F.cross_entropy(logits, labels)}
        return {**found, "logits": logits}


def test_without_a_loss_dicts_go_to_the_model():
    batches = [{"inputs": inputs, "labels": labels} for inputs, labels in pairs(4)]
    assert kinds(ddc.discover(WithLoss(), dataloader=batches)) == KINDS
    with pytest.raises(ValueError, match="computed no loss from inputs: the batch needs labels"):
        ddc.discover(WithLoss(), batches=[{"inputs": batches[0]["inputs"]}])


def test_the_other_functions_take_the_same_arguments(capsys):
    loader = DataLoader(samples(64), batch_size=16)
    optimizer = ddc.DDCAdam.from_model(mlp(), loss, dataloader=loader, max_batches=2, lr=0.5)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.symmetries.notes[0].startswith(
        "the loss was evaluated on 2 batches of 16 samples"
    )
    audit = ddc.audit(mlp(), loss, batches=pairs(3), steps=2)
    assert "the loss was evaluated on 3 batches of 16 samples" in str(audit)
    assert audit.group.completeness.explained == 11
    assert optimizer.symmetries.verify(mlp(), loss, dataloader=loader).passed
    wrong = nn.Sequential(mlp()[0], nn.GELU(), mlp()[2])
    assert not optimizer.symmetries.verify(wrong, loss, batches=pairs(3)).passed
    assert capsys.readouterr().err == ""


def test_verbose_says_what_was_done_with_the_data(caplog):
    batches = iter(pairs(4))
    ddc.discover(mlp(), loss, dataloader=batches, max_batches=2, verbose=True)
    assert caplog.messages[:2] == [
        "the loss was evaluated on 2 batches of 16 samples, taken from dataloader (list_iterator)",
        "dataloader (list_iterator) is an iterator, and is 2 batches further now",
    ]


# Errors


def one_argument(model):
    return model(torch.zeros(1, 3, dtype=torch.float64)).sum()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(), TypeError, "loss is missing"),
        (dict(loss=loss), TypeError, r"takes \(model, batch\): pass dataloader or batches"),
        (dict(loss=lambda: 0), TypeError, r"function of the model alone, this one takes \(\)$"),
        (
            dict(loss=DataLoader(samples(8))),
            TypeError,
            "is DataLoader; pass what gives batches as dataloader",
        ),
        (
            dict(loss=one_argument, dataloader=pairs(2)),
            TypeError,
            r"loss\(model, batch\), if dataloader or batches is given; this one takes \(model\)",
        ),
        (
            dict(loss=nn.CrossEntropyLoss(), dataloader=pairs(2)),
            TypeError,
            "is CrossEntropyLoss, a function of outputs and targets",
        ),
        (dict(loss=F.mse_loss, dataloader=pairs(2)), TypeError, "is mse_loss, a function of outp"),
        (dict(loss=3, dataloader=pairs(2)), TypeError, "of the model and a batch, is int"),
        (dict(loss=loss, dataloader=pairs(2), batches=pairs(2)), TypeError, "both given"),
        (dict(loss=loss, dataloader=3), TypeError, "must be an iterable of batches, is int"),
        (dict(loss=loss, dataloader={"a": 1}), TypeError, r"is dict; .* batches=\[batch\]"),
        (dict(loss=loss, dataloader=torch.zeros(3)), TypeError, "iterable of batches, is Tensor"),
        (dict(loss=loss, dataloader=samples(8)), TypeError, "TensorDataset, which gives samples"),
        (dict(loss=loss, dataloader=pairs(1)[0]), TypeError, "tuple of 2 tensors, .* one batch"),
        (dict(loss=loss, batches=pairs(1)[0]), TypeError, "tuple of 2 tensors, .* one batch"),
        (dict(loss=loss, batches={"a": 1}), TypeError, r"is dict: .* batches=\[batch\]"),
        (
            dict(loss=loss, batches=DataLoader(samples(8))),
            TypeError,
            "is DataLoader: pass it as dataloader",
        ),
        (dict(loss=loss, batches=iter([])), TypeError, "is list_iterator: pass it as dataloader"),
        (dict(loss=loss, batches=[]), ValueError, "at least one batch"),
        (dict(loss=loss, dataloader=[]), ValueError, r"dataloader \(list\) gave no batch"),
        (dict(loss=loss, dataloader=pairs(2), max_batches=0), ValueError, "at least 1, is 0"),
        (dict(loss=loss, dataloader=pairs(2), max_batches=2.5), TypeError, "whole number, is 2.5"),
        (
            dict(dataloader=pairs(2)),
            TypeError,
            "batch 0 of dataloader .* is a tuple of 2: without a loss it must be a dict",
        ),
        (dict(batches=[torch.zeros(3)]), TypeError, "batch 0 of batches is a Tensor: without"),
        (
            dict(loss=loss, batches=[(torch.zeros(2, 3, device="meta"),)]),
            ValueError,
            "batch 0 of batches cannot be moved to cpu, where the model is",
        ),
        (
            dict(loss=lambda model, batch: model(batch[0]), batches=pairs(2)),
            TypeError,
            r"loss\(model, batch\) must return a scalar tensor, returned \(16, 4\)",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ddc.discover(mlp(), **arguments)


def test_no_batch_is_taken_if_another_argument_is_wrong():
    batches = iter(pairs(3))
    frozen = mlp().requires_grad_(False)
    for model, arguments in [
        ("no model", dict(loss=loss)),
        (frozen, dict(loss=loss)),
        (mlp(), dict(loss=one_argument)),
        (mlp(), dict(loss=loss, max_batches=0)),
    ]:
        with pytest.raises((TypeError, ValueError)):
            ddc.discover(model, dataloader=batches, **arguments)
    assert len(list(batches)) == 3


def test_errors_of_the_loader_arrive_and_say_where_they_come_from():
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()

    def failing():
        yield from pairs(2)
        torch.rand(3)
        raise KeyError("no such file")

    with pytest.raises(KeyError, match="no such file") as caught:
        ddc.discover(model, loss, dataloader=failing())
    (note,) = caught.value.__notes__
    assert note == "(from dataloader (generator), which was asked for batch 2)"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_that_takes_the_next_batch_is_told_of_the_dataloader():
    batches = itertools.cycle(pairs(3))
    with pytest.raises(ValueError, match=r"discover\(model, dataloader=loader, loss=fn\)"):
        ddc.discover(mlp(), lambda model: loss(model, next(batches)))
    with pytest.raises(ValueError, match="for the same batch .* not on state that it keeps"):
        ddc.discover(mlp(), lambda model, _: loss(model, next(batches)), batches=pairs(2))


# Gradients


@pytest.fixture
def trained():
    """A model in the middle of training: with gradients, some of them None."""
    model = mlp()
    loss(model, pairs(1)[0]).backward()
    model[0].bias.grad = None
    return model


def gradients(model):
    return [
        (parameter.grad, None if parameter.grad is None else parameter.grad.clone())
        for parameter in model.parameters()
    ]


def assert_gradients_are(model, before):
    for parameter, (gradient, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, value)


def test_a_whole_training_step_may_be_the_loss(trained):
    before = gradients(trained)
    weights = copy.deepcopy(trained.state_dict())
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)

    def step(model, batch):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    group = ddc.discover(trained, step, batches=pairs(4))
    assert kinds(group) == KINDS
    assert distinct(group) == distinct(ddc.discover(trained, loss, batches=pairs(4)))
    assert "the loss calls backward, which did nothing in discovery" in group.notes
    assert all(torch.equal(weights[name], value) for name, value in trained.state_dict().items())
    assert_gradients_are(trained, before)
    assert not optimizer.state


@pytest.mark.parametrize("retain", [False, True])
def test_a_graph_that_is_gone_is_refused_with_a_way_out(trained, retain):
    before = gradients(trained)

    def backward(model, batch):
        value = loss(model, batch)
        torch.autograd.backward(value, retain_graph=retain)
        return value

    if retain:
        assert kinds(ddc.discover(trained, backward, batches=pairs(4))) == KINDS
    else:
        with pytest.raises(ValueError, match="graph is freed already: .* retain_graph=True"):
            ddc.discover(trained, backward, batches=pairs(4))
    assert_gradients_are(trained, before)


def test_gradients_are_back_if_the_loss_raises(trained):
    before = gradients(trained)
    calls = itertools.count()

    def failing(model, batch):
        value = loss(model, batch)
        torch.autograd.backward(value, retain_graph=True)
        if next(calls) == 5:
            raise KeyError("no such batch")
        return value

    with pytest.raises(KeyError):
        ddc.discover(trained, failing, batches=pairs(4))
    assert_gradients_are(trained, before)


def test_hooks_on_gradients_wait_until_discovery_is_over(trained):
    called = []
    weight = trained[0].weight

    def mask(gradient):
        called.append("mask")
        return gradient * 0

    handles = [
        weight.register_hook(mask),
        weight.register_post_accumulate_grad_hook(lambda _: called.append("accumulated")),
    ]
    assert kinds(ddc.discover(trained, loss, batches=pairs(4))) == KINDS
    assert called == []
    trained.zero_grad()
    loss(trained, pairs(1)[0]).backward()
    assert called == ["mask", "accumulated"]
    assert not weight.grad.any()
    for handle in handles:
        handle.remove()
    loss(trained, pairs(1)[0]).backward()
    assert weight.grad.any() and len(called) == 2


# The Trainer of transformers


def bert(dropout=0.0):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=10,
        max_position_embeddings=6,
        num_labels=3,
        initializer_range=0.3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config).double()
    model.bert.embeddings.requires_grad_(False)
    model.bert.pooler.requires_grad_(False)
    return model


def trainer_of(model, path, **more):
    import transformers

    tokens = torch.randint(1, 13, (64, 6), generator=torch.Generator().manual_seed(1))
    settings = dict(
        output_dir=str(path),
        per_device_train_batch_size=4,
        max_steps=4,
        logging_steps=1,
        max_grad_norm=0.0,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    function = more.pop("compute_loss_func", None)
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**{**settings, **more}),
        train_dataset=[{"input_ids": row, "labels": row[0] % 3} for row in tokens],
        compute_loss_func=function,
    )


def history(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_trainer_gives_batches_and_loss_and_trains_as_if_nothing_had_happened(tmp_path):
    from accelerate.state import GradientState

    plain = trainer_of(bert(), tmp_path / "plain")
    plain.train()
    trainer = trainer_of(bert().eval(), tmp_path / "searched")
    in_use = GradientState().dataloader_references
    group = ddc.huggingface.discover(trainer)
    assert GradientState().dataloader_references == in_use
    assert {"CE row shift", "QK linear", "residual mean shift"} <= set(kinds(group))
    assert group.notes[-3:] == [
        "the loss was evaluated on 8 batches of 4 samples, taken from the Trainer's train dataloader",
        "an iterator of the Trainer's train dataloader was advanced by 8 batches and dropped",
        "the model was in train mode for discovery, as the Trainer trains it",
    ]
    assert not any(module.training for module in trainer.model.modules())
    trainer.train()
    assert len(history(plain)) == 4
    assert history(trainer) == history(plain)


def test_the_optimizer_can_be_handed_to_the_trainer_afterwards(tmp_path):
    trainer = trainer_of(bert(), tmp_path)
    group = ddc.huggingface.discover(trainer, max_batches=4)
    trainer.optimizer = ddc.huggingface.optimizer(trainer.model, trainer.args, group)
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, ddc.DDCAdam)
    assert trainer.optimizer.optimizer.symmetries == group


def squares(outputs, labels, num_items_in_batch=None):
    return (F.one_hot(labels, 3) - outputs.logits).square().sum() / num_items_in_batch


@pytest.mark.parametrize(
    ("settings", "shifts"),
    [
        (dict(label_smoothing_factor=0.1), True),
        (dict(compute_loss_func=squares), False),
    ],
)
def test_the_loss_of_a_trainer_is_the_one_it_computes(tmp_path, settings, shifts):
    trainer = trainer_of(bert(), tmp_path, **settings)
    found = kinds(ddc.huggingface.discover(trainer, max_batches=4))
    assert "QK linear" in found
    assert ("CE row shift" in found) == shifts


def test_the_trainers_model_is_looked_at_with_dropout(tmp_path):
    trainer = trainer_of(bert(dropout=0.3).eval(), tmp_path)
    found = kinds(ddc.huggingface.discover(trainer))
    assert "QK linear" in found
    assert "residual mean shift" not in found  # a mean that coordinates drop out of


def test_what_is_no_trainer_is_refused():
    with pytest.raises(TypeError, match=r"must be a transformers\.Trainer, is Sequential"):
        ddc.huggingface.discover(mlp())


# Lightning


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def classes(lightning):
    """A module as people write them, and data for it."""
    import torchmetrics

    class Module(lightning.LightningModule):
        def __init__(self, form="tensor"):
            super().__init__()
            self.net = mlp()
            self.form = form
            self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
            self.outputs = []
            self.steps = 0
            self.total = torch.zeros(())
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, inputs):
            return self.net(inputs)

        def training_step(self, batch, batch_idx):
            inputs, targets = batch
            logits = self(inputs)
            value = F.cross_entropy(logits, targets)
            self.outputs.append(value)
            self.steps += 1
            self.total += 1
            self.seen += 1
            self.accuracy(logits, targets)
            self.log("loss", value, prog_bar=True)
            self.log_dict({"accuracy": self.accuracy})
            asked.add(batch_idx)
            return {"tensor": value, "dict": {"loss": value, "logits": logits}, "none": None}[
                self.form
            ]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters())

    class Data(lightning.LightningDataModule):
        def setup(self, stage):
            assert stage == "fit"
            self.data = samples(96)

        def train_dataloader(self):
            return DataLoader(self.data, batch_size=16, shuffle=True)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] * 0, batch[1]] if getattr(self, "blind", False) else batch

    asked = set()
    return Module, Data, asked


@pytest.mark.parametrize("form", ["tensor", "dict"])
def test_the_loss_of_a_lightning_module_is_its_training_step(classes, form, recwarn):
    Module, _, asked = classes
    module = Module(form)
    asked.clear()
    group = ddc.lightning.discover(module, DataLoader(samples(96), batch_size=16))
    assert kinds(group) == KINDS
    assert group.notes == [
        "the loss was evaluated on 6 batches of 16 samples, taken from dataloader (DataLoader), "
        "which had no more",
        "an iterator of dataloader (DataLoader) was advanced by 6 batches and dropped",
    ]
    assert asked == set(range(6))
    assert not [warning for warning in recwarn if "self.log" in str(warning.message)]


def test_what_a_training_step_keeps_is_taken_out_again(classes):
    Module, _, _ = classes
    module = Module()
    module.outputs.append("before")
    outputs = module.outputs
    module.accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0]))
    ddc.lightning.discover(module, pairs(3))
    assert module.outputs is outputs and outputs == ["before"]
    assert module.steps == 0
    assert module.seen == module.total == 0
    assert module.accuracy.compute() == 0.75
    assert "log" not in vars(module)


def test_batches_of_a_data_module_go_through_its_hooks(classes):
    Module, Data, _ = classes
    group = ddc.lightning.discover(Module(), datamodule=Data(), max_batches=3)
    assert kinds(group) == KINDS
    assert group.notes[0].endswith("3 batches of 16 samples, taken from train_dataloader() of Data")
    blind = Data()
    blind.blind = True
    # The first weight sees nothing of inputs that are zero.
    assert ddc.lightning.discover(Module(), datamodule=blind).dimension > group.dimension


@pytest.mark.parametrize("where", ["data module", "module"])
def test_a_module_may_discover_where_it_configures_its_optimizer(
    lightning, classes, where, tmp_path
):
    Module, Data, _ = classes

    class Discovering(Module):
        def configure_optimizers(self):
            self.group = ddc.lightning.discover(self)
            return ddc.DDCAdam(self.named_parameters(), symmetries=self.group, lr=1e-2)

    class WithData(Discovering):
        def train_dataloader(self):
            return DataLoader(samples(96), batch_size=16)

    module = WithData() if where == "module" else Discovering()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, **({} if where == "module" else {"datamodule": Data()}))
    assert kinds(module.group) == KINDS
    assert module.steps == 6
    assert isinstance(module.optimizers().optimizer, ddc.DDCAdam)
    assert "accuracy" in trainer.callback_metrics


def test_lightning_modules_that_will_not_do_are_refused(classes):
    Module, Data, _ = classes
    loader = pairs(2)
    with pytest.raises(TypeError, match="a LightningModule, is Sequential; ddc.discover takes any"):
        ddc.lightning.discover(mlp(), loader)
    with pytest.raises(TypeError, match="both given"):
        ddc.lightning.discover(Module(), loader, datamodule=Data())
    with pytest.raises(TypeError, match="Module has no train_dataloader of its own"):
        ddc.lightning.discover(Module())
    with pytest.raises(TypeError, match="datamodule must have a train_dataloader, is TensorData"):
        ddc.lightning.discover(Module(), datamodule=samples(3))
    with pytest.raises(TypeError, match="dataloader is a dict of 2 loaders"):
        loaders = {name: DataLoader(samples(8)) for name in "ab"}
        ddc.lightning.discover(Module(), loaders)
    with pytest.raises(TypeError, match="dict with 'loss', returned NoneType"):
        ddc.lightning.discover(Module("none"), loader)
    manual = Module()
    manual.automatic_optimization = False
    with pytest.raises(ValueError, match="automatic_optimization is False"):
        ddc.lightning.discover(manual, loader)
    iterator = iter(pairs(4))
    ddc.lightning.discover(Module(), iterator, max_batches=3)
    assert len(list(iterator)) == 1


def test_importing_ddc_imports_neither_lightning_nor_transformers():
    code = (
        "import sys, ddc; ddc.lightning.discover, ddc.huggingface.discover; "
        "sys.exit(any(name in sys.modules for name in ('lightning', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Several ranks

WORKER = """
import sys
import ddc, torch
import torch.distributed as dist
from test_discover_batches import loss, mlp, pairs

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
batches = iter(pairs(5))
group = ddc.discover(mlp(), loss, dataloader=batches, max_batches=3)
assert len(list(batches)) == 2, "every rank takes batches"
found = [None, None]
dist.all_gather_object(found, group.to_json())
assert found[0] == found[1] and len(group) == 3
def failing():
    yield from pairs(1)
    if rank == 0:
        raise OSError("no such file")
try:
    ddc.discover(mlp(), loss, dataloader=failing())
except OSError as error:
    assert rank == 0, error
except RuntimeError as error:
    assert rank == 1 and "failed on rank 0: OSError: no such file" in str(error), error
else:
    raise AssertionError("nothing was raised")
dist.barrier()
dist.destroy_process_group()
"""


def test_every_rank_takes_batches_and_learns_of_errors(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path)],
            env={**environment, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
